"""A table of images: path, label and perhaps split, one row per image, paths relative to the table."""

import io
import os
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from common.errors import DataError
from common.tables import cells_of, layout_of, opened_as, unguarded
from common.text import decode_text, normal, shorten_list
from datasets.bundle import SPLITS
from datasets.config import USUAL_COLUMNS, Columns, by_column, column_of
from datasets.sources.reading import SPLIT_FOLDERS, Reading, Rows
from datasets.sources.split_column import split_column
from datasets.sources.table_files import TableFiles
from datasets.suspect import suspect_column

TABLE_SUFFIXES = (".csv", ".tsv")
USUAL = {
    "path": (
        "path", "id", "image", "image_id", "image_name", "image_path", "filename", "file_name", "file", "filepath",
        "file_path",
    ),
    "label": ("label", "breed", "class", "class_name", "species", "category", "target", "ground_truth"),
}  # fmt: skip
"""Usual names of the columns, in upper or lower case; the first two, here and in Kaggle's dog breeds, even where a
table lies beside class folders."""
Cells = dict[str, list[str]]
"""The columns of a table, by their names in lower case."""


class TableRow(NamedTuple):
    """One row of a table of images."""

    line: int
    path: str
    label: str
    split: str
    group: str


def read_table(
    table: Path, name: str | None = None, *, columns: Columns = USUAL_COLUMNS, confined: bool = False
) -> Reading:
    """Read a table with the columns path, label and perhaps split (train, val, test), and report its faulty rows.

    `confined`: the table came out of an archive, so its paths may not lead out of its folder. Raises FileNotFoundError:
    no such table. DataError: it is not text, a column is missing, or no row names an image that is there.
    """
    cells, lines, encoding = read_columns(table)
    rows = _TableRows(table.parent, confined=confined)
    path, label = _path_column(cells, columns, table, rows), columns_of(cells, "label", columns, table)[0]
    group = _group_column(cells, columns, table)
    split = split_column(cells, {path, label, group}, table)
    empty = [""] * len(lines)
    of_roles = [cells[path], cells[label], cells.get(split, empty), cells.get(group, empty)]
    for row in map(TableRow, lines, *of_roles):
        rows.add_row(row, has_splits=bool(split))
    if not len(rows.paths):
        first = f": {rows.problems[0]}" if rows.problems else ""
        raise DataError(f"{table} names no image that can be used{first}")
    if "train" not in rows.classes and "" not in rows.classes:
        rows.problem("empty_split", "train", "train")
    if columns.group is None and (suspected := suspect_column(cells, split)):
        rows.problem("group_column", table.name, detail=suspected)
    how = f"path from {path!r}, label from {label!r}" + f", split from {split!r}" * (split not in ("", "split"))
    how += f", read as {encoding}" * bool(encoding)
    plain = how == "path from 'path', label from 'label'"
    notes = () if plain else (f"columns of {table.name}: {how}",)
    grouped = {"grouped_by": by_column(group)} if group else {}
    samples = rows.samples(name or table.stem, table.parent, notes=notes, **grouped)
    return Reading(str(table), "table" if plain else f"table ({how})", samples, rows.classes, rows.problems)


def is_sample_table(table: Path, columns: Columns, *, sure: bool = False) -> bool:
    """Return whether the header names paths and labels. `sure`: by names that mean nothing else, or that are given."""
    try:
        header = {str(name).strip().lower() for name in cells_of(table, nrows=0, **opened_as(table))}
    except (OSError, DataError):
        return False
    return all(header & {*column_names(role, columns)[: 2 if sure else None]} for role in USUAL)


def read_columns(table: Path) -> tuple[Cells, list[int], str]:
    """Return the columns that have a name, the line of each row that is not blank, and the encoding if not UTF-8.

    Raises FileNotFoundError: no such table. DataError: it is no table.
    """
    if not table.is_file():
        raise FileNotFoundError(f"no table {table}")
    try:
        text, encoding = decode_text(table.read_bytes())
        layout = layout_of(text[: 2**16])
        frame = cells_of(io.StringIO(text, newline=""), skip_blank_lines=False, skipinitialspace=True, **layout)
    except (OSError, DataError) as error:
        raise DataError(f"cannot read table {table}: {error}") from error
    line, lines, rows = layout["skiprows"] + 2, [], []
    for row in frame.to_numpy().tolist():
        if any(map(str.strip, row)):
            lines.append(line)
            rows.append([unguarded(cell) if cell.strip() else "" for cell in row])
        line += 1 + sum(cell.count("\n") for cell in row)
    cells: Cells = {}
    for place, name in enumerate(map(str, frame)):
        if not name.startswith("Unnamed: "):  # what pandas calls a column without a name, such as its own index
            cells.setdefault(name.strip().lower(), [row[place] for row in rows])
    return cells, lines, encoding


def column_names(role: str, columns: Columns) -> tuple[str, ...]:
    """Return the names that a column may have, in lower case."""
    name = getattr(columns, role)
    return USUAL[role] if name is None else (name.strip().lower(),)


def columns_of(cells: Collection[str], role: str, columns: Columns, table: Path) -> list[str]:
    """Return the columns that may be the path, or the label: the likeliest first."""
    names = [name for name in column_names(role, columns) if name in cells]
    if names:
        return names
    known = getattr(columns, role)
    wanted = f"{role} column" if known is None else f"column {known!r}"
    hint = f"name it with --{role}-column, or write path,label above it"
    raise DataError(f"{table} has no {wanted}: found {', '.join(cells) or 'nothing'}; {hint}")


def _path_column(cells: Cells, columns: Columns, table: Path, rows: "_TableRows") -> str:
    """The path column: of several such columns the first whose first cell leads to a file."""
    names = columns_of(cells, "path", columns, table)
    return next((name for name in names if len(names) > 1 and rows.files.find("".join(cells[name][:1]))), names[0])


def _group_column(cells: Cells, columns: Columns, table: Path) -> str:
    """The column that --group names; empty where it says something else, such as a pattern for the path."""
    name = (columns.group or "").strip().lower()
    if name not in cells and column_of(columns.group):
        raise DataError(f"{table} has no column {name!r}: found {', '.join(cells)}")
    return name if name in cells else ""


class _TableRows(Rows):
    """Takes row by row, keeps the good ones and reports the others."""

    def __init__(self, root: Path, *, confined: bool) -> None:
        super().__init__()
        self.files, self._confined = TableFiles(root), confined
        self._first: dict[str, TableRow] = {}
        """File -> the first row that names it."""

    def add_row(self, row: TableRow, *, has_splits: bool) -> None:
        where, split = f"line {row.line}", SPLIT_FOLDERS.get(row.split.strip().lower(), "")
        if not split and has_splits:
            known = f"{where}: {row.split!r}; known: {', '.join(SPLITS)}"
            self.problem("unknown_split", row.path, "", row.label, known)
            return
        if not row.label:
            self.problem("empty_label", row.path, split, detail=where)
            return
        self.classes.setdefault(split, set()).add(row.label)
        file, *others = self.files.find(row.path) or [""]
        key = os.path.normpath(file)
        if not file:
            self.problem("missing_file", row.path, split, row.label, where + self.files.nearest(row.path))
        elif others:
            self.problem("ambiguous_file", row.path, split, row.label, f"{where}: {shorten_list([file, *others])}")
        elif self._confined and (os.path.isabs(key) or key.startswith(os.pardir + os.sep)):
            self.problem("outside_archive", file, split, row.label, where)
        elif (first := self._first.setdefault(key, row)) is not row:
            said = f"{where}: {row.label!r} {row.split}".rstrip()
            first_said = f"line {first.line}: {first.label!r} {first.split}".rstrip()
            self.problem("duplicate_row", file, split, row.label, f"{said}; {first_said}")
        else:
            self.add(file, row.label, split, normal(row.group))
