"""Identity of an image, whatever its place in a list: a hash of its contents, or of its path where reading every file
would hold up the start.

The split is drawn from these hashes, split.csv holds them, and runs are compared by them. A hash of contents survives
renamed files, classes and folders; a hash of a path is of the NFC form with `/` between parts, so that the same folder
copied to another system has the same hashes.
"""

from __future__ import annotations

import hashlib
import os
import time
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from common.errors import DataError
from common.files import NO_DOWNLOADS, replacing
from datasets.bundle import LEFT_OUT, Samples

CONTENT_HASH, PATH_HASH = "content_hash", "path_hash"
"""Kinds of hash, and the name of its column in split.csv. A path hash covers the size of a file, too."""
READ_UP_TO_BYTES, READ_UP_TO_FILES = 2**32, 500_000
"""A set of more bytes or files is known by its paths: reading it would take longer than some ten seconds."""
KEPT_FROM = 20_000
"""Files. The hashes of so many are kept below --data-root, so that only new or changed files are read again."""
SETTLED = 2e9
"""Nanoseconds. What changed so shortly before it was read may change again and keep its times: it is read again."""
DIGEST_BYTES = 8


def identified(samples: Samples, data_root: Path | None = None) -> Samples:
    """The samples with `digests` and `hash_kind` for every image that is not left out.

    Raises DataError: a file is gone or cannot be read.
    """
    if samples.digests is not None:
        return samples
    rows = np.flatnonzero(samples.splits != LEFT_OUT)
    sizes = file_sizes(samples, rows)
    kind = kind_of(samples, sizes)
    digests = np.zeros((len(samples), DIGEST_BYTES), np.uint8)
    if kind == PATH_HASH:
        known: Iterator[bytes] = (path_digest(samples.paths[row], size) for row, size in _pairs(rows, sizes))
        digests[rows] = as_rows(known, len(rows))
    elif samples.pixels is not None or samples.members is not None:
        digests[rows] = as_rows((content_digest(samples, row) for row in rows.tolist()), len(rows))
    else:
        digests[rows] = _of_files(samples, rows, data_root)
    return samples.replace(digests=digests, hash_kind=kind)


def kind_of(samples: Samples, sizes: np.ndarray) -> str:
    """CONTENT_HASH or PATH_HASH, for a set whose images in use have these sizes in bytes."""
    if samples.pixels is None and samples.root is None:
        return PATH_HASH  # a program's own images: their contents are not ours to read
    small = sizes.sum() <= READ_UP_TO_BYTES and len(sizes) <= READ_UP_TO_FILES
    return CONTENT_HASH if small or samples.pixels is not None else PATH_HASH


def content_digest(samples: Samples, row: int) -> bytes:
    """8 bytes: BLAKE2b of the pixels in memory, or of the file's bytes. Raises DataError: it cannot be read."""
    if samples.pixels is not None:
        return hashlib.blake2b(samples.pixels[row].tobytes(), digest_size=DIGEST_BYTES).digest()
    try:
        return hashlib.blake2b(samples.file(row).read_bytes(), digest_size=DIGEST_BYTES).digest()
    except OSError as error:
        raise DataError(f"cannot read image {samples.file(row)}: {error.strerror or error}") from error


def path_digest(path: str, size: int) -> bytes:
    """8 bytes: BLAKE2b of the path, NFC and with forward slashes, and of the file's size in bytes."""
    if not path.isascii():
        path = unicodedata.normalize("NFC", path)
    key = f"{path.replace(os.sep, '/')}\0{size}".encode("utf-8", "surrogateescape")
    return hashlib.blake2b(key, digest_size=DIGEST_BYTES).digest()


def as_rows(digests: Iterator[bytes], count: int) -> np.ndarray:
    """uint8 (count, 8)."""
    return np.frombuffer(b"".join(digests), np.uint8).reshape(count, DIGEST_BYTES)


def keys_of(digests: np.ndarray) -> np.ndarray:
    """uint64 (N,): digests (N, 8) as numbers."""
    return np.ascontiguousarray(digests).view(">u8").ravel().astype(np.uint64)


def file_sizes(samples: Samples, rows: np.ndarray) -> np.ndarray:
    """int64 (n,): bytes of each image; 0 for a program's own. Raises DataError: a file that is gone."""
    if samples.pixels is not None:
        return np.full(len(rows), samples.pixels[0].nbytes)
    if samples.sizes is not None:
        return samples.sizes[rows]
    if samples.root is None:
        return np.zeros(len(rows), np.int64)
    return _stats(samples, rows)[:, 0]


def _pairs(rows: np.ndarray, sizes: np.ndarray) -> Iterator[tuple[int, int]]:
    return zip(rows.tolist(), sizes.tolist(), strict=True)


def _stats(samples: Samples, rows: np.ndarray) -> np.ndarray:
    """int64 (n, 3): size, and the times of the last change of contents and of the file's entry, in nanoseconds."""
    stats = np.empty((len(rows), 3), np.int64)
    root = str(samples.root or "")
    for place, row in enumerate(rows.tolist()):
        file = os.path.join(root, samples.paths[row])  # a table may name absolute ones
        try:
            found = os.stat(file)
        except OSError as error:
            raise DataError(f"cannot read image {file}: {error.strerror}") from error
        stats[place] = found.st_size, found.st_mtime_ns, found.st_ctime_ns
    return stats


class _Known(NamedTuple):
    """Digests of files that were read before, sorted by the hash of their paths."""

    names: np.ndarray  # uint64 (n,): hash of the path
    stats: np.ndarray  # int64 (n, 3)
    digests: np.ndarray  # uint8 (n, 8)


_READ: dict[str, _Known] = {}
"""Root of a set -> what this process has read of it: one command prepares the same images several times."""


def _of_files(samples: Samples, rows: np.ndarray, data_root: Path | None) -> np.ndarray:
    """uint8 (n, 8): of the contents; a file is read unless it has the size and the times it had when it was read."""
    root = str((samples.root or Path()).absolute())
    mark = hashlib.blake2b(root.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
    place = None
    if data_root is not None and len(rows) >= KEPT_FROM:
        place = data_root / "index" / f"digests-{mark}.npz"
    known = _READ.get(root) or (_opened(place) if place else None)
    now, stats = time.time_ns(), _stats(samples, rows)
    names = keys_of(as_rows((path_digest(samples.paths[row], 0) for row in rows.tolist()), len(rows)))
    digests, unread = np.empty((len(rows), DIGEST_BYTES), np.uint8), np.ones(len(rows), bool)
    if known is not None and len(known.names):
        found = np.searchsorted(known.names, names).clip(max=len(known.names) - 1)
        same = (known.names[found] == names) & (known.stats[found] == stats).all(axis=1)
        digests[same], unread = known.digests[found[same]], ~same
    new = rows[unread]
    if len(new):
        digests[unread] = as_rows((content_digest(samples, row) for row in new.tolist()), len(new))
    stats[stats[:, 1:].max(axis=1, initial=0) > now - SETTLED] = -1  # equal to no later ones
    order = np.argsort(names, kind="stable")
    _READ[root] = _Known(names[order], stats[order], digests[order])
    if place is not None and len(new) and not NO_DOWNLOADS.get():
        _keep(place, _READ[root])
    return digests


def _opened(place: Path) -> _Known | None:
    """The digests kept by an earlier start; None where there are none, or not whole."""
    try:
        with open(place, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            known = _Known(*(file[name] for name in _Known._fields))
    except Exception:  # missing; or BadZipFile, ValueError, zlib.error, ...: whatever a damaged archive raises
        return None
    count = len(known.names)
    shapes = [column.shape for column in known] == [(count,), (count, 3), (count, DIGEST_BYTES)]
    return known if shapes and [str(column.dtype) for column in known] == ["uint64", "int64", "uint8"] else None


def _keep(place: Path, known: _Known) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with replacing(place) as aside:
            np.savez(aside, **known._asdict())
    except OSError:
        pass  # a disk that is full or cannot be written to: the files are read again at the next start
