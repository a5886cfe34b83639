"""Cache on disk: arrays that are costly to compute, kept below --data-root for later starts."""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from common.files import NO_DOWNLOADS, replacing

KEPT_FROM = 256
"""Images. What is computed of fewer is computed anew at every start."""


def remembered(
    kind: str,
    key: str,
    stamps: bytes,
    compute: Callable[[], dict[str, np.ndarray]],
    *,
    data_root: Path | None,
) -> dict[str, np.ndarray]:
    """Return the arrays of `compute()`, or those that an earlier start kept with the same stamps.

    One file per kind and key, `<data_root>/index/<kind>-<hash of key>.npz`, is replaced when the stamps differ, and
    ignored when it is damaged. Nothing is kept without a `data_root`, nor where the disk takes no file.
    """
    if data_root is None:
        return compute()
    name = hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
    place = data_root / "index" / f"{kind}-{name}.npz"
    # A file may be missing, or damaged in any way: BadZipFile, ValueError, KeyError, zlib.error, ...
    with suppress(Exception), open(place, "rb") as opened, np.load(opened, allow_pickle=False) as file:
        if file["stamps"].tobytes() == stamps:
            return {array: file[array] for array in file.files if array != "stamps"}
    arrays = compute()
    if not NO_DOWNLOADS.get():
        with suppress(OSError):  # a full or read-only disk
            place.parent.mkdir(parents=True, exist_ok=True)
            with replacing(place) as aside:
                np.savez(aside, stamps=np.frombuffer(stamps, np.uint8), **arrays)  # type: ignore[arg-type]
    return arrays
