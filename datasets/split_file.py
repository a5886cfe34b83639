"""split.csv: which image is in which split, what it is (a hash) and to which group it belongs; written from the images
of a run. `datasets.split_reading` reads it back."""

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from itertools import compress, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from common.files import text_file
from common.tables import csv_lines
from datasets.bundle import LEFT_OUT, SPLITS, DataBundle, Samples
from datasets.identity import CONTENT_HASH, PATH_HASH, identified

KINDS = (CONTENT_HASH, PATH_HASH)
"""The names of the column of hashes."""


class SplitRow(NamedTuple):
    """One line of split.csv."""

    path: str
    label: str
    """The name of its class."""
    split: str
    hash: str | None = None
    """16 hex digits; None where a table of a person's own has no such column."""
    kind: str = ""
    """Kind of hash: `content_hash`, `path_hash`; empty where the table has none."""
    group: str = ""
    """The name of its group; empty where it stands alone."""


def split_table(bundle: DataBundle) -> tuple[SplitRow, ...]:
    """One row per image in use, in the order of the set."""
    samples = identified(bundle.samples)
    columns = _columns(samples)
    return tuple(
        SplitRow(path, label, split, digest, samples.hash_kind, group)
        for path, label, split, digest, group in zip(*columns, strict=True)
    )


def _columns(samples: Samples) -> tuple[Iterator[str], ...]:
    """The columns of split.csv, made as they are read: of a million images a list of each is half a gigabyte."""
    used = samples.splits >= 0
    rows = np.flatnonzero(used)
    labels, splits = samples.labels[used].tolist(), samples.splits[used].tolist()
    of_labels, of_splits = map(samples.class_names.__getitem__, labels), map(SPLITS.__getitem__, splits)
    known = identified(samples).digests
    assert known is not None
    digests = known[used].tobytes()
    hashes = (digests[start : start + 8].hex() for start in range(0, len(digests), 8))
    groups = map(samples.group_of, rows.tolist())
    return compress(samples.paths, used), of_labels, of_splits, hashes, groups


def write_split(path: str | Path, data: DataBundle | Samples) -> None:
    """Write split.csv, which `--split` reads back."""
    with text_file(Path(path)) as file:
        file.writelines(split_lines(data if isinstance(data, Samples) else data.samples))


def split_lines(samples: Samples) -> Iterator[str]:
    """The lines of the file, made as they are read."""
    samples = identified(samples)
    header = ("path", "label", "split", samples.hash_kind, "group")
    return csv_lines(header, zip(*_columns(samples), strict=True))


def fingerprint(bundle: DataBundle) -> str:
    """16 hex digits over paths, labels, splits and hashes: equal exactly when two runs saw the same data."""
    return _fingerprint(bundle.samples)


def fingerprint_of_split(bundle: DataBundle, split: str) -> str:
    """Fingerprint the images of one split alone, whatever the others are."""
    samples = identified(bundle.samples)
    others = np.where(samples.splits == SPLITS.index(split), samples.splits, LEFT_OUT).astype(np.int8)
    return _fingerprint.__wrapped__(samples.replace(splits=others))


@lru_cache(maxsize=2)  # Samples are compared by identity; a run asks two or three times
def _fingerprint(samples: Samples) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for column in _columns(samples)[:4]:
        between = ""
        while cells := list(islice(column, 65_536)):
            digest.update((between + "\0".join(cells)).encode("utf-8", "surrogateescape"))
            between = "\0"
        digest.update(b"\1")
    return digest.hexdigest()
