"""Every training option changes what it says, and nothing else."""

import copy
import dataclasses
import math
import re
from pathlib import Path

import pytest
import torch
from fake_sets import class_folders
from ignite.engine import Events
from killed_runs import Crash, assert_same_content, crash_after, run_content
from small_run import call, digits_run, photo
from torch import nn

from common.errors import OptionError
from datasets.config import DataConfig
from datasets.transforms import Pipeline
from inference.classifier import open_classifier
from inference.evaluate import evaluate_run
from inference.images import ImageFile, read_pixels
from trainers.config import RunConfig, TrainConfig
from trainers.engine.engines import StepOptions, create_trainer
from trainers.engine.optim import build_average, build_optimizer
from trainers.options import defaults
from trainers.reporting.screen import without_effect
from trainers.resume import resume
from trainers.run import train
from trainers.setup import prepare, schedule, training_loss
from trainers.storage.checkpoint_file import best_of, read_checkpoint
from trainers.storage.run_folder import RunFolder, read_json
from vit.anatomy import recompute_activations
from vit.config import ModelConfig, ViTConfig
from vit.factory import build_model
from vit.model import VisionTransformer

CPU = torch.device("cpu")
SHAPE = ViTConfig(image_size=8, patch_size=4, embed_dim=16, depth=3, num_heads=2, num_classes=3)


def small_vit(**options) -> VisionTransformer:
    torch.manual_seed(0)
    model = VisionTransformer(dataclasses.replace(SHAPE, **options))
    nn.init.normal_(model.head.weight, std=0.2)
    return model


def batch(n=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, 8, 8, generator=generator), torch.randint(0, 3, (n,), generator=generator)


def trained(model, batches, *, optimizer="sgd", loss_fn=None, lr=0.02, **options):
    """The model after one epoch, and the outputs of its steps."""
    model = copy.deepcopy(model)
    trainer = create_trainer(
        model,
        build_optimizer([{"params": list(model.parameters())}], name=optimizer, lr=lr),
        loss_fn or nn.CrossEntropyLoss(label_smoothing=0.1),
        CPU,
        options=StepOptions(**options),
    )
    outputs = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: outputs.append(engine.state.output))
    trainer.run(batches, max_epochs=1)
    return model, outputs


def gap(one: nn.Module, other: nn.Module) -> float:
    return max(float((a - b).detach().abs().max()) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("parts", [2, 3, 8])
def test_micro_batches_add_up_to_their_batch(parts):
    """The short last one, too."""
    batches = [batch(8), batch(8, seed=1), batch(5, seed=2)]
    whole, expected = trained(small_vit(), batches)
    cut, outputs = trained(small_vit(), batches, micro_batches=parts)
    assert gap(whole, small_vit()) > 1e-3
    assert gap(cut, whole) < 1e-6
    for ours, theirs in zip(outputs, expected, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-6)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-5)
        assert (ours["n"], ours["correct"]) == (theirs["n"], theirs["correct"])


def test_micro_batches_draw_dropout_and_mixtures():
    images, labels = batch(4)
    twice = [(torch.cat([images, images]), torch.cat([labels, labels]))]
    drawn = []

    def mix(images, labels, generator):
        drawn.append(float(torch.rand((), generator=generator)))
        return images, nn.functional.one_hot(labels, 3).float()

    first, _ = trained(small_vit(dropout=0.5), twice, micro_batches=2, mix=mix)
    whole, _ = trained(small_vit(dropout=0.5), [(images, labels)])
    assert len(set(drawn)) == 2
    assert gap(first, whole) > 1e-4  # equal, were both halves dropped out alike


def test_weighted_losses_of_micro_batches_add_up(tmp_path):
    loss_fn = training_loss(prepare(run_config(tmp_path, data={"balance": "loss"})))
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(12, 10, generator=generator), torch.randint(0, 10, (12,), generator=generator)
    halves = (loss_fn(logits[:5], labels[:5]) * 5 + loss_fn(logits[5:], labels[5:]) * 7) / 12
    assert loss_fn(logits, labels) == pytest.approx(float(halves), abs=1e-6)


def test_clipping_bounds_the_step_alone():
    free, outputs = trained(small_vit(), [batch()], clip_norm=0.0, lr=1.0)
    clipped, same = trained(small_vit(), [batch()], clip_norm=0.01, lr=1.0)
    assert outputs[0]["grad_norm"] == same[0]["grad_norm"] > 0.1

    def moved(model):
        steps = [a - b for a, b in zip(model.parameters(), small_vit().parameters(), strict=True)]
        return float(torch.cat([step.detach().flatten() for step in steps]).norm())

    assert moved(clipped) == pytest.approx(0.01, rel=1e-3)
    assert moved(free) == pytest.approx(outputs[0]["grad_norm"], rel=1e-3)


def test_the_moving_average_follows_its_formula():
    model, statistics = nn.Linear(3, 2), nn.BatchNorm1d(2)
    average, expected = build_average(whole := nn.Sequential(model, statistics), decay=0.5), None
    for step in range(30):
        nn.init.normal_(model.weight, generator=torch.Generator().manual_seed(step))
        whole(torch.ones(4, 3))
        average.update_parameters(whole)
        momentum = min(0.5, (1 + step) / (10 + step)) if step else 0.0
        expected = model.weight.detach() if expected is None else momentum * expected + (1 - momentum) * model.weight
    torch.testing.assert_close(average.module[0].weight, expected)
    assert torch.equal(average.module[1].running_mean, statistics.running_mean)


def gradients(model, *, seed=3):
    torch.manual_seed(seed)
    logits = model(batch()[0])
    nn.functional.cross_entropy(logits, batch()[1]).backward()
    return logits.detach(), [p.grad for p in model.parameters()]


def test_recomputed_activations_give_equal_gradients():
    """And logits, dropout included."""
    plain = small_vit(dropout=0.3, attention_dropout=0.3, stochastic_depth=0.5)
    saving = copy.deepcopy(plain)
    recompute_activations(list(saving.blocks))
    calls = []
    saving.blocks[0].mlp.fc1.register_forward_pre_hook(lambda *_: calls.append(1))
    (one, ours), (other, theirs) = gradients(saving), gradients(plain)
    assert len(calls) == 2  # once more in the backward pass
    torch.testing.assert_close(one, other, atol=1e-6, rtol=0)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)
    with torch.no_grad():
        saving.eval()(batch()[0])
    assert len(calls) == 3
    assert gap(copy.deepcopy(saving), saving) == 0


RESNET = {"name": "resnet18", "image_size": 32, "weights": "none"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": RESNET, "checkpoint_activations": True}, "batch norm would count every batch's statistics twice"),
        ({"data": {"batch_size": 2}, "accumulate": 3}, "batch_size=2 images cannot be cut into 3 parts"),
    ],
)
def test_what_cannot_be_trained_is_refused(tmp_path, changes, message):
    with pytest.raises(OptionError, match=message):
        prepare(run_config(tmp_path, **changes))


@pytest.mark.slow
def test_compiling_only_rounds_and_saves_the_model(tmp_path):
    result = train(run_config(tmp_path, compile=True, epochs=1))
    plain = train(run_config(tmp_path / "plain", epochs=1))
    assert result.val["loss"] == pytest.approx(plain.val["loss"], abs=1e-4)
    saved = read_checkpoint(RunFolder(result.run_dir).checkpoints("step")[0])["model"]
    assert not [name for name in saved if "_orig_mod" in name]
    model = small_vit().eval()
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model)(batch()[0]), model(batch()[0]), atol=1e-5, rtol=0)


def run_config(folder: Path, *, model: dict | None = None, data: dict | None = None, **train_options) -> RunConfig:
    data = {"labels_per_class": 20, "batch_size": 32} | (data or {})
    return digits_run(folder, model=model, data=data, **{"epochs": 2} | train_options)


def resumed_as_if_whole(tmp_path, **options):
    """A run that did not stop, after one of the same options crashed and went on exactly."""
    whole = train(run_config(tmp_path / "whole", **options))
    with pytest.raises(Crash):
        train(run_config(tmp_path / "stopped", **options), handlers=[crash_after(4)])
    resumed = resume(next((tmp_path / "stopped").glob("*/*")))
    assert_same_content(run_content(whole.run_dir), run_content(resumed.run_dir))
    return whole


def test_what_is_frozen_stays_frozen_in_a_resumed_run(tmp_path):
    options = {"model": {"trainable": "norms"}, "data": {"labels_per_class": 7}}
    whole = resumed_as_if_whole(tmp_path, **options)
    setup, end = prepare(run_config(tmp_path, **options)), read_checkpoint(best_of(whole.run_dir))["model"]
    parameters = dict(setup.model.named_parameters())
    moved = {name for name, parameter in parameters.items() if not torch.equal(parameter, end[name])}
    assert moved == {name for name, parameter in parameters.items() if parameter.requires_grad}
    held = {id(parameter) for group in setup.optimizer.param_groups for parameter in group["params"]}
    assert held == {id(parameters[name]) for name in moved}


def test_low_rank_changes_leave_an_ordinary_model(tmp_path):
    options = {"model": {"trainable": "lora:2"}, "data": {"labels_per_class": 7}, "ema_decay": 0.9}
    whole = resumed_as_if_whole(tmp_path, **options)
    summary, best = read_json(whole.run_dir / "summary.json"), read_checkpoint(best_of(whole.run_dir))
    assert summary["trainable"] == 4 * 4 * 2 * 64 + 65 * 10  # four blocks of width 64, and the head of ten classes
    setup = prepare(run_config(tmp_path, **options))
    assert sum(p.numel() for group in setup.optimizer.param_groups for p in group["params"]) == summary["trainable"]
    assert best["model"].keys() == build_model("vit_micro_2", num_classes=10).state_dict().keys()
    evaluation = evaluate_run(whole.folder, split="val")
    assert evaluation.metrics == {name: whole.val[name] for name in evaluation.metrics}
    assert resume(whole.run_dir, epochs=3).epochs[:3] == whole.epochs


def test_layer_decay_slows_each_layer_below_the_head(tmp_path):
    groups = prepare(run_config(tmp_path, layer_decay=0.5)).optimizer.param_groups
    assert {group["lr_scale"] for group in groups} == {0.5**below for below in range(6)}  # head, four blocks, embedding


FOUR_STEPS = {"labels_per_class": 4, "batch_size": 10}


def test_a_run_may_end_and_go_on_within_an_epoch(tmp_path):
    result = train(run_config(tmp_path, data=FOUR_STEPS, epochs=1.5))
    assert [row["step"] for row in result.epochs] == [0, 4, 6]
    assert read_json(result.run_dir / "config.json")["train"]["epochs"] == 1.5
    assert resume(result.run_dir).best_epoch == result.best_epoch  # finished: nothing to do
    assert [row["step"] for row in resume(result.run_dir, epochs=2.25).epochs] == [0, 4, 6, 8, 9]


def test_the_better_of_two_rows_of_an_epoch_is_kept(tmp_path):
    def spoil(trainer):
        for parameter in trainer.state.run.network.parameters():
            parameter.data.mul_(-30)

    run_dir = train(run_config(tmp_path, data=FOUR_STEPS, epochs=0.5, select="loss")).run_dir
    spoils = [lambda trainer: trainer.add_event_handler(Events.ITERATION_COMPLETED(once=4), spoil)]
    result = resume(run_dir, epochs=1, handlers=spoils)
    assert [(row["epoch"], row["step"]) for row in result.epochs] == [(0, 0), (1, 2), (1, 4)]
    assert result.val["loss"] == result.epochs[1]["val_loss"] < result.epochs[2]["val_loss"]
    evaluation = evaluate_run(result.folder, split="val")
    assert evaluation.metrics == {name: result.val[name] for name in evaluation.metrics}
    assert resume(run_dir).val == result.val


@pytest.mark.parametrize(
    ("shape", "last"),
    [("cosine", 0.5 * (1 + math.cos(math.pi * 69 / 70))), ("constant", 1.0), ("cooldown", 1 / 21)],
)
def test_a_run_has_the_schedule_that_its_options_name(tmp_path, shape, last):
    setup = prepare(run_config(tmp_path, schedule=shape, epochs=10, lr=0.1, warmup_epochs=0))
    assert setup.total_steps == 70
    assert schedule(setup)(69) == pytest.approx(0.1 * last)
    assert schedule(setup, shape="constant")(69) == 0.1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"trainable": "head"}, "layer_decay": 0.7}, "layer_decay"),
        ({"model": {"trainable": "head"}, "checkpoint_activations": True}, "checkpoint_activations"),
        ({"model": {"trainable": "head"}, "compile": True}, "--compile"),
        ({"model": {"trainable": "head"}, "optimizer": "muon"}, "--optimizer muon"),
        ({"model": {"trainable": "lora:2", "dropout": 0.1}}, "dropout"),
        ({"model": {"trainable": "norms", "attention_dropout": 0.1}}, "attention_dropout"),
        ({"model": {"trainable": "head", "stochastic_depth": 0.1}}, "stochastic_depth"),
        ({"patience": 2}, "--patience has no effect: the run has 2 epochs"),
        ({"save_every": 7}, "save_every has no effect: an epoch has 7 steps"),
        ({"save_every": 15}, "save_every has no effect"),
        ({"log_every": 15}, "log_every has no effect: the run has 14 steps"),
        ({"mixup": 0.2, "data": {"batch_size": 1}}, "mixup"),
        ({"cutmix": 1.0, "data": {"batch_size": 1}}, "cutmix"),
        ({"data": {"split": Path("split.csv"), "split_seed": 1}}, "split_seed"),
        ({}, None),
        ({"save_every": 10}, None),  # within the second epoch
    ],
)
def test_an_option_without_effect_is_named(tmp_path, changes, message):
    lines = without_effect(defaults.of_model(run_config(tmp_path, **changes)), steps_per_epoch=7)
    assert any(message in line for line in lines) if message else not lines


@pytest.mark.parametrize(
    ("epochs", "warmup", "said"),
    [(0.67, 0.6, ["of 0.6 epochs is shortened to 0 steps: the run has 1 step"]), (2, 0.5, [])],
)
def test_a_warm_up_leaves_a_step_and_says_so(tmp_path, capsys, epochs, warmup, said):
    """Of 2 steps an epoch, 0.67 epochs and a warm-up of 0.6 are both one step: a traceback, and exit code 1."""
    words = f"--data {class_folders(tmp_path / 'set', {'a': 12, 'b': 12})} --batch-size 10 --val-fraction 0.2"
    words += f" --model vit_micro_2 --device cpu --workers 0 --tb scalars --output-dir {tmp_path / 'runs'}"
    (tmp_path / "options.toml").write_text(f"epochs = {epochs}\nwarmup-epochs = {warmup}")
    code, out, _ = call(capsys, "train", *words.split(), "--config", tmp_path / "options.toml")
    assert (code, re.findall("the warm-up (.*)", out)) == (0, said)


def prepared(source, **model):
    options = {"name": "vit_micro_4", "weights": "none", "image_size": 32} | model
    data = DataConfig(source=str(source), workers=0, augment="none")
    return prepare(RunConfig(ModelConfig(**options), data, TrainConfig(epochs=1, device="cpu")))


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wide")
    for name in ("a", "b"):
        for number in range(8):
            photo(folder / name / f"{number}.png", seed=number + 100 * (name == "b"), size=(96, 32))
    return folder


def test_auto_is_resolved_by_the_images_and_recorded(wide, tmp_path):
    setup = prepared(wide)
    assert setup.config.model.fit == setup.spec.fit != "crop"
    assert setup.config.model.decoding == setup.spec.decoding == "scaled"
    for number in range(16):
        photo(tmp_path / "square" / "ab"[number % 2] / f"{number}.png", seed=number, size=(32, 32))
    assert prepared(tmp_path / "square").spec.fit == "crop"


def test_a_run_and_its_export_prepare_as_it_learnt(capsys, wide, tmp_path):
    words = ("--model", "vit_micro_2", "--image-size", "16", "--epochs", "1", "--device", "cpu", "--workers", "0")
    words += ("--fit", "pad", "--tb", "scalars", "--output-dir", tmp_path, "--run-name", "r")
    code, out, err = call(capsys, "train", "--data", wide, *words)
    assert code == 0, err
    assert "67%" in out  # of the average picture lie outside of a square
    run = next(tmp_path.glob("*/r"))
    assert call(capsys, "export", run)[0] == 0
    for source in (run, run / "export" / "model.safetensors"):
        spec = open_classifier(str(source), device="cpu").spec
        assert (spec.fit, spec.decoding) == ("pad", "scaled")
        pixels = read_pixels(ImageFile(str(next(wide.rglob("*.png")))), Pipeline(spec))
        assert (pixels[:, 0] == 128).all()  # the border
