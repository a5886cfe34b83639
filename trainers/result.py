"""What a run leaves to others: its best model, its scores and its history, read back from its files."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from trainers.checkpoint import checkpoints, read_checkpoint
from trainers.config import from_dict
from trainers.errors import CheckpointError
from trainers.metrics import SCALARS
from trainers.run_directory import as_data, read_json
from vit import ImageSpec, ModelConfig, build_model
from vit.errors import MissingPackage


@dataclass(frozen=True)
class RunResult:
    """What a run found. Metrics are fractions; `val` is the best epoch's, `test` None where there is no such split."""

    run_dir: Path
    best_epoch: int
    val: dict[str, float]
    test: dict[str, float] | None
    history: list[dict[str, Any]]


def load(run: Path) -> tuple[nn.Module, ImageSpec, tuple[str, ...]]:
    """The best model of a run on the CPU in evaluation mode, its preprocessing and its class names. Needs no data.

    Raises:
        CheckpointError: the file is damaged or no checkpoint. FileNotFoundError: the run has no best checkpoint yet.
    """
    paths = checkpoints(Path(run) / "checkpoints", "best")
    if not paths:
        raise FileNotFoundError(f"{run}/checkpoints has no best_*: the run has not finished an epoch yet")
    checkpoint = read_checkpoint(paths[0])
    config = from_dict(ModelConfig, checkpoint["config"]["model"])  # no more: other options may come and go
    try:
        with as_data():
            model = build_model(config, num_classes=len(checkpoint["class_names"]), weights="none", weights_source=None)
    except MissingPackage:
        raise
    except ValueError as error:
        raise CheckpointError(f"{paths[0]} names a model that cannot be built: {error}") from error
    model.load_state_dict(checkpoint["model"])
    spec = from_dict(ImageSpec, checkpoint["image_spec"])
    return model.eval(), spec, tuple(checkpoint["class_names"])


def read_result(run_dir: Path) -> RunResult:
    """What a finished run found, from its files. Raises CheckpointError: the run did not finish, or has lost what it
    found."""
    summary = read_json(run_dir / "summary.json")
    if summary["status"] != "finished":
        raise CheckpointError(f"run {run_dir} is {summary['status']}: it has no result yet")
    if not checkpoints(run_dir / "checkpoints", "best"):
        raise CheckpointError(f"{run_dir}/checkpoints has no best_*: the weights of its best epoch are gone")
    history, best = read_history(run_dir), summary["best"]["epoch"]
    if best >= len(history):
        raise CheckpointError(f"{run_dir}/metrics.csv has no row for epoch {best}, which is the best: it was cut short")
    test = summary["test"] and {name: value for name, value in summary["test"].items() if name != "n"}
    val = {name: history[best][f"val_{name}"] for name in SCALARS if f"val_{name}" in history[best]}
    return RunResult(run_dir, best, val, test, history)


def read_history(run_dir: Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics.csv, one per epoch: numbers, None where a cell is empty."""
    with open(run_dir / "metrics.csv", newline="", encoding="utf-8") as file:
        return [{name: float(text) if text else None for name, text in row.items()} for row in csv.DictReader(file)]
