"""Cache on disk: arrays that are costly to compute, kept below --data-root for later starts.

One file per kind and key, `<data_root>/index/<kind>-<hash of key>.npz`, is replaced when its stamps differ, and ignored
when it is damaged. Nothing is kept without a `data_root`, nor where the disk takes no file.
"""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from common.files import NO_DOWNLOADS, replacing

Arrays = dict[str, np.ndarray]


def remembered(kind: str, key: str, stamps: bytes, compute: Callable[[], Arrays], *, data_root: Path | None) -> Arrays:
    """Return the arrays of `compute()`, or those that an earlier start kept with the same stamps."""
    arrays = recall(kind, key, stamps, data_root=data_root)
    if arrays is None:
        remember(kind, key, stamps, arrays := compute(), data_root=data_root)
    return arrays


def recall(kind: str, key: str, stamps: bytes, *, data_root: Path | None) -> Arrays | None:
    """Return the arrays that were kept with these stamps; None where there are none."""
    if data_root is None:
        return None
    # A file may be missing, or damaged in any way: BadZipFile, ValueError, KeyError, zlib.error, ...
    with suppress(Exception), open(_place(data_root, kind, key), "rb") as opened, np.load(opened) as file:
        if file["stamps"].tobytes() == stamps:
            return {array: file[array] for array in file.files if array != "stamps"}
    return None


def remember(kind: str, key: str, stamps: bytes, arrays: Arrays, *, data_root: Path | None) -> None:
    """Keep arrays for later starts, unless a run is opened that may come from a stranger."""
    if data_root is None or NO_DOWNLOADS.get():
        return
    place = _place(data_root, kind, key)
    with suppress(OSError):  # a full or read-only disk
        place.parent.mkdir(parents=True, exist_ok=True)
        with replacing(place) as aside:
            np.savez(aside, stamps=np.frombuffer(stamps, np.uint8), **arrays)  # type: ignore[arg-type]


def _place(data_root: Path, kind: str, key: str) -> Path:
    name = hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
    return data_root / "index" / f"{kind}-{name}.npz"
