"""Who trains, validates and tests: drawn stratified and seeded, written to split.csv, read back, cut into folds."""

import hashlib
import math
import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain, compress, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from datasets.bundle import LEFT_OUT, SPLITS, UNSPLIT, DataBundle, Samples, samples_of
from datasets.config import DataConfig
from datasets.errors import DataError
from datasets.files import text_file
from datasets.seeding import SPLIT, SUBSET, hashes, mix
from datasets.text import csv_lines, read_rows, some

HASH_CONTENTS_UP_TO = 2**30  # bytes in all; larger sets are told apart by path and size
TRAIN, VAL, TEST = range(3)


class SplitRow(NamedTuple):
    """One line of split.csv."""

    path: str
    label: str
    """The name of its class."""
    split: str
    hash: str | None
    """16 hex digits of its contents; None where a table of a person's own has no such column."""


def assign_splits(samples: Samples, config: DataConfig) -> Samples:
    """Give every sample its split: from `config.split`, from the set itself, or drawn by `config.split_seed`, first the
    test of a set without any split, then val: a share, or fold `config.fold` of `config.folds`."""
    if config.split is not None:
        return reuse_split(samples, config.split)
    usual = samples.val_fraction or (0.1 if (samples.splits == TEST).any() else 0.15)
    samples = _hold_out_test(samples, config)
    if config.folds is None and (samples.splits == VAL).any():
        return samples
    pool = (samples.splits != TEST) & (samples.splits != LEFT_OUT)
    if config.folds is None:
        fraction = usual if config.val_fraction is None else config.val_fraction
        # A share of all images of an unsplit set, of the training images of one that brings a test split.
        of = samples.splits != LEFT_OUT if (samples.splits == UNSPLIT).any() else pool
        chosen = _stratified(samples.labels, pool, math.floor(fraction * of.sum()), config.split_seed, VAL)
    else:
        chosen = _fold(samples, np.flatnonzero(pool), config)
    return samples.with_splits({VAL: chosen, TRAIN: np.setdiff1d(np.flatnonzero(pool), chosen)})


def _fold(samples: Samples, pool: np.ndarray, config: DataConfig) -> np.ndarray:
    if config.folds is None or config.fold is None:
        raise ValueError(f"folds={config.folds} needs fold, a number from 1 to {config.folds}")
    if len(pool) < config.folds:
        raise DataError(f"{samples.name} has {len(pool)} images for {config.folds} folds; use fewer folds")
    # Dealt like cards, class after class: fold sizes, overall and per class, differ by at most one.
    order, _ = _shuffled_by_class(samples.labels, pool, mix(config.split_seed, SPLIT, VAL))
    return order[config.fold - 1 :: config.folds]


def hold_out_half_of_val(samples: Samples, seed: int) -> Samples:
    """Make a test split of half of the validation images, each class in proportion."""
    pool = samples.splits == VAL
    return samples.with_splits({TEST: _stratified(samples.labels, pool, int(pool.sum()) // 2, seed, TEST)})


def subset_training(samples: Samples, config: DataConfig) -> Samples:
    """Keep `labels_per_class` images, or the share `fraction`, of each training class; val and test stay whole."""
    if config.labels_per_class is None and config.fraction is None:
        return samples
    order, place = _shuffled_by_class(samples.labels, samples.indices("train"), mix(config.split_seed, SUBSET))
    labels, sizes = samples.labels[order], samples.counts("train")
    if config.fraction is not None:
        wanted = np.maximum(1, np.rint(sizes * config.fraction))
    else:
        wanted = np.full(len(sizes), config.labels_per_class)
    samples = samples.with_splits({LEFT_OUT: order[place >= wanted[labels]]})
    short = int((sizes < wanted).sum())
    if short and config.fraction is None:
        return samples.note(
            f"{short} of {len(sizes)} classes have fewer than {config.labels_per_class} training images"
        )
    return samples


def split_table(bundle: DataBundle) -> tuple[SplitRow, ...]:
    """One row per image in use, in the order of the set."""
    return tuple(map(SplitRow._make, zip(*_columns(samples_of(bundle)), strict=True)))


def _columns(samples: Samples) -> tuple[Iterator[str], ...]:
    """The columns of split.csv, made as they are read: of a million images a list of each is half a gigabyte."""
    used = samples.splits >= 0
    labels, splits = samples.labels[used].tolist(), samples.splits[used].tolist()
    of_labels, of_splits = map(samples.class_names.__getitem__, labels), map(SPLITS.__getitem__, splits)
    digests = _digests(samples)
    hashes = (digests[start : start + 8].hex() for start in range(0, len(digests), 8))
    return compress(samples.paths, used), of_labels, of_splits, hashes


@lru_cache(maxsize=2)  # Samples are compared by identity; a run asks for the table two or three times
def _digests(samples: Samples) -> bytes:
    return bytes(chain.from_iterable(content_digests(samples, np.flatnonzero(samples.splits >= 0))))


def write_split(path: str | Path, data: DataBundle | Samples) -> None:
    """Write split.csv, which `config.split` reads back."""
    rows = zip(*_columns(data if isinstance(data, Samples) else samples_of(data)), strict=True)
    with text_file(Path(path), errors="surrogateescape") as file:
        file.writelines(csv_lines(SplitRow._fields, rows))


def fingerprint(bundle: DataBundle) -> str:
    """16 hex digits over paths, labels, splits and contents: equal exactly when two runs saw the same data."""
    return _digest(samples_of(bundle))


@lru_cache(maxsize=2)
def _digest(samples: Samples) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for column in _columns(samples):
        between = ""
        while cells := list(islice(column, 65_536)):
            digest.update((between + "\0".join(cells)).encode("utf-8", "surrogateescape"))
            between = "\0"
        digest.update(b"\1")
    return digest.hexdigest()


def reuse_split(samples: Samples, path: Path) -> Samples:
    """Take the split of a table with the columns path, label, split (and hash, then contents are compared)."""
    table = read_split(path)
    position = {name: i for i, name in enumerate(samples.paths)}
    absent = [row.path for row in table if row.path not in position]
    if absent:
        raise DataError(f"{path}: {len(absent)} of {len(table)} images are not in {samples.name}, first {absent[0]!r}")
    rows = np.array([position[row.path] for row in table], np.int64)
    for row, label in zip(table, samples.labels[rows], strict=True):
        name = samples.class_names[label]
        if row.label != name:
            raise DataError(f"{path}: {row.path!r} has label {row.label!r} there and {name!r} in {samples.name}")
    now = content_digests(samples, rows) if table and table[0].hash is not None else []
    changed = [row.path for row, digest in zip(table, now, strict=False) if row.hash != digest.hex()]
    if changed:
        raise DataError(
            f"{path}: {len(changed)} images changed since that split was made, first {changed[0]!r}; "
            "remove the hash column to use it all the same"
        )
    splits = np.full(len(samples), LEFT_OUT, np.int8)
    splits[rows] = [SPLITS.index(row.split) for row in table]
    splits[samples.splits == LEFT_OUT] = LEFT_OUT
    samples = samples.replace(splits=splits)
    unused = len(samples) - len(rows)
    return samples.note(f"split from {path}" + (f"; {unused} images are not in it and are left out" if unused else ""))


def require_complete(samples: Samples) -> Samples:
    """Check that there is something to train on and to validate, and say which classes are too small to do both."""
    if len(samples.class_names) < 2:
        raise DataError(f"{samples.name} has one class, {samples.class_names[0]!r}; to tell classes apart takes two")
    for split in ("train", "val"):
        if not len(samples.indices(split)):
            raise DataError(
                f"{samples.name} has no {split} images, of {len(samples)} in all: more images help, a --split of your"
                " own, or --val-fraction 0.5 --test-fraction 0"
            )
    untrained = [samples.class_names[i] for i in np.flatnonzero(samples.counts("train") == 0)]
    if untrained:
        raise DataError(f"{samples.name}: no training image of class {some(untrained)}")
    unseen = [samples.class_names[i] for i in np.flatnonzero(samples.counts("val") == 0)]
    if unseen:
        return samples.note(f"{len(unseen)} of {len(samples.class_names)} classes have no val image: {some(unseen)}")
    return samples


def _hold_out_test(samples: Samples, config: DataConfig) -> Samples:
    if (samples.splits >= 0).any():
        return samples  # a set that brings some split decides about the test itself
    fraction = samples.test_fraction if config.test_fraction is None else config.test_fraction
    pool = samples.splits == UNSPLIT
    chosen = _stratified(samples.labels, pool, math.ceil(fraction * pool.sum()), config.split_seed, TEST)
    return samples.with_splits({TEST: chosen})


def _stratified(labels: np.ndarray, pool: np.ndarray, count: int, seed: int, stream: int) -> np.ndarray:
    """Choose `count` samples of the pool, each class in proportion (largest remainders), never a class's last image."""
    sizes = np.bincount(labels[pool])
    exact = sizes * (count / max(1, int(pool.sum())))
    quota = np.floor(exact).astype(np.int64)
    by_remainder = np.lexsort((hashes(mix(seed, SPLIT, stream, 1), np.arange(len(sizes))), quota - exact))
    quota[by_remainder[: count - quota.sum()]] += 1
    quota = np.minimum(quota, np.maximum(sizes - 1, 0))
    order, place = _shuffled_by_class(labels, np.flatnonzero(pool), mix(seed, SPLIT, stream))
    return np.sort(order[place < quota[labels[order]]])


def _shuffled_by_class(labels: np.ndarray, members: np.ndarray, key: int) -> tuple[np.ndarray, np.ndarray]:
    """The members class after class, within one by a hash of (key, position in the set); and their ranks within it."""
    order = members[np.lexsort((hashes(key, members), labels[members]))]
    return order, np.arange(len(order)) - np.searchsorted(labels[order], labels[order])


def content_digests(samples: Samples, indices: np.ndarray) -> Iterator[bytes]:
    """8 bytes per image: of its pixels or file contents; of path and size for sets above 1 GB."""
    contents: Iterable[bytes]
    if samples.pixels is not None:
        contents = (samples.pixels[i].tobytes() for i in indices)
    elif samples.root is None:  # a program's own: their contents are not ours to read
        contents = (samples.paths[i].encode() for i in indices)
    else:
        sizes = file_sizes(samples, indices)
        contents = (samples.file(i).read_bytes() for i in indices)
        if sizes.sum() > HASH_CONTENTS_UP_TO:
            if samples.digests is not None:
                return map(bytes, samples.digests[indices])
            keys = (f"{samples.paths[i]}\0{size}" for i, size in zip(indices.tolist(), sizes.tolist(), strict=True))
            contents = (key.encode("utf-8", "surrogateescape") for key in keys)
    return (hashlib.blake2b(content, digest_size=8).digest() for content in contents)


def file_sizes(samples: Samples, indices: np.ndarray) -> np.ndarray:
    """int64 (n,): bytes. Raises DataError: a file that is gone."""
    if samples.pixels is not None:
        return np.full(len(indices), samples.pixels[0].nbytes)
    if samples.sizes is not None:
        return samples.sizes[indices]
    files = (os.path.join(samples.root or "", samples.paths[i]) for i in indices)  # a table may name absolute ones
    return np.fromiter(map(_size, files), np.int64, len(indices))


def _size(file: str) -> int:
    try:
        return os.stat(file).st_size
    except OSError as error:
        raise DataError(f"cannot read image {file}: {error.strerror}") from error


def read_split(path: Path) -> list[SplitRow]:
    """The rows of a split.csv, each image once. Raises FileNotFoundError: no such file. DataError: a column is missing,
    a split is unknown, or an image comes twice."""
    rows = read_rows(path, ("path", "label", "split"), what="split")
    table = [SplitRow(row["path"], row["label"], row["split"], row.get("hash")) for row in rows]
    seen: set[str] = set()
    for row in table:
        if row.split not in SPLITS:
            raise DataError(f"{path}: split {row.split!r} is not one of {', '.join(SPLITS)}")
        if row.path in seen:
            raise DataError(f"{path}: {row.path!r} appears more than once; a sample belongs to one split")
        seen.add(row.path)
    return table
