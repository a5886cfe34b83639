"""Whole commands on a pretended GPU: nothing stays on the processor that the GPU needs, and steps are the processor's.

What only a real one shows is in test_gpu.py."""

import copy
import json

import pytest
import torch
from fake_sets import class_folders
from ignite.engine import Events
from pretended_gpu import needs_its_torch, pretended_gpu
from small_run import call

from datasets import build_dataloaders
from datasets.config import DataConfig
from datasets.transforms import BatchMix
from inference.certainty.layer_features import recorded, whole_parts
from trainers.budget import ensemble
from trainers.budget import networks as ways
from trainers.config import RunConfig, TrainConfig
from trainers.engine.engines import StepOptions, create_evaluator, create_trainer
from trainers.engine.optim import build_optimizer
from trainers.features import compute_features
from trainers.setup import prepare, training_forward
from trainers.storage.run_folder import read_json
from vit import Blueprint, ImageSpec, ModelConfig
from vit.config import Network

pytestmark = needs_its_torch
NAMES = tuple("abcdefghij")
FROZEN = "--model vit_nano_8 --weights fashion_mnist --trainable head --augment none --amp off"


def small():
    return Blueprint(ModelConfig(name="vit_micro_4", weights="none")).build(num_classes=10, class_names=NAMES)


def batches(count=3):
    torch.manual_seed(0)
    return [(torch.randn(8, 3, 32, 32), torch.randint(10, (8,))) for _ in range(count)]


def losses(device, name="adamw", mix=None, *, look_every=1):
    """The loss of each step; of the last one alone where not every step is looked at."""
    torch.manual_seed(0)
    model = small().to(device)
    matrices, rest = ([p for p in model.parameters() if (p.dim() == 2) is two] for two in (True, False))
    groups = [{"params": matrices, "matrices": name == "muon"}, {"params": rest}]
    optimizer, options = build_optimizer(groups, name=name, lr=1e-3), StepOptions(mix=mix, look_every=look_every)
    trainer = create_trainer(model, optimizer, torch.nn.CrossEntropyLoss(), torch.device(device), options=options)
    seen = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: seen.append(engine.state.output["loss"]))
    trainer.run(batches(), max_epochs=1)
    return [float(loss) for loss in seen[-1:]] if look_every > 1 else seen


MIX = BatchMix(10, 0.8, 1.0)


@pytest.mark.parametrize(("name", "mix"), [("adamw", MIX), ("sgd", None), ("muon", None)], ids=["adamw", "sgd", "muon"])
def test_steps_are_those_of_the_processor(name, mix):
    """Each waits for the GPU once at most."""
    expected = losses("cpu", name, mix)
    with pretended_gpu() as gpu:
        assert losses("cuda", name, mix) == pytest.approx(expected, rel=1e-4)
    assert 0 < sum(gpu.waits.values()) <= len(expected), gpu.waits


def test_steps_between_looks_do_not_wait():
    """A handler keeps their outputs."""
    expected = losses("cpu")[-1:]
    with pretended_gpu() as gpu:
        assert losses("cuda", look_every=3) == pytest.approx(expected, rel=1e-4)
    assert sum(gpu.waits.values()) <= 1, gpu.waits


def test_evaluation_is_fetched_once_a_pass():
    waits = []
    for count in (1, 3):
        with pretended_gpu() as gpu:
            model = small().to("cuda")
            with recorded(model, 8 * count) as parts:
                create_evaluator(model, torch.device("cuda")).run(batches(count))
            assert whole_parts(parts) is not None
        waits.append(sum(gpu.waits.values()))
    assert waits[0] == waits[1]


def test_features_are_fetched_once_a_pass():
    model, waits = small(), []
    for images in (64, 320):
        bundle = build_dataloaders(DataConfig(labels_per_class=images // 10, workers=0), ImageSpec(image_size=32))
        expected = compute_features(model, bundle.dataloaders["train"], torch.device("cpu"))
        with pretended_gpu() as gpu:
            there = copy.deepcopy(model).to("cuda")
            found = compute_features(there, bundle.dataloaders["train"], torch.device("cuda"))
        assert torch.allclose(found, expected, atol=1e-5)
        waits.append(sum(gpu.waits.values()))
    assert waits[0] == waits[1] <= 2, gpu.waits


def test_whole_batches_keep_their_graph(monkeypatch, tmp_path):
    compiled, ran, real = [], [], torch.compile

    def backend(graph, _):
        compiled.append(graph)
        number = len(compiled)
        return lambda *values: (ran.append(number), graph(*values))[1]

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", lambda module, **options: real(module, backend=backend, **options))
    options = {"device": "cpu", "compile": True, "amp": "off"}
    setup = prepare(RunConfig(ModelConfig(name="vit_micro_2"), train=TrainConfig(**options)))
    network = training_forward(setup)
    for images in (8, 8, 5, 8, 8, 5):  # the last batch of an epoch is smaller
        network(torch.randn(images, 3, 8, 8))
    assert ran == [1, 1, 2, 1, 1, 2]


def test_loaders_pin_for_a_gpu_alone():
    with pretended_gpu():
        here = prepare(RunConfig(train=TrainConfig(device="cpu"))).data
        there = prepare(RunConfig(train=TrainConfig(device="cuda"))).data
        assert not any(loader.pin_memory for loader in here.dataloaders.values())
        assert all(loader.pin_memory for loader in there.dataloaders.values())


def test_bytes_become_the_same_floats_on_a_gpu():
    config, spec = DataConfig(workers=0, batch_size=16), ImageSpec(image_size=8, mean=(0.1,) * 3, std=(0.3,) * 3)
    loader = build_dataloaders(config, spec).dataloaders["val"]
    expected = [images for images, _ in loader]
    assert {images.dtype for images in expected} == {torch.float32}
    with pretended_gpu():
        loader.device = torch.device("cuda")
        found = list(loader)
        assert all(images.device.type == labels.device.type == "cuda" for images, labels in found)
        assert loader.dataset.__getitems__(next(iter(loader.batch_sampler)))[0].dtype is torch.uint8
    assert all(torch.equal(images.inner, same) for (images, _), same in zip(found, expected, strict=True))


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return class_folders(tmp_path_factory.mktemp("photos") / "photos", {"cats": 12, "dogs": 12})


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def command(photos, runs, capsys):
    """Let a command run on the pretended GPU; returns what it printed."""

    def called(line):
        words = line.format(run=runs / "photos", photos=photos).split()
        if words[0] == "train":
            words += ["--data", photos, "--device", "cuda", "--output-dir", runs, "--tb", "scalars", "--workers", "0"]
        with pretended_gpu():
            code, out, err = call(capsys, *words)
        assert code == 0, err
        return out

    return called


def test_run_trains_resumes_and_is_used(command, runs, monkeypatch):
    monkeypatch.setattr("trainers.reporting.explanations.subject.POINTS", (1.0,))  # a map is made at once
    (runs / "mixed.toml").write_text("ema-decay = 0.9\nmixup = 0.8")
    mixed = f"--accumulate 2 --augment standard --config {runs}/mixed.toml"
    command(f"train --model vit_micro_4 --image-size 16 --epochs 1 --batch-size 8 --amp fp16 {mixed} --run-name fp16")
    assert read_json(runs / "photos" / "fp16" / "config.json")["train"]["device"] == "cuda"
    assert "after step" in command("resume {run}/fp16 --epochs 2")
    assert "as logged" in command("evaluate {run}/fp16")
    assert "cats" in command("predict {run}/fp16 {photos}/cats/000.png --device cuda")
    command("explain {run}/fp16 {photos}/cats/000.png --device cuda")


def test_heads_are_fitted_on_cached_features(command, runs):
    (runs / "fit.toml").write_text('start-head = "fit"')
    assert "cached:" in command(f"train {FROZEN} --epochs 2 --run-name probe")
    assert "cached:" in command(f"train {FROZEN} --config {runs}/fit.toml --run-name fit")


def test_ensemble_trains(command, runs):
    networks = [{"name": "vit_nano_8", "image_size": 32}, {"name": "vit_nano_8", "image_size": 24}]
    options = {"model": {"name": "ensemble", "networks": networks, "trainable": "head"}, "train": {"start_head": "fit"}}
    (runs / "ensemble.json").write_text(json.dumps(options))
    command(f"train --config {runs}/ensemble.json --augment none --amp off --run-name ensemble")
    assert "as logged" in command("evaluate {run}/ensemble")


@pytest.mark.slow
def test_plan_trains(command, monkeypatch):
    way = ways.Way({"model": {"name": "vit_nano_8", "weights": "fashion_mnist"}}, 1.0, 1.0, 1.0, 0.0)
    monkeypatch.setattr(ensemble, "local_networks", lambda: [Network("vit_nano_8", 32)])
    monkeypatch.setattr(ensemble, "ways", lambda accuracy, priced, seconds: [way])
    monkeypatch.setattr(
        ensemble, "with_deadline", lambda config, *_, **__: (config.changed(train={"epochs": 1}), [print])
    )
    assert "mixed  " in command("train --minutes 5 --amp off --run-name plan")
