"""The pictures to label next as a table that a person fills, on a page or in any other program, and the table to train
on that follows from it."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from common.errors import DataError, OptionError
from common.files import write_text
from common.tables import csv_text, read_rows
from common.text import printable
from datasets.bundle import SPLITS, TRAIN, PathTable, Samples, split_name
from datasets.config import DATASETS, Columns, DataConfig
from datasets.loaders import read_samples
from datasets.sources.archives import is_archive, unpacked
from datasets.sources.csv_table import TABLE_SUFFIXES, USUAL, FilesOfTable, columns_of, read_columns, split_column
from datasets.sources.own_data import read_source
from datasets.sources.reading import SPLIT_FOLDERS
from inference.images import find_images
from inference.labels.choose import free_rows, probabilities_of, typical, uncertain
from inference.labels.features import ExtractedFeatures, unit_length
from inference.labels.review import Review, write_utf8

IMAGENET, COMPONENTS = "efficientnet_lite0", 128
"""Network that looks besides the embedded one, and principal components that are kept of each one's features."""
LABEL, SKIP = "label:", "skip"
LONGEST = 200
"""Characters of a class name."""
REASONS = {
    "centre": "it is typical of many pictures that have no label yet",
    "uncertain": "the model is unsure of it and of pictures like it",
}


class Label(NamedTuple):
    """Label that a person gave a picture."""

    name: str
    split: str = ""
    """Split, if the labelled set names its splits."""


class Pick(NamedTuple):
    """One row of picks.csv, which holds the picks of all rounds."""

    path: str
    reason: str
    """centre: typical of many pictures; or uncertain."""
    score: str
    """Score of a pick: for a centre 1 / (1 + distance to its cluster's centre), for an uncertain one 1 less the guess's
    lead."""
    guess: str = ""
    """Class that the model thinks it is; empty while there is none."""
    confidence: str = ""
    second: str = ""
    """The class that it thinks next likely."""
    label: str = ""
    """Class that a person gave; empty: none yet."""
    skipped: str = ""
    """`yes`: a person wants no label for it."""
    decided: str = ""
    """Maker of the decision: `person`; empty: nobody yet."""

    @property
    def decision(self) -> str:
        """Decision as one word: label:NAME, skip, or empty."""
        if self.skipped:
            return SKIP
        return f"{LABEL}{self.label}" if self.label else ""


@dataclass(frozen=True)
class Pool:
    """N pictures: first those to choose from, then labelled ones from elsewhere."""

    samples: Samples
    """Their paths are absolute, their labels unknown to it."""
    own: int
    """Number of the first ones, which are to choose from."""
    given: Mapping[str, Label]
    """Labels by path that a table or a labelled set gives, to pictures of either kind."""

    def labels(self, picks: Sequence[Pick]) -> dict[str, Label]:
        """Join the given labels and those of the picks."""
        return {**self.given, **{pick.path: Label(pick.label) for pick in picks if pick.label}}

    def rows(self, paths: Sequence[str]) -> np.ndarray:
        row_of = {path: row for row, path in enumerate(self.samples.paths)}
        return np.array([row_of[path] for path in paths], np.int64)


def read_pool(source: str, root: Path, *, labelled: Sequence[str] = (), path_column: str | None = None) -> Pool:
    """Find the pictures of a folder with its sub-folders, a table, or an archive (unpacked below `root`); add those of
    `labelled` sets. A label that a table gives a picture counts as given; names of folders do not.

    Raises FileNotFoundError, UnknownDataSet: no such place. DataError: no picture, or no files."""
    path, labels = Path(source).expanduser(), dict[str, Label]()
    if path.is_file() and path.suffix.lower() in TABLE_SUFFIXES:
        paths = list(paths_of_table(path, path_column, labels))
    elif path_column is not None:
        raise OptionError(f"path_column={path_column} names a column, and {source} is no table: leave it out")
    elif path.is_dir() or is_archive(path):
        folder = path if path.is_dir() else unpacked(path, root)
        found = [os.path.abspath(file.path) for file in find_images([str(folder)])]
        paths = [path for path in found if os.path.isfile(path)]
        if closed := [path for path in found if os.path.isdir(path) and not os.access(path, os.R_OK | os.X_OK)]:
            raise DataError(f"{closed[0]!r}: a folder that cannot be listed")
    else:
        if source not in DATASETS:
            read_source(source, root)  # says what is expected
        raise DataError(f"{source}: expected a folder of pictures, a table with a column of paths, or an archive")
    own = len(dict.fromkeys(paths))
    if not own:
        raise DataError(f"{source} has no picture: expected a folder, a table with a column of paths, or an archive")
    for place in labelled:
        labels |= labels_of_set(DataConfig(place, root))
    every = list(dict.fromkeys([*paths, *labels]))
    columns = np.zeros(len(every), np.int32), np.full(len(every), TRAIN, np.int8)
    return Pool(Samples(path.name, ("unlabelled",), PathTable(every), *columns, root=Path(os.sep)), own, labels)


def paths_of_table(table: Path, column: str | None, labels: dict[str, Label]) -> Iterator[str]:
    """Yield the absolute paths in a table; the labels that it gives are added to `labels`. Raises DataError: no column
    of paths, or a path that leads to no file."""
    cells, lines, _ = read_columns(table)
    files, paths = FilesOfTable(table.parent), columns_of(cells, "path", Columns(column), table)
    path_name = next((name for name in paths if files.find("".join(cells[name][:1]))), paths[0])
    label_name = next((name for name in USUAL["label"] if name in cells), "")
    split_name = split_column(cells, {path_name, label_name}, table)
    given, splits = (cells.get(name, [""] * len(lines)) for name in (label_name, split_name))
    for line, cell, label, split in zip(lines, cells[path_name], given, splits, strict=True):
        found = files.find(cell)
        if len(found) != 1:
            what = f"{len(found)} pictures may be" if found else "no picture"
            raise DataError(f"{table}, line {line}: {what} {printable(cell)!r}")
        path = os.path.abspath(table.parent / found[0])
        if label:
            labels[path] = Label(label, SPLIT_FOLDERS.get(split.strip().lower(), ""))
        yield path


def labels_of_set(config: DataConfig) -> dict[str, Label]:
    """Read every picture of a labelled set by its absolute path, with the split that the set itself gives it. Raises
    what reading it for training raises, and DataError: pictures that are no files."""
    samples = read_samples(config)
    if samples.pixels is not None or samples.members is not None:
        raise DataError(f"{config.source} is not made of files: next knows labelled pictures by their files")
    return {
        os.path.abspath(samples.file(row)): Label(
            samples.class_names[samples.labels[row]], split_name(int(samples.splits[row]))
        )
        for row in np.flatnonzero(samples.splits >= -1).tolist()
    }


def choose_picks(pool: Pool, picks: Sequence[Pick], found: ExtractedFeatures, count: int) -> list[Pick]:
    """Choose up to `count` pictures that no earlier pick, no label and no copy of one covers.

    Raises OptionError: no picture is left."""
    labels, taken = pool.labels(picks), pool.rows([*pool.given, *(pick.path for pick in picks)])
    usable = found.readable & (np.arange(len(pool.samples)) < pool.own)
    usable[taken] = False
    free = free_rows(found.groups, usable, taken)
    if not len(free):
        raise OptionError(f"every picture of {pool.samples.name} has a label, or a copy with one: none is left")
    learnt = pool.rows([path for path, label in labels.items() if label.split != SPLITS[2]])
    learnt = learnt[found.readable[learnt]]
    names = [labels[pool.samples.paths[row]].name for row in learnt.tolist()]
    classes, features = list(dict.fromkeys(names)), unit_length(found.values)
    probabilities = probabilities_of(features, learnt, np.array([classes.index(name) for name in names], int))
    if probabilities is None:
        centres = typical(features, free, learnt, count)
        return [Pick(pool.samples.paths[row], "centre", f"{score:.4f}") for row, score in centres]
    new = []
    for row, score in uncertain(features, free, probabilities, count):
        best, second = np.argsort(-probabilities[row], kind="stable")[:2]
        guess = (classes[best], f"{probabilities[row, best]:.4f}", classes[second])
        new.append(Pick(pool.samples.paths[row], "uncertain", f"{score:.4f}", *guess))
    return new


def write_picks(path: Path, picks: Sequence[Pick]) -> None:
    write_text(path, csv_text(Pick._fields, picks))


def read_picks(path: Path, samples: Samples) -> list[Pick]:
    """Read picks.csv. Raises DataError: it lacks a column, names a picture that the pool does not have, or holds no
    class name where one belongs."""
    picks, known = [], set(samples.paths)
    for row in read_rows(path, Pick._fields):
        pick = Pick(*(row[name] for name in Pick._fields))
        pick = pick._replace(label=pick.label.strip(), skipped="yes" if pick.skipped.strip() else "")
        if pick.path not in known:
            raise DataError(f"{path}: {pick.path!r} is no picture of {samples.name}; remove its row")
        if pick.label:
            require_class_name(pick.label, pick.path)
        # A label that was filled in elsewhere is a person's, too.
        picks.append(pick._replace(decided="person" if pick.decision else ""))
    return picks


def require_class_name(name: str, path: str) -> None:
    """Raise DataError where a name is none for a class: empty, on two lines, or very long."""
    if not name.strip() or len(name) > LONGEST or printable(name) != name:
        raise DataError(f"{path!r}: {name[:LONGEST]!r} is no class name: 1 to {LONGEST} printable signs")


def save_picks(folder: Path, pool: Pool, picks: Sequence[Pick]) -> None:
    """Write picks.csv, and labels.csv for `train`: path and label of all that is labelled so far, and the split where
    one is known of any; of others it is train. Raises DataError: a path that a table in UTF-8 cannot hold."""
    folder.mkdir(parents=True, exist_ok=True)
    write_picks(folder / "picks.csv", picks)
    labels = pool.labels(picks)
    splits = any(label.split for label in labels.values())
    rows = ((name, label.name, *((label.split or SPLITS[0],) * splits)) for name, label in labels.items())
    write_utf8(folder / "labels.csv", ("path", "label") + ("split",) * splits, rows)


class PicksPage(Review):
    """The page on picks.csv, with the nearest labelled pictures of the two likeliest classes."""

    texts: ClassVar = {
        "title": "Label pictures of",
        "hint": "Every label is saved at once; the pictures stay as they are. Press a class's key, or c to type one.",
        "prefix": LABEL,
        "take": {"key": "y", "text": "yes,", "decision": ""},
        "choices": [{"key": "s", "text": "skip: no label for it", "decision": SKIP}],
        "new_classes": True,
    }

    def __init__(self, folder: Path, pool: Pool, found: ExtractedFeatures, *, port: int) -> None:
        self.pool, self.known = pool, dict[str, None]()
        super().__init__(folder, pool.samples, found, port=port)

    def class_names(self) -> Sequence[str]:
        self.known |= dict.fromkeys(label.name for label in self.pool.labels(self.rows).values())
        return list(self.known)

    def read(self) -> list[Pick]:
        return read_picks(self.folder / "picks.csv", self.samples)

    def decided(self, row: Pick, decision: str, by: str) -> Pick:
        if decision in ("", SKIP):
            return row._replace(label="", skipped="yes" if decision else "", decided=by)
        if not decision.startswith(LABEL):
            raise DataError(f"{row.path!r}: decision {decision!r} is not {LABEL}NAME or {SKIP}")
        name = decision.removeprefix(LABEL).strip()
        require_class_name(name, row.path)
        return row._replace(label=name, skipped="", decided=by)

    def save(self, rows: Sequence[Pick]) -> None:
        save_picks(self.folder, self.pool, rows)

    def shown(self, row: Pick) -> dict[str, Any]:
        facts = [("asked because", REASONS.get(row.reason, row.reason))]
        if row.guess:
            then = f", then {row.second}" if row.second else ""
            facts.append(("the model thinks", f"{row.guess} ({float(row.confidence):.1%}){then}"))
        classes = [name for name in (row.guess, row.second) if name]
        return {"facts": facts, "suggested": row.guess, "other": "", "classes": classes}

    def comparable(self, row: Pick, name: str) -> np.ndarray:
        """Return the other pictures that have this label."""
        labels = self.pool.labels(self.rows)
        return self.pool.rows([other for other in labels if labels[other].name == name and other != row.path])
