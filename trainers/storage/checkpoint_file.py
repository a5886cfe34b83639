"""Checkpoints that cannot be half there: written aside, flushed, renamed once with their hash in the name, then pruned.

They are safetensors files, which hold tensors and JSON and nothing else.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from common.errors import CheckpointError, WeightsError
from common.files import commit_file, temporary_path
from vit.tensor_files import SEAL, read_tree, require_seal, write_tree

FORMAT_VERSION = 3
_NAME = re.compile(r"(?P<stem>step_(?P<step>\d+)|best)_(?P<hash>[0-9a-f]{8})\.safetensors")


SAID = {"format_version": int, "class_names": list, "image_spec": dict, "config": dict}
"""Entries of a checkpoint that are never empty."""


class StateValue:
    """Plain data in a checkpoint, in the form Ignite's `Checkpoint` asks of everything it saves."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> Any:
        return self.value


class CheckpointWriter:
    """Save handler for Ignite's `Checkpoint`.

    The stock one deletes the old file before it writes the new one, so a full disk leaves none. Here the order is:
    write aside, flush to disk, rename to `<stem>_<first 8 hex digits of its seal>.safetensors`, and only then prune to
    the `keep` newest of the same kind.
    """

    def __init__(self, folder: Path, *, keep: int) -> None:
        self.folder, self.keep = folder, keep

    def __call__(self, checkpoint: Mapping, filename: str, metadata: Mapping | None = None) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        stem = Path(filename).stem
        aside = temporary_path(self.folder / stem)
        try:
            with open(aside, "wb") as file:
                digest = write_tree(file, checkpoint)
            final = self.folder / f"{stem}_{digest[:8]}.safetensors"
            if final.is_dir():  # no checkpoint, so somebody else's
                final.rename(final.with_name(f"not_{final.name}"))
            commit_file(aside, final)
        except OSError as error:
            raise OSError(f"checkpoint {stem} could not be written to {self.folder}: {error}") from error
        finally:
            aside.unlink(missing_ok=True)
        self.prune(final)

    def prune(self, newest: Path) -> None:
        """Remove all but the `keep` newest files of the kind of `newest`, which was just written."""
        kind = newest.name.split("_")[0]
        others = [path for path in checkpoints(self.folder, kind) if path != newest]
        killed = self.folder.glob(".*.tmp")  # writers before this one, on whatever machine: there is one at a time
        for path in (*others[max(0, self.keep - 1) :], *killed):
            path.unlink(missing_ok=True)


def checkpoints(folder: Path, kind: str) -> list[Path]:
    """The checkpoints of a kind (`step` or `best`) in a folder, newest first."""
    return [path for path in named_like_checkpoints(folder, kind) if path.is_file()]


def best_of(run_dir: Path) -> Path:
    """The checkpoint of a run's best epoch. Raises CheckpointError: there is none."""
    for path in checkpoints(Path(run_dir) / "checkpoints", "best"):
        return path
    raise CheckpointError(f"{run_dir}/checkpoints has no best_*, which holds the weights of the best epoch")


def named_like_checkpoints(folder: Path, kind: str) -> list[Path]:
    """List checkpoints with whatever else has the name of one: a folder, a pipe, a link to nothing."""

    def age(path: Path) -> tuple[int, float]:
        match = _NAME.fullmatch(path.name)
        assert match is not None
        return int(match["step"] or 0), path.lstat().st_mtime

    return sorted((path for path in folder.glob(f"{kind}_*") if _NAME.fullmatch(path.name)), key=age, reverse=True)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Load a checkpoint with all weights of its model, after checking it against the hash in its name. Raises
    CheckpointError: damaged, not ours, or of another format."""
    try:
        data = read_tree(path)
        require_whole(path, data.pop(SEAL, ""))
    except WeightsError as error:
        raise CheckpointError(f"checkpoint {error}") from error
    if not isinstance(data, dict) or not isinstance(data.get("model"), dict) or "format_version" not in data:
        raise CheckpointError(f"{path} is not a checkpoint of this application: it has no 'model' and 'format_version'")
    for name, kind in SAID.items():
        value = data.get(name, kind)
        if value is not kind and not (value and isinstance(value, kind)):
            raise CheckpointError(f"{path} is damaged: its {name} is {value!r:.100}")
    if not all(isinstance(name, str) for name in data.get("class_names", ())):
        raise CheckpointError(f"{path} is damaged: not all of its class_names are text")
    require_format(path, data["format_version"])
    return data


def require_format(path: Path, found: int) -> None:
    """Raise CheckpointError where a file has another format than this version of the application writes."""
    if found != FORMAT_VERSION:
        raise CheckpointError(
            f"{path} was written by {'an earlier' if found < FORMAT_VERSION else 'a later'} version of this application"
            f" (format {found}; this one reads format {FORMAT_VERSION}): open it with that version, or train anew"
        )


def refuse_earlier_mixture(path: Path, model: Any) -> None:
    """Raise CheckpointError where the options of a model name a mixture as format 2 did, before it was a list."""
    if isinstance(model, Mapping) and str(model.get("name")).startswith("mix:"):
        require_format(path, 2)


def require_whole(path: Path, digest: str | None = None) -> None:
    """Raise CheckpointError where a path is no file, or its name holds another hash than that of its bytes, `digest`
    where it is known."""
    if os.path.lexists(path) and not path.is_file():
        raise CheckpointError(f"{path} is no file, so it is no checkpoint")
    match = _NAME.fullmatch(path.name)
    if match is not None and digest is None:
        with open(path, "rb") as file:
            try:
                digest = require_seal(path) or hashlib.file_digest(file, "sha256").hexdigest()
            except WeightsError as error:
                raise CheckpointError(f"checkpoint {error}") from error
    if match is not None and digest and digest[:8] != match["hash"]:
        raise CheckpointError(f"checkpoint {path} is damaged: its name says {match['hash']}, its bytes {digest[:8]}")


def has_best(run_dir: Path) -> bool:
    """Return whether a run has the weights of a best epoch, and they are whole."""
    with suppress(CheckpointError):
        require_whole(best_of(run_dir))
        return True
    return False
