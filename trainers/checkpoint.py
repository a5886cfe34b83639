"""Checkpoints that cannot be half there: written aside, flushed, renamed once with their hash in the name, then pruned.

They hold tensors and plain data only and are always read with `weights_only=True`: opening one runs no code.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from datasets.files import aside_of, put
from trainers.errors import CheckpointError

FORMAT_VERSION = 1
_NAME = re.compile(r"(?P<stem>step_(?P<step>\d+)|best|backbone)_(?P<hash>[0-9a-f]{8})\.pt")


class Fact:
    """Plain data in a checkpoint, in the form Ignite's `Checkpoint` asks of everything it saves."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> Any:
        return self.value


class CheckpointWriter:
    """Save handler for Ignite's `Checkpoint`.

    The stock one deletes the old file before it writes the new one, so a full disk leaves none. Here the order is:
    write aside, flush to disk, rename to `<stem>_<first 8 hex digits of the SHA-256>.pt`, and only then prune to the
    `keep` newest of the same kind.
    """

    def __init__(self, folder: Path, *, keep: int) -> None:
        self.folder, self.keep = folder, keep

    def __call__(self, checkpoint: Mapping, filename: str, metadata: Mapping | None = None) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        stem = filename.removesuffix(".pt")
        aside = aside_of(self.folder / stem)
        try:
            with open(aside, "wb") as file:
                torch.save(dict(checkpoint), file)  # not to a path: its name would be in the bytes
            final = self.folder / f"{stem}_{_hash(aside)}.pt"
            put(aside, final)
        except (OSError, RuntimeError) as error:  # of a full disk torch makes a RuntimeError about its zip writer
            reason = error.__context__ or error
            raise OSError(f"checkpoint {stem} could not be written to {self.folder}: {reason}") from error
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
    """The checkpoints of a kind (`step`, `best` or `backbone`) in a folder, newest first."""
    return [path for path in named_like_checkpoints(folder, kind) if path.is_file()]


def named_like_checkpoints(folder: Path, kind: str) -> list[Path]:
    """The same, with whatever else has the name of one: a folder, a pipe, a link to nothing."""

    def age(path: Path) -> tuple[int, float]:
        match = _NAME.fullmatch(path.name)
        assert match is not None
        return int(match["step"] or 0), path.lstat().st_mtime

    return sorted((path for path in folder.glob(f"{kind}_*.pt") if _NAME.fullmatch(path.name)), key=age, reverse=True)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Load a checkpoint with all weights of its model, after checking it against the hash in its name.

    Raises:
        CheckpointError: damaged, not ours, or of a later format.
    """
    data = read_file(path)
    # While a probe on cached features trains, its files hold the head alone; older runs kept the rest in best_*.pt.
    if data.get("head_only") or data.get("frozen_in_best"):
        beside = [*checkpoints(path.parent, "backbone"), *checkpoints(path.parent, "best")]
        rest = next((other for other in beside if other != path), None)
        if rest is None:
            raise CheckpointError(f"{path.parent} has no backbone_*.pt, which holds the frozen weights of {path.name}")
        data["model"] = read_file(rest)["model"] | data["model"]
    return data


def read_file(path: Path) -> dict[str, Any]:
    """What one file holds: of a probe that still trains, the head alone. Raises as `read_checkpoint` does."""
    require_whole(path)
    try:
        data = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:  # bytes that are no checkpoint provoke many kinds; none of them ran code
        raise CheckpointError(f"{path} is not a checkpoint: {type(error).__name__} on opening it") from error
    if not isinstance(data, dict) or "format_version" not in data or "model" not in data:
        raise CheckpointError(f"{path} is not a checkpoint of this application: it has no 'model' and 'format_version'")
    if data["format_version"] > FORMAT_VERSION:
        raise CheckpointError(
            f"checkpoint {path} has format {data['format_version']}; this version reads up to {FORMAT_VERSION}"
        )
    return data


def require_whole(path: Path) -> None:
    """Raise CheckpointError where a path is no file, or its bytes are not those of which its name holds the hash."""
    if os.path.lexists(path) and not path.is_file():
        raise CheckpointError(f"{path} is no file, so it is no checkpoint")
    match = _NAME.fullmatch(path.name)
    if match is not None:
        digest = _hash(path)
        if digest != match["hash"]:
            raise CheckpointError(f"checkpoint {path} is damaged: its name says {match['hash']}, its bytes {digest}")


def has_best(folder: Path) -> bool:
    """Whether a folder has the weights of a best epoch, and they are whole."""
    with suppress(CheckpointError):
        for path in checkpoints(folder, "best")[:1]:
            require_whole(path)
            return True
    return False


def _hash(path: Path) -> str:
    """The first 8 hex digits of a file's SHA-256."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:8]
