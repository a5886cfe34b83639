"""What a run leaves to others: its best model, its scores and its history, read back from its files."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from datasets.text import read_rows
from trainers.checkpoint import best_of, read_checkpoint
from trainers.config import from_dict
from trainers.errors import CheckpointError, fitting
from trainers.metrics import SCALARS
from trainers.record import RunResult
from trainers.run_directory import as_data, read_json
from vit import ImageSpec, ModelConfig, build_model


def load(run: Path) -> tuple[nn.Module, ImageSpec, tuple[str, ...]]:
    """The best model of a run on the CPU in evaluation mode, its preprocessing and its class names. Needs no data.
    Raises CheckpointError: the file is damaged or no checkpoint, or there is none yet."""
    model, spec, class_names, _ = open_best(best_of(run))
    return model, spec, class_names


def open_best(path: Path) -> tuple[nn.Module, ImageSpec, tuple[str, ...], ModelConfig]:
    """The same of a checkpoint, with the options that built the model."""
    checkpoint = read_checkpoint(path)
    with fitting(path), as_data():
        # No more than the model's options: those of data and training may have changed their names since.
        config = from_dict(ModelConfig, checkpoint["config"]["model"])
        spec = from_dict(ImageSpec, checkpoint["image_spec"])
        classes = len(checkpoint["class_names"])
        plain: dict[str, Any] = {"weights": "none", "weights_source": None, "trainable": "all"}
        build = partial(build_model, config, num_classes=classes, **plain)
        with torch.device("meta"):  # shapes without numbers, which may be too many
            require_shapes(build(), checkpoint["model"])
        if config.image_size not in (None, spec.image_size):
            raise ValueError(f"its images have {spec.image_size} pixels, its model takes {config.image_size}")
        model = build()
        model.load_state_dict(checkpoint["model"])
    return model.eval(), spec, tuple(checkpoint["class_names"]), config


def require_shapes(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in model.state_dict().items():
        if name not in tensors or tensors[name].shape != tensor.shape:
            there = [*tensors[name].shape] if name in tensors else "not there"
            raise ValueError(f"{name} is {there}, of the model that it names {[*tensor.shape]}")


def read_result(run_dir: Path) -> RunResult:
    """What a finished run found, from its files. Raises CheckpointError: the run did not finish, or has lost what it
    found."""
    summary = read_json(run_dir / "summary.json", status=str)
    if summary["status"] != "finished":
        raise CheckpointError(f"run {run_dir} is {summary['status']}: it has no result yet")
    best_of(run_dir)
    with fitting(run_dir / "summary.json"):
        history, best = read_history(run_dir), summary["best"]["epoch"]
        if best >= len(history):
            raise CheckpointError(
                f"{run_dir}/metrics.csv has no row for epoch {best}, which is the best: it was cut short"
            )
        test = summary["test"] and {name: value for name, value in summary["test"].items() if name != "n"}
        val = {name: history[best][f"val_{name}"] for name in SCALARS if f"val_{name}" in history[best]}
        return RunResult(run_dir, best, val, test, history)


def read_history(run_dir: Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics.csv, one per epoch: numbers, None where a cell is empty."""
    path = run_dir / "metrics.csv"
    try:
        return [
            {name: float(text) if text else None for name, text in row.items()} for row in read_rows(path, ("epoch",))
        ]
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
