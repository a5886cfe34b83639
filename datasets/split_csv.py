"""split.csv: which image is in which split, what it is (a hash) and to which group it belongs; written, compared with
the images of now, and applied to a set that may have grown since."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress, islice, zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np

from common.errors import DataError
from common.files import text_file
from common.tables import csv_lines, read_rows
from common.text import plain_path, pluralise
from datasets.bundle import LEFT_OUT, SPLITS, DataBundle, Samples
from datasets.copies import with_more_groups
from datasets.known import CONTENT_HASH, PATH_HASH, identified

KINDS = (CONTENT_HASH, PATH_HASH)
"""The names of the column of hashes."""
NOT_SCORED, REASON = "left_out", "reason"
"""Mark of images that the start of a run was trained on, in place of a split; and the column of the reasons."""


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


def split_table(data: DataBundle | Samples) -> tuple[SplitRow, ...]:
    """Return one row per image in use, in the order of the set."""
    samples = identified(_samples_of(data))
    return tuple(
        SplitRow(path, label, split, digest, samples.hash_kind, group)
        for path, label, split, digest, group in zip(*_columns(samples), strict=True)
    )


def _samples_of(data: DataBundle | Samples) -> Samples:
    return data if isinstance(data, Samples) else data.samples


def _columns(samples: Samples) -> tuple[Iterator[str], ...]:
    """Return the columns of split.csv as iterators: lists of a million cells would take half a gigabyte."""
    used = samples.splits >= 0
    rows = np.flatnonzero(used)
    labels, splits = samples.labels[used].tolist(), samples.splits[used].tolist()
    of_labels, of_splits = map(samples.class_names.__getitem__, labels), map(SPLITS.__getitem__, splits)
    assert samples.digests is not None
    digests = samples.digests[used].tobytes()
    hashes = (digests[start : start + 8].hex() for start in range(0, len(digests), 8))
    return compress(samples.paths, used), of_labels, of_splits, hashes, map(samples.group_of, rows.tolist())


def write_split(path: str | Path, data: DataBundle | Samples) -> None:
    """Write split.csv, which `--split` reads back."""
    with text_file(Path(path)) as file:
        file.writelines(_lines(_samples_of(data)))


def _lines(samples: Samples) -> Iterator[str]:
    samples = identified(samples)
    header = ["path", "label", "split", samples.hash_kind, "group"]
    rows: Iterator[tuple[str, ...]] = zip(*_columns(samples), strict=True)
    if samples.left_out:
        header.append(REASON)
        rows = chain(((*row, "") for row in rows), _left_out(samples))
    return csv_lines(header, rows)


def _left_out(samples: Samples) -> Iterator[tuple[str, ...]]:
    assert samples.digests is not None
    for row, reason in sorted(samples.left_out.items()):
        label, digest = samples.class_names[samples.labels[row]], samples.digests[row].tobytes().hex()
        yield samples.paths[row], label, NOT_SCORED, digest, samples.group_of(row), reason


def fingerprint(data: DataBundle | Samples, split: str | None = None) -> str:
    """Return 16 hex digits, equal exactly when two runs have the same data.

    Over paths, labels, splits and hashes.

    With `split`, over the images of that split alone."""
    samples = identified(_samples_of(data))
    if split is not None:
        samples = samples.with_splits({LEFT_OUT: np.flatnonzero(samples.splits != SPLITS.index(split))})
    digest = hashlib.blake2b(digest_size=8)
    for column in _columns(samples)[:4]:
        between = ""
        while cells := list(islice(column, 65_536)):
            digest.update((between + "\0".join(cells)).encode("utf-8", "surrogateescape"))
            between = "\0"
        digest.update(b"\1")
    return digest.hexdigest()


def read_split(path: Path) -> list[SplitRow]:
    """Read the images in use of a split.csv, each once, without those left out.

    Raises FileNotFoundError: no such file. DataError: a column is missing, a split is unknown, or an image comes twice.
    """
    rows = read_rows(path, ("path", "label", "split"), what="split")
    rows = [row for row in rows if row["split"] != NOT_SCORED]
    kind = next((kind for kind in KINDS if rows and kind in rows[0]), "")
    known: set[str] = set()
    for row in rows:
        if row["split"] not in SPLITS:
            raise DataError(f"{path}: split {row['split']!r} is not one of {', '.join(SPLITS)}")
        if row["path"] in known:
            raise DataError(f"{path}: {row['path']!r} appears more than once; a sample belongs to one split")
        known.add(row["path"])
    return [
        SplitRow(row["path"], row["label"], row["split"], row.get(kind), kind, row.get("group", "")) for row in rows
    ]


def clusters_of(paths: Iterable[str], groups: Mapping[str, str]) -> np.ndarray:
    """Number images, int64 (n,); those of one group share a number."""
    numbers: dict[tuple[bool, str], int] = {}
    keys = ((path in groups, groups.get(path, path)) for path in paths)
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)


def changes_since(path: Path, samples: Samples) -> list[str]:
    """Name how images, labels and splits differ from those of a split.csv.

    One phrase each. Raises as `read_split`."""
    if _is_written_as(path, samples):
        return []
    then, now = ({row.path: row for row in rows} for rows in (read_split(path), split_table(samples)))
    both = [(row, now[row.path]) for row in then.values() if row.path in now]
    found = {
        "gone": [path for path in then if path not in now],
        "new": [path for path in now if path not in then],
        "with another label": [old.path for old, new in both if old.label != new.label],
        "with other contents": [old.path for old, new in both if old.kind == new.kind and old.hash != new.hash],
        "in another split": [old.path for old, new in both if old.split != new.split],
    }
    return [f"{pluralise(len(paths), 'image')} {how}, first {paths[0]!r}" for how, paths in found.items() if paths]


def _is_written_as(path: Path, samples: Samples) -> bool:
    """Return whether a file is what `write_split` makes of these images.

    Of a million this takes 2 s; to read the table 13."""
    lines = (line.encode("utf-8", "surrogateescape") for line in _lines(samples))
    with path.open("rb") as file:  # bytes: a locale without UTF-8 has other names for them
        return all(there == made for there, made in zip_longest(file, lines))


class Reused(NamedTuple):
    """A split.csv laid over a set."""

    samples: Samples
    """Each image of the table in its split, all others LEFT_OUT; groups as the table and the set have them."""
    new: np.ndarray
    """int64: images of the set that the table does not have."""
    missing: tuple[str, ...]
    """Paths in the table that the set has no image for."""


def reuse_split(samples: Samples, path: Path) -> Reused:
    """Lay a split.csv, or a table with its first three columns, over these samples.

    An image is found by its path or, where that is gone, by its contents: a renamed one keeps its split. Raises
    DataError: labels differ, contents changed, or the set has none of the images.
    """
    table, samples = read_split(path), identified(samples)
    if not table:
        raise DataError(f"{path} has no rows")
    found = _find(table, samples)
    used = [row for row, place in zip(table, found.tolist(), strict=True) if place >= 0]
    missing = tuple(row.path for row, place in zip(table, found.tolist(), strict=True) if place < 0)
    if not used:
        count = pluralise(len(table), "image")
        raise DataError(f"{path}: none of its {count} is in {samples.name}, first {table[0].path!r}")
    rows = found[found >= 0]
    _require_same(used, samples, rows, path)
    splits, names = np.full(len(samples), LEFT_OUT, np.int8), np.full(len(samples), "", object)
    splits[rows] = [SPLITS.index(row.split) for row in used]
    names[rows] = [row.group for row in used]
    in_use = samples.splits != LEFT_OUT
    new = np.setdiff1d(np.flatnonzero(in_use), rows)
    splits[~in_use] = LEFT_OUT
    return Reused(with_more_groups(samples.replace(splits=splits), names.tolist()), new, missing)


def _find(table: Sequence[SplitRow], samples: Samples) -> np.ndarray:
    """Return the image of each row of the table, each at most once; -1: none."""
    position = {name: place for place, name in enumerate(samples.paths)}
    found = np.array([position.get(row.path, -1) for row in table], np.int64)
    lost = np.flatnonzero(found < 0).tolist()
    if not lost:
        return found
    taken = set(found[found >= 0].tolist())
    plain = {plain_path(name): place for name, place in position.items()}
    by_content: dict[str, list[int]] = {}
    if samples.hash_kind == CONTENT_HASH and samples.digests is not None:
        for place in np.flatnonzero(samples.splits != LEFT_OUT).tolist():
            by_content.setdefault(samples.digests[place].tobytes().hex(), []).append(place)
    for number in lost:
        row = table[number]
        same = by_content.get(row.hash, []) if row.hash and row.kind == CONTENT_HASH else []
        place = next((at for at in (plain.get(plain_path(row.path), -1), *same) if at >= 0 and at not in taken), -1)
        if place >= 0:
            taken.add(place)
            found[number] = place
    return found


def _require_same(table: Sequence[SplitRow], samples: Samples, rows: np.ndarray, path: Path) -> None:
    """Raise DataError where an image has another label, or other contents, than in the table."""
    names = [plain_path(name) for name in samples.class_names]
    for row, label in zip(table, samples.labels[rows].tolist(), strict=True):
        if plain_path(row.label) != names[label]:
            raise DataError(
                f"{path}: {row.path!r} has label {row.label!r} there and {names[label]!r} in {samples.name}"
            )
    if table[0].kind != CONTENT_HASH or samples.hash_kind != CONTENT_HASH or samples.digests is None:
        return
    hashes = (digest.tobytes().hex() for digest in samples.digests[rows])
    changed = [row.path for row, digest in zip(table, hashes, strict=True) if row.hash != digest]
    if changed:
        raise DataError(
            f"{path}: {pluralise(len(changed), 'image')} changed since that split was made, first {changed[0]!r}; "
            f"remove its column {table[0].kind} to use it all the same"
        )
