"""Checkpoints as files: safetensors, which hold tensors and JSON and nothing else, complete or not there at all.

`step_N` holds all that a run continues from after step N, `best` the weights of its best epoch.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from common.errors import CheckpointError, OptionError, WeightsError, report_damage
from common.files import replacing
from trainers.config import from_dict
from trainers.storage.run_folder import RunFolder, untrusted_run
from vit import ImageSpec, ModelConfig, build_model
from vit.tensor_files import SEAL, read_tree, require_finite, require_seal, write_tree

FORMAT_VERSION = 3
KINDS = {"model": dict, "format_version": int, "class_names": list, "image_spec": dict, "config": dict, SEAL: str}
"""Entries of a checkpoint, none of which is empty."""


def write_checkpoint(path: Path, content: Mapping[str, Any]) -> None:
    """Write a checkpoint in the place of an earlier one of its name.

    Raises OSError: that one is left as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as aside, open(aside, "wb") as file:
        write_tree(file, content)


def best_of(run_dir: Path | str) -> Path:
    """Return the checkpoint of a run's best epoch. Raises CheckpointError: there is none."""
    return RunFolder(Path(run_dir)).best


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint: all its model's weights, and its SHA-256 under SEAL.

    Raises CheckpointError: it is damaged, not of this application, of another format, or its weights are not finite.
    """
    try:
        data = read_tree(path)
        require_finite(path, data["model"] if isinstance(data.get("model"), Mapping) else {})
    except WeightsError as error:
        raise CheckpointError(f"checkpoint {error}") from error
    for name, kind in KINDS.items():
        if not (data.get(name) and isinstance(data[name], kind)):
            raise CheckpointError(
                f"{path} is not a whole checkpoint of this application: {name} is {data.get(name)!r:.100}"
            )
    if not all(isinstance(name, str) for name in data["class_names"]):
        raise CheckpointError(f"{path} is damaged: not all of its class_names are text")
    if (found := data["format_version"]) != FORMAT_VERSION:
        raise CheckpointError(
            f"{path} was written by another version of this application (format {found}; this one reads format"
            f" {FORMAT_VERSION}): open it with that version, or train anew"
        )
    return data


def read_best(run: RunFolder) -> dict[str, Any]:
    """Read the checkpoint of a run's best epoch.

    Raises CheckpointError: there is none, or it is of another run."""
    checkpoint, changes = read_checkpoint(run.best), ""
    with suppress(OptionError, CheckpointError, FileNotFoundError):  # options that nobody can read tell nothing
        changes = run.changed_since(run.config, checkpoint["config"])
    if changes:
        raise CheckpointError(f"{run.best} is of another run: {changes}")
    return checkpoint


def seal_of(path: Path) -> str:
    """Return the SHA-256 of a checkpoint's bytes, under which results on its weights are kept.

    Raises CheckpointError: the file says another, or none.
    """
    try:
        seal = require_seal(path)
    except (OSError, WeightsError) as error:
        raise CheckpointError(f"checkpoint {error}") from error
    if seal is None:
        raise CheckpointError(f"checkpoint {path} is damaged: its SHA-256 is gone")
    return seal


def load(run: Path | str) -> tuple[nn.Module, ImageSpec, tuple[str, ...]]:
    """Load the best model of a run, its preprocessing and its class names.

    The model is on the CPU in evaluation mode. Needs no data. Raises CheckpointError: the file is damaged or no
    checkpoint, or there is none yet.
    """
    return open_best(RunFolder(Path(run)))[:3]


class BestModel(NamedTuple):
    """Best model of a run, in evaluation mode, and what its checkpoint says.

    It is on the CPU."""

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


def open_best(run: RunFolder) -> BestModel:
    """Build the best model of a run. Raises CheckpointError as `load` does."""
    path, checkpoint = run.best, read_best(run)
    with report_damage(path), untrusted_run():
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
