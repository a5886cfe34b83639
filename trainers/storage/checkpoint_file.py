"""Checkpoints as files: safetensors, which hold tensors and JSON and nothing else, complete or not there at all.

`step_N` holds all that a run goes on from after step N, `best` the weights of its best epoch.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import CheckpointError, WeightsError
from common.files import replacing
from vit.tensor_files import SEAL, read_tree, require_finite, require_seal, write_tree

FORMAT_VERSION = 3
_NAME = re.compile(r"step_\d+|best")
KINDS = {"model": dict, "format_version": int, "class_names": list, "image_spec": dict, "config": dict, SEAL: str}
"""Entries of a checkpoint, none of which is empty."""


def write_checkpoint(path: Path, content: Mapping[str, Any]) -> None:
    """Write a checkpoint in the place of an earlier one of its name. Raises OSError: that one is left as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as aside, open(aside, "wb") as file:
        write_tree(file, content)


def checkpoints(folder: Path, kind: str) -> list[Path]:
    """List the checkpoints of a kind (`step` or `best`) in a folder, newest first."""
    found = [path for path in folder.glob(f"{kind}*.safetensors") if _NAME.fullmatch(path.stem) and path.is_file()]
    return sorted(found, key=lambda path: (len(path.stem), path.stem), reverse=True)  # the longer number is larger


def best_of(run_dir: Path) -> Path:
    """Return the checkpoint of a run's best epoch. Raises CheckpointError: there is none."""
    for path in checkpoints(Path(run_dir) / "checkpoints", "best"):
        return path
    raise CheckpointError(f"{run_dir}/checkpoints has no best.safetensors, the weights of the best epoch")


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint with all weights of its model, and the SHA-256 of its bytes under SEAL.

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
