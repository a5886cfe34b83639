"""What only a real GPU shows: `make test-gpu`; everything here is skipped without one.

Precisions against float32, equal bits, compiling, a run that goes on without its GPU, waits; and
figures, which are printed and not judged: images a second beside timm's, pictures a second of the loaders, memory."""

import hashlib
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from ignite.engine import Events
from torch import nn

from benchmarks import gpu_throughput
from trainers.config import load_config
from trainers.engine.engines import StepOptions, create_trainer
from trainers.engine.optim import build_optimizer
from trainers.storage.checkpoint_file import best_of, read_checkpoint
from trainers.storage.run_folder import RunFolder
from trainers.storage.run_result import read_result
from trainers.system.process_state import set_precision
from vit import Blueprint, ModelConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
ROOT = Path(__file__).resolve().parent.parent
GPU = torch.device("cuda")
TRAIN = "train --data digits --model vit_tiny_16 --image-size 64 --epochs 1 --tb scalars --device cuda --amp bf16"


def batches(steps=48, images=64, size=64):
    """Noise with a colour of its own for each of ten classes, which can be learnt in some dozens of steps."""
    random = torch.Generator().manual_seed(0)
    colours = torch.randn(10, 3, 1, 1, generator=random)
    for _ in range(steps):
        labels = torch.randint(10, (images,), generator=random)
        yield 0.5 * torch.randn(images, 3, size, size, generator=random) + colours[labels], labels


def losses(amp_dtype=None, *, model="vit_tiny_16", compiled=False, data=None, read=True):
    """Loss of each step of a small ViT; none where they are not `read`."""
    torch.manual_seed(0)
    blueprint = Blueprint(ModelConfig(name=model, weights="none", image_size=64))
    model = blueprint.build(num_classes=10, class_names=tuple("abcdefghij"))
    model = model.to(GPU)
    optimizer = build_optimizer([{"params": list(model.parameters())}], name="adamw", lr=3e-4)
    forward = torch.compile(model, dynamic=False) if compiled else model
    options = StepOptions(amp_dtype, look_every=50)
    trainer = create_trainer(model, optimizer, nn.CrossEntropyLoss(), GPU, options=options, forward=forward)
    seen = []
    if read:
        trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda e: seen.append(float(e.state.output["loss"])))
    trainer.run(list(batches()) if data is None else data, max_epochs=1)
    return torch.tensor(seen)


@pytest.fixture(scope="module")
def in_float32():
    set_precision(GPU, "off")
    yield losses()
    set_precision(GPU, "off")


@pytest.mark.parametrize(("amp", "apart"), [("tf32", 0.01), ("bf16", 0.05), ("fp16", 0.05)])
def test_losses_of_a_precision_follow_float32(in_float32, amp, apart):
    set_precision(GPU, amp)
    found = losses({"bf16": torch.bfloat16, "fp16": torch.float16}.get(amp))
    print(f"\n{amp}: largest difference of a loss {(found - in_float32).abs().max():.4f}, last loss {found[-1]:.4f}")
    assert in_float32[-8:].mean() < 0.5 * in_float32[:8].mean()  # something was learnt
    assert (found - in_float32).abs().mean() < apart
    assert abs(found[-8:].mean() - in_float32[-8:].mean()) < 2 * apart


def test_a_compiled_model_has_the_losses_of_the_model():
    set_precision(GPU, "off")
    expected, found = (losses(model="vit_micro_4", compiled=compiled) for compiled in (False, True))
    print(f"\ncompiled: largest difference of a loss {(found - expected).abs().max():.5f}")
    torch.testing.assert_close(found, expected, atol=0.02, rtol=0.02)


def test_a_step_waits_for_the_gpu_once_at_most():
    data = [(images.to(GPU), labels.to(GPU)) for images, labels in batches(12)]
    losses(torch.bfloat16, data=data)  # kernels are loaded
    with warnings.catch_warnings(record=True) as met:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            losses(torch.bfloat16, data=data, read=False)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    # The model is moved to the GPU before the first step, which is no step's wait.
    places = [Path(each.filename) for each in met if "synchroniz" in str(each.message)]
    waits = [f"{place.name}" for place in places if ROOT / "trainers" in place.parents]
    print(f"\nwaits in {len(data)} steps: {waits}")
    assert len(waits) <= len(data)


def started(*words, **variables):
    """A command in a process of its own: what must be set before CUDA starts is set there."""
    argv = [sys.executable, "main.py", *map(str, words)]
    return subprocess.Popen(
        argv, cwd=ROOT, env=os.environ | variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def weights_of(run):
    digest = hashlib.sha256()
    for name, value in read_checkpoint(best_of(run))["model"].items():
        digest.update(name.encode() + value.numpy().tobytes())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    """The folder of some runs, which train at the same time, and the exit code and the output of each."""
    folder = tmp_path_factory.mktemp("runs")
    convnet = TRAIN.replace("vit_tiny_16", "resnet18 --weights none")
    for name, content in {
        "ema": "ema-decay = 0.99",
        "equal": "deterministic = true",
        "fit": 'start-head = "fit"',
    }.items():
        (folder / f"{name}.toml").write_text(content)
    words = {
        "a": f"{TRAIN} --config {folder}/equal.toml",
        "b": f"{TRAIN} --config {folder}/equal.toml",
        "c": f"{convnet} --config {folder}/equal.toml",
        "d": f"{convnet} --config {folder}/equal.toml",
        "fp16": f"{TRAIN} --amp fp16 --accumulate 2 --augment strong --config {folder}/ema.toml",
        "compiled": f"{TRAIN} --compile".replace("vit_tiny_16", "vit_micro_4"),
        "probe": TRAIN.replace(
            "vit_tiny_16",
            f"vit_nano_8 --weights fashion_mnist --trainable head --augment none --config {folder}/fit.toml",
        ),
    }
    runs = {name: started(*line.split(), "--output-dir", folder, "--run-name", name) for name, line in words.items()}
    said = {name: run.communicate(timeout=200)[0] for name, run in runs.items()}
    return folder / "digits", {name: (run.returncode, said[name]) for name, run in runs.items()}


@pytest.mark.parametrize("name", ["a", "fp16", "compiled", "probe"])
def test_a_command_trains_in_this_way(commands, name):
    code, said = commands[1][name]
    assert code == 0, said
    print(f"\n{name}:", next(line for line in said.splitlines() if "epoch 1/1" in line))


def test_deterministic_runs_have_equal_bits(commands):
    folder, done = commands
    assert (done["a"][0], done["b"][0]) == (0, 0), done["b"][1]
    assert weights_of(folder / "a") == weights_of(folder / "b")
    assert load_config(folder / "a" / "config.json").train.device == "cuda"


def test_network_repeats_its_bits_or_says_it_cannot(commands):
    folder, done = commands
    code, said = done["c"]
    print(f"\nresnet18, deterministic: code {code}, {said.strip().splitlines()[-1]}")
    if code == 0:
        assert weights_of(folder / "c") == weights_of(folder / "d")
    else:
        assert code == 4
        assert "deterministic = true is not possible" in said


def test_run_of_a_gpu_goes_on_without_one(commands):
    run = commands[0] / "a"
    before, alone = read_result(RunFolder(run)).val, {"CUDA_VISIBLE_DEVICES": ""}
    evaluations = [started("evaluate", run, **alone), started("evaluate", run, "--split", "test", "--device", "cpu")]
    said = [each.communicate(timeout=150)[0] for each in evaluations]
    assert [each.returncode for each in evaluations] == [0, 0], said
    assert "to cpu" in said[0]
    print("\n" + said[0])
    taken_up = started("resume", run, "--epochs", "2", **alone)
    assert (taken_up.communicate(timeout=150)[0], taken_up.returncode)[1] == 0
    assert len(read_result(RunFolder(run)).epochs) == 3
    assert read_result(RunFolder(run)).val["loss"] < before["loss"] + 0.1


def test_pictures_a_second_of_the_loaders():
    assert all(found["dtype"] == "torch.float32" for found in gpu_throughput.loaders())


def test_images_a_second_beside_timm():
    pytest.importorskip("timm")
    set_precision(GPU, "bf16")
    print()
    gpu_throughput.eager()
    gpu_throughput.compiled()
