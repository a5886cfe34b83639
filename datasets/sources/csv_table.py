"""A table of images: path, label and perhaps split, one row per image, paths relative to the table."""

import csv
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from datasets.bundle import SPLITS, UNSPLIT, PathTable, Samples
from datasets.errors import DataError
from datasets.images import IMAGE_EXTENSIONS, is_image_name
from datasets.sources.problems import Problem
from datasets.sources.reading import SPLIT_FOLDERS, Reading

TABLE_SUFFIXES = (".csv", ".tsv")
COLUMNS: dict[str, tuple[str, ...]] = {"path": ("path", "id"), "label": ("label", "breed"), "split": ("split",)}
"""What the columns are called, here and in Kaggle's dog breeds; upper or lower case."""


def read_table(table: Path, name: str | None = None, *, confined: bool = False) -> Reading:
    """Read a table with the columns path, label and perhaps split (train, val, test), and report its faulty rows.

    An image is found as its cell says, without its extension, or in a folder `train` beside the table.
    `confined`: the table came out of an archive, so its paths may not lead out of its folder.

    Raises:
        FileNotFoundError: no such table.
        DataError: it is not text, a column is missing, or no row names an image that is there.
    """
    header, lines = _read(table)
    path_at, label_at = (_column(header, role, table) for role in ("path", "label"))
    split_at = header.index("split") if "split" in header else None
    rows = _Rows(table.parent, confined=confined, has_splits=any(_cell(cells, split_at) for _, cells in lines))
    for number, cells in lines:
        if len(cells) > len(header):
            rows.add_problem("ragged_row", cells[path_at], detail=f"line {number}")
        else:
            rows.add(number, _cell(cells, path_at), _cell(cells, label_at), _cell(cells, split_at))
    if not rows.paths:
        first = f": {rows.problems[0]}" if rows.problems else ""
        raise DataError(f"{table} names no image that can be used{first}")
    if "train" not in rows.classes and "" not in rows.classes:
        rows.add_problem("empty_split", "train", "train")
    class_names = sorted(set().union(*rows.classes.values()))
    number_of = {label: i for i, label in enumerate(class_names)}
    samples = Samples(
        name=name or table.stem,
        class_names=tuple(class_names),
        paths=PathTable.from_paths(rows.paths),
        labels=np.fromiter(map(number_of.__getitem__, rows.labels), np.int32, len(rows.labels)),
        splits=np.array([SPLITS.index(split) if split else UNSPLIT for split in rows.splits], np.int8),
        root=table.parent,
        val_fraction=0.1 if "test" in rows.classes else 0.15,
    )
    return Reading(str(table), "table", samples, rows.classes, rows.problems)


def is_sample_table(table: Path) -> bool:
    """Whether a table names paths and labels; a folder may hold some other table."""
    try:
        header = _read(table)[0]
    except DataError:
        return False
    return all(set(COLUMNS[role]) & set(header) for role in ("path", "label"))


def _read(table: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The header in lower case, and (line number, cells) of every row that is not blank."""
    if not table.is_file():
        raise FileNotFoundError(f"no table {table}")
    try:
        with open(table, newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            file.seek(0)
            tab = table.suffix.lower() == ".tsv" or ("\t" in first and "," not in first)
            reader = csv.reader(file, delimiter="\t" if tab else ",", skipinitialspace=True)
            header = [cell.strip().lower() for cell in next(reader, [])]
            return header, [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
    except UnicodeDecodeError as error:
        raise DataError(f"{table} is not UTF-8 text (byte {error.start}); save it as CSV in UTF-8") from error
    except (OSError, csv.Error) as error:
        raise DataError(f"cannot read table {table}: {error}") from error


def _cell(cells: Sequence[str], column: int | None) -> str:
    """The text of a cell, kept as it is; empty where there is no such column, or only space in it."""
    return cells[column] if column is not None and column < len(cells) and cells[column].strip() else ""


def _column(header: Sequence[str], role: str, table: Path) -> int:
    for name in COLUMNS[role]:
        if name in header:
            return header.index(name)
    raise DataError(
        f"{table} has no {role} column: found {', '.join(header) or 'nothing'}; call it {role!r} in the first line"
    )


class _Rows:
    """Takes rows one by one, keeps the good ones and reports the others."""

    def __init__(self, root: Path, *, confined: bool, has_splits: bool) -> None:
        self.paths: list[str] = []
        self.labels: list[str] = []
        self.splits: list[str] = []
        self.classes: dict[str, set[str]] = {}
        self.problems: list[Problem] = []
        self._root, self._confined, self._has_splits = str(root), confined, has_splits
        self._seen: dict[str, tuple[int, int]] = {}  # file: (line, place among the good rows)

    def add_problem(self, kind: str, path: str, split: str = "", label: str = "", detail: str = "") -> None:
        self.problems.append(Problem(kind, path, split, label, "", detail))

    def add(self, line: int, path: str, label: str, split_name: str) -> None:
        where = f"line {line}"
        split = SPLIT_FOLDERS.get(split_name.strip().lower(), "")
        if not split and self._has_splits:
            self.add_problem("unknown_split", path, "", label, f"{where}: {split_name!r}; known: {', '.join(SPLITS)}")
            return
        if not label:
            self.add_problem("empty_label", path, split, detail=where)
            return
        self.classes.setdefault(split, set()).add(label)
        file = self._find(path)
        if file is None:
            self.add_problem("missing_file", path, split, label, where)
            return
        key = os.path.normpath(file)
        if os.path.isabs(key) or key.startswith(os.pardir + os.sep):
            self.add_problem("outside_archive" if self._confined else "outside_root", file, split, label, where)
        if key in self._seen:
            self._repeated(file, split, label, where, *self._seen[key])
            return
        self._seen[key] = line, len(self.paths)
        self.paths.append(file)
        self.labels.append(label)
        self.splits.append(split)

    def _repeated(self, path: str, split: str, label: str, where: str, line: int, place: int) -> None:
        kinds = []
        if split != self.splits[place]:
            kinds.append("row_in_two_splits")
        if label != self.labels[place]:
            kinds.append("row_with_two_labels")
            where = f"{where}: {label!r}, {self.labels[place]!r}"
        for kind in kinds or ["duplicate_row"]:
            self.add_problem(kind, path, split, label, f"{where}, first in line {line}")

    def _find(self, cell: str) -> str | None:
        """The file that a cell means, relative to the table: as written, without its extension, or in `train`."""
        if not cell:
            return None
        path = cell.replace("\\", "/") if os.sep == "\\" else cell
        endings = ("",) if is_image_name(path) else ("", *IMAGE_EXTENSIONS)
        names = (f"{folder}{path}{ending}" for folder in ("", "train/") for ending in endings)
        return next((name for name in names if os.path.isfile(os.path.join(self._root, name))), None)
