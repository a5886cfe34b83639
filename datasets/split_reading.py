"""Reading of a split.csv: compared with the images of now, and applied to a set that may have grown since."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from common.errors import DataError
from common.tables import read_rows
from common.text import plain_path, pluralise
from datasets.bundle import LEFT_OUT, SPLITS, DataBundle, Samples
from datasets.identity import CONTENT_HASH, PATH_HASH, identified
from datasets.split_file import KINDS, SplitRow, split_lines, split_table
from datasets.units import joined


def read_split(path: Path) -> list[SplitRow]:
    """The rows of a split.csv, each image once. Raises FileNotFoundError: no such file. DataError: a column is missing,
    a split is unknown, or an image comes twice."""
    rows = read_rows(path, ("path", "label", "split"), what="split")
    if rows and all("\\" in row["path"] and "/" not in row["path"] for row in rows):  # saved by a Windows program
        rows = [row | {"path": row["path"].replace("\\", "/")} for row in rows]
    column = next((kind for kind in KINDS if rows and kind in rows[0]), "")
    table = [
        SplitRow(
            row["path"],
            row["label"],
            row["split"],
            row[column] if column else None,
            column,
            row.get("group", ""),
        )
        for row in rows
    ]
    seen: set[str] = set()
    for row in table:
        if row.split not in SPLITS:
            raise DataError(f"{path}: split {row.split!r} is not one of {', '.join(SPLITS)}")
        if row.path in seen:
            raise DataError(f"{path}: {row.path!r} appears more than once; a sample belongs to one split")
        seen.add(row.path)
    return table


def groups_in(table: Iterable[SplitRow]) -> dict[str, str]:
    """The group of each image that has one, by its path."""
    return {row.path: row.group for row in table if row.group}


def clusters_of(paths: Iterable[str], groups: Mapping[str, str]) -> np.ndarray:
    """int64 (n,): of these images those of one group share a number, each that stands alone has one of its own."""
    numbers: dict[tuple[bool, str], int] = {}
    keys = ((path in groups, groups.get(path, path)) for path in paths)
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)


def changes_since(path: Path, bundle: DataBundle) -> list[str]:
    """Differences of images, labels and splits from those of a split.csv, one phrase each; none if they are the same.
    Raises as `read_split` does."""
    if _is_written_as(path, bundle):
        return []
    then, now = ({row.path: row for row in rows} for rows in (read_split(path), split_table(bundle)))
    both = [(row, now[row.path]) for row in then.values() if row.path in now]
    found = {
        "gone": [path for path in then if path not in now],
        "new": [path for path in now if path not in then],
        "with another label": [old.path for old, new in both if old.label != new.label],
        "with other contents": [old.path for old, new in both if old.kind == new.kind and old.hash != new.hash],
        "in another split": [old.path for old, new in both if old.split != new.split],
    }
    return [f"{pluralise(len(paths), 'image')} {how}, first {paths[0]!r}" for how, paths in found.items() if paths]


def _is_written_as(path: Path, bundle: DataBundle) -> bool:
    """Return whether a file is, to the byte, what `write_split` makes of these images: quicker to tell than what
    differs."""
    with open(path, "rb") as file:
        there = hashlib.file_digest(file, "blake2b")
    made = hashlib.blake2b()
    for line in split_lines(bundle.samples):
        made.update(line.encode("utf-8", "surrogateescape"))
    return there.digest() == made.digest()


class Reused(NamedTuple):
    """A split.csv laid over a set."""

    samples: Samples
    """Each image of the table in its split, all others LEFT_OUT; groups as the table and the set have them."""
    new: np.ndarray
    """int64: images of the set that the table does not have."""
    missing: tuple[str, ...]
    """Paths in the table that the set has no image for."""


def reuse_split(samples: Samples, path: Path) -> Reused:
    """Lay the split of a table with the columns path, label, split (and a hash, a group) over these samples.

    An image is found by its path or, where that is gone, by its contents: a renamed one keeps its split. Raises
    DataError: labels differ, contents changed, or the set has none of the images.
    """
    table, samples = read_split(path), identified(samples)
    found = _find(table, samples)
    there = found >= 0
    missing = tuple(row.path for row, present in zip(table, there.tolist(), strict=True) if not present)
    if not there.any():
        raise DataError(
            f"{path}: none of its {pluralise(len(table), 'image')} is in {samples.name}, first {table[0].path!r}"
            if table
            else f"{path} has no rows"
        )
    used = [row for row, present in zip(table, there.tolist(), strict=True) if present]
    rows = found[there]
    _require_same(used, samples, rows, path)
    splits = np.full(len(samples), LEFT_OUT, np.int8)
    splits[rows] = [SPLITS.index(row.split) for row in used]
    splits[samples.splits == LEFT_OUT] = LEFT_OUT
    known = np.zeros(len(samples), bool)
    known[rows] = True
    new = np.flatnonzero(~known & (samples.splits != LEFT_OUT))
    names = [""] * len(samples)
    for place, row in zip(rows.tolist(), used, strict=True):
        names[place] = row.group
    return Reused(joined(samples.replace(splits=splits), names), new, missing)


def _find(table: Sequence[SplitRow], samples: Samples) -> np.ndarray:
    """int64: the image of each row of the table, -1 where there is none; each image at most once."""
    position = {name: place for place, name in enumerate(samples.paths)}
    found = np.array([position.get(row.path, -1) for row in table], np.int64)
    if (found >= 0).all():
        return found
    plain = {plain_path(name): place for name, place in position.items()}
    taken = set(found[found >= 0].tolist())
    by_content: dict[str, list[int]] = {}
    if samples.hash_kind == CONTENT_HASH and samples.digests is not None:
        for place in np.flatnonzero(samples.splits != LEFT_OUT).tolist():
            if place not in taken:
                by_content.setdefault(samples.digests[place].tobytes().hex(), []).append(place)
    for number in np.flatnonzero(found < 0).tolist():
        row = table[number]
        place = plain.get(plain_path(row.path), -1)
        if place in taken:
            place = -1
        if place < 0 and row.hash and row.kind != PATH_HASH:
            same = [at for at in by_content.get(row.hash, []) if at not in taken]
            place = same[0] if same else -1
        if place >= 0:
            taken.add(place)
            found[number] = place
    return found


def _require_same(table: Sequence[SplitRow], samples: Samples, rows: np.ndarray, path: Path) -> None:
    """Raise DataError where an image has another label than in the table, or other contents than when it was made."""
    then = [plain_path(row.label) for row in table]
    now = [plain_path(samples.class_names[label]) for label in samples.labels[rows]]
    pairs, gone = set(zip(then, now, strict=True)), set(then) - set(map(plain_path, samples.class_names))
    # A class all of whose images have another name now was renamed.
    renamed = len(pairs) == len(set(then)) == len(set(now)) and all(old in gone for old, new in pairs if old != new)
    if not renamed:
        for row, old, new in zip(table, then, now, strict=True):
            if old != new:
                raise DataError(f"{path}: {row.path!r} has label {old!r} there and {new!r} in {samples.name}")
    if table[0].kind != CONTENT_HASH or samples.hash_kind != CONTENT_HASH or samples.digests is None:
        return
    hashes = (digest.tobytes().hex() for digest in samples.digests[rows])
    changed = [row.path for row, digest in zip(table, hashes, strict=True) if row.hash != digest]
    if changed:
        raise DataError(
            f"{path}: {pluralise(len(changed), 'image')} changed since that split was made, first {changed[0]!r}; "
            f"remove its column {table[0].kind} to use it all the same"
        )
