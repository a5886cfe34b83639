"""A run directory as training leaves it, made in a moment: random weights, a head that has opinions, three classes."""

from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from killed_runs import FEW
from PIL import Image
from torch import nn
from torch.optim.swa_utils import update_bn

import main
from common.image_spec import ImageSpec
from datasets.config import DataConfig
from trainers.config import OutputConfig, RunConfig, TrainConfig, to_dict
from trainers.storage.checkpoint_file import FORMAT_VERSION, write_checkpoint
from trainers.storage.run_folder import RunFolder
from vit.config import VIT_SHAPES, ModelConfig
from vit.factory import Blueprint, build_model, image_spec

CLASSES = ("ant", "bee", "cat")
META = {
    "started": "2026-11-28T05:00:00.000000+00:00", "argv": [], "requested": {}, "data_fingerprint": "0",
    "class_names": [*CLASSES], "threads": 1, "versions": {"torch": "2"},
}  # fmt: skip
"""Least that the meta.json of a run says."""
SUMMARY = {
    "status": "finished", "epochs": 1, "seconds": 1.5, "images": {"train": 6, "val": 3}, "images_seen": 6,
    "parameters": 1000, "trainable": 900, "best": {"epoch": 1, "accuracy": 0.5, "loss": 1.0}, "test": None,
}  # fmt: skip
"""Summary.json of a finished run."""


def call(capsys, *argv) -> tuple[int, str, str]:
    """The exit code of a command, what it printed, and what it said on stderr."""
    code = main.main([str(word) for word in argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def refused(capsys, *words) -> str:
    """The line of a command that ends with exit code 2 or 3; there is no traceback."""
    code, _, err = call(capsys, *words)
    *_, line = err.splitlines() or [""]
    assert (code in (2, 3), line.startswith("error: ")) == (True, True), err
    assert len(line) < 600
    return line


def few_digits(**options) -> DataConfig:
    return DataConfig(**FEW | {"workers": 0} | options)


def digits_run(folder: Path, *, model: dict | None = None, data: dict | None = None, output: dict | None = None,
               **train) -> RunConfig:  # fmt: skip
    """An epoch of a small ViT on the digits, but for the options of its sections."""
    return RunConfig(
        model=ModelConfig(**{"name": "vit_micro_2"} | (model or {})),
        data=few_digits(**data or {}),
        train=TrainConfig(**{"epochs": 1, "device": "cpu"} | train),
        output=OutputConfig(**{"output_dir": folder, "tb": "scalars"} | (output or {})),
    )


def tiny_run(folder: Path, **output) -> RunConfig:
    """Two epochs of two steps."""
    data = {"labels_per_class": 3, "batch_size": 15}
    return digits_run(folder, data=data, output={"run_name": "r"} | output, epochs=2, log_every=1)


def make_run(folder: Path, *, classes: tuple[str, ...] = CLASSES, seed: int = 0, **model_options) -> Path:
    """`model_options`: fields of ModelConfig, by default vit_micro_4 at 32 px."""
    options = {"name": "vit_micro_4", "weights": "none"} | model_options
    config = RunConfig(
        model=Blueprint(ModelConfig(**options)).resolved,
        data=DataConfig(source=str(folder / "gone"), workers=0),
        train=TrainConfig(epochs=1, device="cpu", amp="off"),
        output=OutputConfig(output_dir=folder.parent),
    )
    torch.manual_seed(seed)  # for what a test may draw, too
    with torch.random.fork_rng(devices=[]):
        make = opinionated if config.model.name in VIT_SHAPES else opinionated.__wrapped__  # others are patched
        spec, state = make(config.model, len(classes), seed)
    folder.mkdir(parents=True)
    RunFolder(folder).write_config(config)
    content = {
        "model": state,
        "epoch": 1,
        "format_version": FORMAT_VERSION,
        "class_names": list(classes),
        "image_spec": to_dict(spec),
        "config": to_dict(config),
        "torch_version": str(torch.__version__),
    }
    write_checkpoint(folder / "checkpoints" / "best.safetensors", content)
    return folder


@lru_cache(maxsize=8)
def opinionated(config: ModelConfig, classes: int, seed: int) -> tuple[ImageSpec, dict[str, torch.Tensor]]:
    """The preprocessing and the weights of such a run; for reading only."""
    torch.manual_seed(seed)
    model = build_model(config, num_classes=classes)
    stir(model)
    spec = image_spec(config)
    images = torch.randn(8, spec.in_channels, spec.image_size, spec.image_size)
    update_bn([images], model)  # where there are batch norms: untrained, a ResNet's activations grow to thousands
    return spec, model.state_dict()


@torch.no_grad()
def stir(model: nn.Module) -> None:
    """Away from the initial weights, whose head is zero: logits differ between images and classes."""
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.05)


def photo(path: Path, *, seed: int = 0, size: tuple[int, int] = (40, 36), mode: str = "RGB", **options) -> Path:
    """A smooth random picture, so that JPEG keeps most of it."""
    generator = np.random.default_rng(seed)
    coarse = Image.fromarray(generator.integers(0, 256, (5, 5, 3), dtype=np.uint8))
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse.resize(size, Image.Resampling.BICUBIC).convert(mode).save(path, **options)
    return path


def labelled_photos(root: Path, *, classes: tuple[str, ...] = CLASSES, n: int = 4) -> Path:
    for index, name in enumerate(classes):
        for number in range(n):
            photo(root / name / f"{number}.png", seed=100 * index + number)
    return root
