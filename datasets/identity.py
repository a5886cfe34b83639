"""A stable identity of each image: a hash of its contents or, of large sets, of its path and size.

The split is drawn from these hashes, split.csv holds them, and runs are compared by them. A hash of contents survives
renamed files, classes and folders; a hash of a path is of the NFC form with `/` between parts, so that the same folder
copied to another system has the same hashes.
"""

import os
import unicodedata
from pathlib import Path

import numpy as np

from common.errors import DataError
from datasets.bundle import LEFT_OUT, Samples
from datasets.known import as_rows, file_stats, hash_contents, known_of, with_known
from datasets.look import DIGEST_BYTES, digest_of

CONTENT_HASH, PATH_HASH = "content_hash", "path_hash"
"""Kinds of hash, and the name of its column in split.csv. A path hash covers the size of a file, too."""


def identified(samples: Samples, data_root: Path | None = None) -> Samples:
    """Return the samples with `digests` and `hash_kind` of every image that is not left out.

    Raises DataError: a file is gone or cannot be read.
    """
    if samples.digests is not None:
        return samples
    samples = with_known(samples, data_root)
    rows = np.flatnonzero(samples.splits != LEFT_OUT)
    if samples.known is not None and known_of(samples).is_read:
        digests = hash_contents(samples, rows).digests
        if len(rows) < len(samples):
            digests = np.where((samples.splits != LEFT_OUT)[:, None], digests, np.uint8(0))
        return samples.replace(digests=digests, hash_kind=CONTENT_HASH)
    digests = np.zeros((len(samples), DIGEST_BYTES), np.uint8)
    # A program's own images have no files: their contents are not ours to read.
    sizes = np.zeros(len(rows), np.int64) if samples.known is None else file_sizes(samples, rows)
    pairs = zip(rows.tolist(), sizes.tolist(), strict=True)
    digests[rows] = as_rows((path_digest(samples.paths[row], size) for row, size in pairs), len(rows))
    return samples.replace(digests=digests, hash_kind=PATH_HASH)


def path_digest(path: str, size: int) -> bytes:
    """Hash the path, NFC and with forward slashes, and the file's size in bytes to 8 bytes (BLAKE2b)."""
    if not path.isascii():
        path = unicodedata.normalize("NFC", path)
    return digest_of(f"{path.replace(os.sep, '/')}\0{size}".encode("utf-8", "surrogateescape"))


def keys_of(digests: np.ndarray) -> np.ndarray:
    """Return digests (N, 8) as numbers, uint64 (N,)."""
    return np.ascontiguousarray(digests).view(">u8").ravel().astype(np.uint64)


def file_sizes(samples: Samples, rows: np.ndarray) -> np.ndarray:
    """Return the bytes of each image, int64 (n,). Raises DataError: a file is gone."""
    if samples.pixels is not None:
        return np.full(len(rows), samples.pixels[0].nbytes)
    if samples.sizes is not None:
        return samples.sizes[rows]
    is_known = samples.known is not None and samples.known.lengths is not None
    sizes = samples.known.lengths[rows] if is_known else file_stats(samples, rows)[:, 0]
    for row in rows[sizes < 0].tolist():
        try:
            os.stat(samples.file(row))
        except OSError as error:
            raise DataError(f"cannot read image {samples.file(row)}: {error.strerror}") from error
    return sizes
