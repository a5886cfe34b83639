"""Find a run, and read back what it leaves to others: its best model, its scores and its history."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from common.errors import CheckpointError, report_damage
from common.files import NO_DOWNLOADS
from common.shell import command
from common.tables import read_rows
from common.text import shorten_list
from trainers.config import RunConfig, from_dict, load_config
from trainers.engine.metrics import SCALARS
from trainers.statistics import Design
from trainers.storage.checkpoint_file import best_of, read_checkpoint
from trainers.storage.places import with_present_places
from trainers.storage.run_folder import are_scores, moment, now, read_if_whole, read_json, write_json
from trainers.storage.run_result import RunResult
from vit import ImageSpec, ModelConfig, build_model
from vit.config import HUB_OFFLINE
from vit.tensor_files import SEAL

WHOLE = ("epoch", "step", "val_accuracy", "val_loss")
"""Columns of metrics.csv that every row fills."""


def find_run(name: str, output_dir: Path | str = "runs") -> Path:
    """Return the run directory that a person named: a path, or `latest` below `output_dir`.

    The latest run is the one that was started last, or that the last command kept of several.
    Raises FileNotFoundError: no such run. CheckpointError: a link in it leads elsewhere.
    """
    output_dir = Path(output_dir)
    if name == "latest":
        tried = output_dir / "tuning"  # runs that only tried a rate lie deeper in it than those of a set of its name
        runs = [run for run in runs_below(output_dir) if run.parent == tried or tried not in run.parents]
        if not runs:
            raise FileNotFoundError(f"no run in {output_dir}/: `{command('train')}` makes one")
        return max(runs, key=moment)
    folder = Path(name)
    if not (folder / "config.json").is_file():
        what = "has no config.json" if folder.is_dir() else "is a file" if folder.exists() else "does not exist"
        held = sorted(run.name for run in runs_below(folder)) if folder.is_dir() else []
        choice = f"one of its runs: {shorten_list(held)}" if held else f"a folder below {output_dir}/, or latest"
        raise FileNotFoundError(f"{folder} is not a run directory: it {what}; name {choice}")
    refuse_links_out(folder)
    return folder


def runs_below(folder: Path) -> Iterator[Path]:
    """Yield the run directories in a folder, at whatever depth their names put them; hidden ones are unfinished."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name.startswith(".") or not path.is_dir():
            continue
        if (path / "config.json").is_file():
            yield path
        else:
            yield from runs_below(path)


def open_as_latest(run_dir: Path) -> None:
    """Let `latest` mean this run, the one that a command kept of several."""
    path = run_dir / "meta.json"
    write_json(path, read_json(path) | {"kept": now()})


def refuse_links_out(run_dir: Path) -> None:
    """Raise CheckpointError for a link that leads out of a run, and for what is neither a file nor a folder.

    A run may be a stranger's, and its files are read and replaced."""
    home = os.path.realpath(run_dir)
    for folder, folders, files in os.walk(run_dir):
        for path in (Path(folder, name) for name in (*folders, *files)):
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(home):
                raise CheckpointError(f"{path} is a link that leads out of the run: put what it names in its place")
            if not (path.is_file() or path.is_dir()) and os.path.lexists(path):  # else it went meanwhile
                raise CheckpointError(f"{path} is neither a file nor a folder: remove it")


def unfinished(run_dir: Path) -> str:
    """Say that a run ended before its last planned epoch, and how it goes on; empty where it did not."""
    summary = read_if_whole(run_dir / "summary.json", status=str, epochs=int) or {"status": "finished"}
    if summary["status"] == "finished":
        return ""
    ended = "is running or was killed" if summary["status"] == "running" else f"was {summary['status']}"
    epochs = f"{summary['epochs']} of {summary.get('planned_epochs')}"
    return f"{run_dir} {ended} after epoch {epochs}; {command('resume', run_dir)} goes on"


@contextmanager
def untrusted_run(*, may_fetch_images: bool = False) -> Iterator[None]:
    """Forbid network, downloads and unpacking in the block: the files of a run may be a stranger's.

    `may_fetch_images`: images may be fetched, as a person named the folder for them.
    """
    limits = (HUB_OFFLINE,) if may_fetch_images else (NO_DOWNLOADS, HUB_OFFLINE)
    tokens = [(limit, limit.set(True)) for limit in limits]
    try:
        yield
    finally:
        for limit, token in tokens:
            limit.reset(token)


def read_run_config(folder: Path) -> RunConfig:
    """Read the options of a run, with its files where they are now (see `trainers.storage.places`).

    Raises CheckpointError: its config.json is damaged. OptionError: it holds an option that there is not.
    """
    return with_present_places(read_given_config(folder), folder)


def read_given_config(folder: Path) -> RunConfig:
    """Read the options of a run as its config.json holds them, from wherever it was started."""
    path = folder / "config.json"
    read_json(path)
    return load_config(path)


def load(run: Path | str) -> tuple[nn.Module, ImageSpec, tuple[str, ...]]:
    """Load the best model of a run on the CPU in evaluation mode, its preprocessing and its class names. Needs no data.

    Raises CheckpointError: the file is damaged or no checkpoint, or there is none yet.
    """
    return open_best(run)[:3]


class BestModel(NamedTuple):
    """Best model of a run on the CPU in evaluation mode, and what its checkpoint says of it."""

    model: nn.Module
    spec: ImageSpec
    class_names: tuple[str, ...]
    config: ModelConfig
    """The options that built the model."""
    epoch: int
    seal: str
    """SHA-256 of its file, under which results on its weights are kept."""
    amp: str
    """Precision that it was trained in, a value of `--amp`."""


def open_best(run_dir: Path | str) -> BestModel:
    """Build the best model of a run. Raises CheckpointError as `load` does."""
    path = best_of(Path(run_dir))
    checkpoint = read_checkpoint(path)
    with report_damage(path), untrusted_run():
        # No more than the model's options: those of data and training may have changed their names since.
        config = from_dict(ModelConfig, checkpoint["config"]["model"])
        spec = from_dict(ImageSpec, checkpoint["image_spec"])
        classes = len(checkpoint["class_names"])
        plain: dict[str, Any] = {"weights": "none", "trainable": "all"}
        build = partial(build_model, config, num_classes=classes, **plain)
        with torch.device("meta"):  # shapes without numbers, which may be too many
            require_shapes(build(), checkpoint["model"])
        require_same_side(config, spec)
        model = build()
        model.load_state_dict(checkpoint["model"])
        names, epoch = tuple(checkpoint["class_names"]), int(checkpoint["epoch"])
        amp = str(checkpoint["config"]["train"].get("amp"))
    return BestModel(model.eval(), spec, names, config, epoch, checkpoint[SEAL], amp)


def require_same_side(config: ModelConfig, spec: ImageSpec) -> None:
    if config.image_size not in (None, spec.image_size):
        raise ValueError(f"its images have {spec.image_size} pixels, its model takes {config.image_size}")


def require_shapes(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in model.state_dict().items():
        if name not in tensors or tensors[name].shape != tensor.shape:
            there = [*tensors[name].shape] if name in tensors else "not there"
            raise ValueError(f"{name} is {there}, of the model that it names {[*tensor.shape]}")


def read_result(run_dir: Path | str) -> RunResult:
    """Read the result of a finished run from its files.

    Raises CheckpointError: the run did not finish, or has lost what it found."""
    run_dir = Path(run_dir)
    summary = read_json(run_dir / "summary.json", status=str)
    if summary["status"] != "finished":
        raise CheckpointError(f"run {run_dir} is {summary['status']}: it has no result yet")
    best_of(run_dir)
    with report_damage(run_dir / "summary.json"):
        history, best = read_history(run_dir), summary["best"]["epoch"]
        val = validated(run_dir, history, best)
        test = summary["test"] and {name: value for name, value in summary["test"].items() if name != "n"}
        designs = {split: Design(**fields) for split, fields in summary.get("groups", {}).items()}
        sizes, config = summary.get("images", {}), read_run_config(run_dir)
        return RunResult(run_dir, best, val, test, history, sizes, designs, config=config)


def validated(run_dir: Path, history: list[dict[str, Any]], epoch: int) -> dict[str, float]:
    """Return the validation scores of an epoch. Raises CheckpointError: metrics.csv has lost them."""
    row: dict[str, Any] = next((row for row in history if row["epoch"] == epoch), {})
    val = {name: row[f"val_{name}"] for name in SCALARS if row.get(f"val_{name}") is not None}
    if not are_scores(val):
        raise CheckpointError(
            f"{run_dir}/metrics.csv has no row of scores for epoch {epoch}, which is the best: it was cut short"
        )
    return val


def read_history(run_dir: Path) -> list[dict[str, Any]]:
    """Read the rows of a run's metrics.csv, one per epoch: numbers, None where a cell is empty."""
    path = run_dir / "metrics.csv"
    try:
        rows = read_rows(path, WHOLE)
        if not rows or any(not row[name] for row in rows for name in WHOLE):
            raise ValueError("a row or a cell is missing")
        return [{name: float(text) if text else None for name, text in row.items()} for row in rows]
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
