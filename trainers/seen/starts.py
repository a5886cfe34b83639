"""Starts and teachers of a run, and the images that these have seen: read from the files that the options name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

import vit
from trainers.config import RunConfig
from trainers.seen.hashes import RECORD, Seen, from_text, from_tree
from trainers.storage.checkpoint_file import best_of, read_checkpoint
from vit import Blueprint
from vit.origins import ORIGINS

EMBEDDED = Path(vit.__file__).parent / "weights"
"""The files that come with the application."""


class Start(NamedTuple):
    """Weights or a teacher of one's own making."""

    name: str
    """Name that a person gave, and its purpose: `runs/photos/A (weights)`."""
    seen: Seen
    split: Path | None = None
    """The split.csv of the run that it is, or lies in."""


def starts_of(config: RunConfig, blueprint: Blueprint | None, model: nn.Module | None = None) -> tuple[Start, ...]:
    """The weights and the teacher of a run, and a `model` that a program gives it, as far as they are of this
    application's making: those that come with it and those of others do not say what they have seen. Raises
    WeightsError: a record that is damaged."""
    blueprints = () if blueprint is None else blueprint.networks or (blueprint,)
    named = [(each.config.weights, each.weights) for each in blueprints if each.weights is not None]
    weights = [start_in(file.extras, file.path, f"{name} (weights)") for name, file in named]
    teacher = config.train.teacher and teacher_start(config.train.teacher)
    origin = None if model is None else ORIGINS.get(model)
    given = origin and start_in(origin.extras, origin.path, f"{origin.path} (model)")
    return tuple(start for start in (*weights, given, teacher) if start)


def teacher_start(name: str) -> Start | None:
    path, named = Path(name).expanduser(), f"{name} (teacher)"
    if path.suffix == ".onnx":
        from vit.export import open_session  # a run without a teacher needs no exports

        return start_in(open_session(path).get_modelmeta().custom_metadata_map, path, named)
    if (path / "checkpoints").is_dir():
        best = best_of(path)
        return start_in(read_checkpoint(best), best, named)
    return None


def start_in(content: Mapping[str, Any], file: Path, name: str) -> Start | None:
    """The start that a file holds, from what stands beside its tensors; None where it is not of our making."""
    if not {"class_names", "config"} <= content.keys() or file.parent == EMBEDDED:
        return None
    return Start(name, seen_by(content, file), split_beside(file))


def seen_by(content: Mapping[str, Any], file: Path) -> Seen:
    """Return what a model of ours has seen; of one without a record nothing is known."""
    record = content.get(RECORD)
    if not record:
        return Seen(complete=False)
    return from_text(record, file) if isinstance(record, str) else from_tree(record, file)


def split_beside(file: Path) -> Path | None:
    """The split.csv of the run that a file of weights lies in."""
    table = file.parent.parent / "split.csv"
    return table if table.is_file() and (table.parent / "config.json").is_file() else None
