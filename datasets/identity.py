"""A stable identity of each image: a hash of its contents or, of large sets, of its path and size.

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
from typing import TYPE_CHECKING

import numpy as np

from common.errors import DataError
from datasets.bundle import LEFT_OUT, Samples
from datasets.remembered import KEPT_FROM, remembered

if TYPE_CHECKING:
    from datasets.sources.shards import TarMember

CONTENT_HASH, PATH_HASH = "content_hash", "path_hash"
"""Kinds of hash, and the name of its column in split.csv. A path hash covers the size of a file, too."""
READ_UP_TO_BYTES, READ_UP_TO_FILES = 2**32, 500_000
"""A set of more bytes or files is known by its paths: reading it would take longer than some ten seconds."""
SETTLED = 2e9
"""Nanoseconds. What changed so shortly before it was read may change again and keep its times: it is not kept."""
DIGEST_BYTES = 8


def identified(samples: Samples, data_root: Path | None = None) -> Samples:
    """Return the samples with `digests` and `hash_kind` of every image that is not left out.

    Raises DataError: a file is gone or cannot be read.
    """
    if samples.digests is not None:
        return samples
    rows = np.flatnonzero(samples.splits != LEFT_OUT)
    of_files = samples.root is not None and samples.sizes is None and samples.pixels is None
    stats = _stats(samples, rows) if of_files else np.empty((0, 3), np.int64)
    sizes = stats[:, 0] if of_files else file_sizes(samples, rows)
    small = samples.root is not None and sizes.sum() <= READ_UP_TO_BYTES and len(rows) <= READ_UP_TO_FILES
    # A program's own images have no root: their contents are not ours to read.
    kind = CONTENT_HASH if small or samples.pixels is not None else PATH_HASH
    digests = np.zeros((len(samples), DIGEST_BYTES), np.uint8)
    if kind == PATH_HASH:
        pairs = zip(rows.tolist(), sizes.tolist(), strict=True)
        digests[rows] = as_rows((path_digest(samples.paths[row], size) for row, size in pairs), len(rows))
    else:
        settled = len(stats) >= KEPT_FROM and stats[:, 1:].max() < time.time_ns() - SETTLED
        digests[rows] = remembered(
            "digests",
            str((samples.root or Path()).absolute()),
            _stamp(samples, rows, stats),
            lambda: {"digests": as_rows((content_digest(samples, row) for row in rows.tolist()), len(rows))},
            data_root=data_root if settled else None,
        )["digests"]
    return samples.replace(digests=digests, hash_kind=kind)


def content_digest(samples: Samples, row: int) -> bytes:
    """Hash the pixels in memory, or the file's bytes, to 8 bytes (BLAKE2b). Raises DataError: it cannot be read."""
    if samples.pixels is not None:
        return hashlib.blake2b(samples.pixels[row].tobytes(), digest_size=DIGEST_BYTES).digest()
    return file_digest(samples.file(row))


def file_digest(file: Path | TarMember) -> bytes:
    """Hash the bytes of a file to 8 bytes (BLAKE2b). Raises DataError: it cannot be read."""
    try:
        return hashlib.blake2b(file.read_bytes(), digest_size=DIGEST_BYTES).digest()
    except OSError as error:
        raise DataError(f"cannot read image {file}: {error.strerror or error}") from error


def path_digest(path: str, size: int) -> bytes:
    """Hash the path, NFC and with forward slashes, and the file's size in bytes to 8 bytes (BLAKE2b)."""
    if not path.isascii():
        path = unicodedata.normalize("NFC", path)
    key = f"{path.replace(os.sep, '/')}\0{size}".encode("utf-8", "surrogateescape")
    return hashlib.blake2b(key, digest_size=DIGEST_BYTES).digest()


def as_rows(digests: Iterator[bytes], count: int) -> np.ndarray:
    """Join digests to an array, uint8 (count, 8)."""
    return np.frombuffer(b"".join(digests), np.uint8).reshape(count, DIGEST_BYTES)


def keys_of(digests: np.ndarray) -> np.ndarray:
    """Return digests (N, 8) as numbers, uint64 (N,)."""
    return np.ascontiguousarray(digests).view(">u8").ravel().astype(np.uint64)


def file_sizes(samples: Samples, rows: np.ndarray) -> np.ndarray:
    """Return the bytes of each image, int64 (n,); 0 for a program's own. Raises DataError: a file that is gone."""
    if samples.pixels is not None:
        return np.full(len(rows), samples.pixels[0].nbytes)
    if samples.sizes is not None:
        return samples.sizes[rows]
    if samples.root is None:
        return np.zeros(len(rows), np.int64)
    return _stats(samples, rows)[:, 0]


def _stats(samples: Samples, rows: np.ndarray) -> np.ndarray:
    """Return size and times of the last change of each file and of its entry, in nanoseconds: int64 (n, 3)."""
    stats, root = list[int](), str(samples.root or "")
    for row in rows.tolist():
        file = os.path.join(root, samples.paths[row])  # a table may name absolute ones
        try:
            found = os.stat(file)
        except OSError as error:
            raise DataError(f"cannot read image {file}: {error.strerror}") from error
        stats += (found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    return np.array(stats, np.int64).reshape(-1, 3)


def _stamp(samples: Samples, rows: np.ndarray, stats: np.ndarray) -> bytes:
    """Hash the paths, sizes and times of files, which stay as long as no file changes."""
    stamp = hashlib.blake2b(stats.tobytes() + rows.tobytes())
    stamp.update(samples.paths.characters)
    stamp.update(samples.paths.ends.tobytes())
    return stamp.digest()
