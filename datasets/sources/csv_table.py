"""A table of images: path, label and perhaps split, one row per image, paths relative to the table."""

import codecs
import io
import os
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from datasets.bundle import SPLITS
from datasets.config import USUAL_COLUMNS, Columns
from datasets.errors import DataError
from datasets.grouping.columns import group_column, torn_apart
from datasets.grouping.option import by_column, column_of, normal
from datasets.images import IMAGE_EXTENSIONS, is_image_name
from datasets.shell import quoted
from datasets.sources.image_folder import list_folder
from datasets.sources.reading import SPLIT_FOLDERS, Reading, Rows
from datasets.tables import cells_of, unguarded
from datasets.text import pluralise

TABLE_SUFFIXES = (".csv", ".tsv")
USUAL = {
    "path": ("path", "id", "image", "image_id", "image_name", "image_path", "filename", "file_name", "file"),
    "label": ("label", "breed", "class", "class_name", "species", "category", "target"),
}
"""Usual names of the columns, in upper or lower case; the first two, here and in Kaggle's dog breeds, even where a
table lies beside class folders."""
Lines = list[tuple[int, list[str]]]


def read_table(
    table: Path, name: str | None = None, *, columns: Columns = USUAL_COLUMNS, confined: bool = False
) -> Reading:
    """Read a table with the columns path, label and perhaps split (train, val, test), and report its faulty rows.

    An image is found as its cell says, without its extension, or in a folder beside the table. `confined`: the table
    came out of an archive, so its paths may not lead out of its folder. Raises FileNotFoundError: no such table.
    DataError: it is not text, a column is missing, or no row names an image that is there.
    """
    header, lines, manner = _read(table)
    split_at = header.index("split") if "split" in header else None
    rows = _Lines(table.parent, confined=confined, has_splits=any(_cell(cells, split_at) for _, cells in lines))
    _refuse_a_first_row_of_data(table, header, columns, rows)
    path_at = _path_column(header, columns, table, rows, lines)
    _refuse_a_column_for_each_class(table, header, columns, lines, header[path_at])
    label_at = _columns(header, "label", columns, table)[0]
    group_at = _group_column(header, columns, table)
    for number, cells in lines:
        if any(cells[len(header) :]):
            rows.problem("ragged_row", cells[path_at], detail=f"line {number}")
        else:
            path, label, split, group = (_cell(cells, at) for at in (path_at, label_at, split_at, group_at))
            rows.add_line(number, path, label, split, group)
    if not len(rows.paths):
        first = f": {rows.problems[0]}" if rows.problems else ""
        raise DataError(f"{table} names no image that can be used{first}")
    if "train" not in rows.classes and "" not in rows.classes:
        rows.problem("empty_split", "train", "train")
    rows.report_files_elsewhere()
    if columns.group is None:
        rows.say_group_column(table, header, [cells for _, cells in lines])
    how = f"path from {header[path_at]!r}{rows.manner()}, label from {header[label_at]!r}{manner}"
    plain = how == "path from 'path', label from 'label'"
    notes = () if plain else (f"{table.name} is read so: {how}",)
    grouped = {"grouped_by": by_column(header[group_at])} if group_at is not None else {}
    samples = rows.samples(name or table.stem, table.parent, notes=notes, **grouped)
    return Reading(str(table), "table" if plain else f"table ({how})", samples, rows.classes, rows.problems)


def is_sample_table(table: Path, columns: Columns, *, sure: bool = False) -> bool:
    """Return whether a table names paths and labels; a folder may hold some other table. `sure`: by names that mean
    nothing else, or that a person gave."""
    try:
        header = _read(table)[0]
    except DataError:
        return False
    names = (column_names(role, columns)[: 2 if sure else None] for role in USUAL)
    return all(set(known) & set(header) for known in names)


def _read(table: Path) -> tuple[list[str], Lines, str]:
    """The header in lower case, (line number, cells) of every row that is not blank, and what is unusual, in words."""
    if not table.is_file():
        raise FileNotFoundError(f"no table {table}")
    try:
        text, manner = _decode(table.read_bytes(), table)
        first = text.partition("\n")[0]
        delimiter = "\t" if table.suffix.lower() == ".tsv" else max(",;\t", key=first.count)
        manner = f", semicolons between cells{manner}" if delimiter == ";" else manner
    except OSError as error:
        raise DataError(f"cannot read table {table}: {error}") from error
    rows = _rows(text, delimiter, table)
    header = [cell.strip().lower() for cell in rows[0]] if rows else []
    while header and not header[-1]:
        header.pop()
    numbers = accumulate((1 + sum(cell.count("\n") for cell in cells) for cells in rows), initial=0)
    lines = [(number, cells) for number, cells in zip(numbers, rows, strict=False) if any(map(str.strip, cells))]
    return header, [(number + 1, cells) for number, cells in lines if number], manner


def _rows(text: str, delimiter: str, table: Path) -> list[list[str]]:
    """The cells of every line, blank ones too, those of a short line filled up with empty ones."""
    if not text.strip():
        return []
    width = 1 + max(line.count(delimiter) for line in text.split("\n"))
    how = {"header": None, "names": range(width), "skip_blank_lines": False, "skipinitialspace": True}
    try:
        return cells_of(io.StringIO(text, newline=""), sep=delimiter, **how).to_numpy().tolist()
    except DataError as error:
        raise DataError(f"cannot read table {table}: {error}") from None


def _decode(content: bytes, table: Path) -> tuple[str, str]:
    """The text of a table, and in words how it was encoded where that is not UTF-8: as spreadsheets also save it."""
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    for encoding, manner in (("utf-8-sig", ""), ("utf-16", "UTF-16") if wide else ("cp1252", "Windows-1252")):
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError:
            continue
        if "\0" not in text:
            return text, manner and f", read as {manner}"
    raise DataError(f"{table} is no text in UTF-8, UTF-16 or Windows-1252; save it as CSV in UTF-8")


def _cell(cells: Sequence[str], column: int | None) -> str:
    """The text of a cell, kept as it is; empty where there is no such column, or only space in it."""
    return unguarded(cells[column]) if column is not None and column < len(cells) and cells[column].strip() else ""


def column_names(role: str, columns: Columns) -> tuple[str, ...]:
    """Return the names that a column may have, in lower case."""
    name = getattr(columns, role)
    return USUAL[role] if name is None else (name.strip().lower(),)


def _path_column(header: Sequence[str], columns: Columns, table: Path, rows: "_Lines", lines: Lines) -> int:
    """Index of the path column: of several such columns the first whose first cell leads to a file."""
    places = _columns(header, "path", columns, table)
    cells = lines[0][1] if lines else []
    return next((at for at in places[len(places) < 2 :] if rows.find(_cell(cells, at))), places[0])


def _columns(header: Sequence[str], role: str, columns: Columns, table: Path) -> list[int]:
    """Indices of the columns that may be the path, or the label: the likeliest first."""
    places = [header.index(name) for name in column_names(role, columns) if name in header]
    if places:
        return places
    known, listed = getattr(columns, role), ", ".join(header) or "nothing"
    if known is not None:
        raise DataError(f"{table} has no column {known!r}: found {listed}")
    raise DataError(f"{table} has no {role} column: found {listed}; name it with --{role}-column")


def _group_column(header: Sequence[str], columns: Columns, table: Path) -> int | None:
    """Index of the column that --group names; None where it says something else, such as a pattern for the path."""
    name = (columns.group or "").strip().lower()
    if name in header:
        return header.index(name)
    if column_of(columns.group):
        raise DataError(f"{table} has no column {name!r}: found {', '.join(header)}")
    return None


def _refuse_a_first_row_of_data(table: Path, header: Sequence[str], columns: Columns, rows: "_Lines") -> None:
    """Raise DataError where a table has no header: its first line names an image."""
    if columns.path or columns.label or {*USUAL["path"], *USUAL["label"]} & {*header}:
        return
    if any(is_image_name(cell) or (os.sep in cell and rows.find(cell)) for cell in header):
        raise DataError(f"{table} has no header: its first line is an image; write path,label above it")


def _refuse_a_column_for_each_class(
    table: Path, header: Sequence[str], columns: Columns, lines: Lines, path: str
) -> None:
    """Raise DataError where the columns beside the path hold a single 1 in each row: classes as one-hot vectors."""
    if any(name in header for name in column_names("label", columns)) or columns.label is not None or not lines:
        return
    vectors = [
        [_cell(row, at).strip().removesuffix(".0") for at in range(len(header)) if header[at] != path]
        for _, row in lines
    ]
    names = [name for name in header if name != path]
    if len(names) > 1 and all(sorted(vector) == ["0"] * (len(names) - 1) + ["1"] for vector in vectors):
        listed = ", ".join(names[:5]) + ", ..." * (len(names) > 5)
        raise DataError(f"{table} looks one-hot: {listed} hold 0 or 1; name the class in one column, {path},label")


class _Lines(Rows):
    """Takes line by line, keeps the good ones and reports the others."""

    def __init__(self, root: Path, *, confined: bool, has_splits: bool) -> None:
        super().__init__()
        self._root, self._confined, self._has_splits = str(root), confined, has_splits
        self._seen: dict[str, tuple[int, str, str]] = {}  # file: line, label and split
        beside = list_folder(root)[0]
        self._folders = ["", *(f"{name}/" for name in beside if SPLIT_FOLDERS.get(name.lower(), "train") == "train")]
        self._ways: set[tuple[str, str, str]] = set()  # how files were found: folder, extension added, \\ for /
        self._elsewhere: dict[bool, list[str]] = {True: [], False: []}
        """Files by an absolute path, and files by a path that leads out of the folder of the table."""

    def say_group_column(self, table: Path, header: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
        """Report a column that names groups, where the table has no splits or these tear them apart."""
        if found := group_column(header, lines):
            name, sizes = found
            torn = torn_apart(header, lines, name)
            apart = f", and the table's splits tear {torn} of them apart" if torn else ""
            detail = f"the column {name!r} names {sizes}{apart}; to keep each in one part: --group {quoted(name)}"
            if torn != 0:
                self.problem("group_column", table.name, detail=detail)

    def add_line(self, line: int, path: str, label: str, split_name: str, group: str = "") -> None:
        where = f"line {line}"
        split = SPLIT_FOLDERS.get(split_name.strip().lower(), "")
        if not split and self._has_splits:
            self.problem("unknown_split", path, "", label, f"{where}: {split_name!r}; known: {', '.join(SPLITS)}")
            return
        if not label:
            self.problem("empty_label", path, split, detail=where)
            return
        self.classes.setdefault(split, set()).add(label)
        file = self.find(path)
        if file is None:
            self.problem("missing_file", path, split, label, where)
            return
        key = os.path.normpath(file)
        if os.path.isabs(key) or key.startswith(os.pardir + os.sep):
            if self._confined:
                self.problem("outside_archive", file, split, label, where)
            self._elsewhere[os.path.isabs(key)].append(file)
        if key in self._seen:
            self._repeated(file, split, label, where, *self._seen[key])
            return
        self._seen[key] = line, label, split
        self.add(file, label, split, normal(group))

    def report_files_elsewhere(self) -> None:
        """One line for all files that are not found by a path within the folder of the table."""
        absolute, outside = self._elsewhere[True], self._elsewhere[False]
        if absolute and not self._confined:
            detail = f"{pluralise(len(absolute), 'absolute path')}: the table works on this machine only"
            self.problem("outside_root", absolute[0], detail=detail)
        if outside and not self._confined:
            lead = f"{pluralise(len(outside), 'path')} lead{'s' * (len(outside) == 1)}"
            self.problem(
                "outside_root", outside[0], detail=f"{lead} out of its folder: the table does not move with it"
            )

    def _repeated(self, path: str, split: str, label: str, where: str, line: int, label_there: str, there: str) -> None:
        kinds = []
        if split != there:
            kinds.append("row_in_two_splits")
        if label != label_there:
            kinds.append("row_with_two_labels")
            where = f"{where}: {label!r}, {label_there!r}"
        for kind in kinds or ["duplicate_row"]:
            self.problem(kind, path, split, label, f"{where}, first in line {line}")

    def find(self, cell: str) -> str | None:
        """The file that a cell means, relative to the table: as written, without its extension, in a folder beside it,
        or with the \\ of Windows between folders."""
        if not cell:
            return None
        for path in dict.fromkeys((cell, cell.replace("\\", "/"))):
            for folder in self._folders:
                for ending in ("",) if is_image_name(path) else ("", *IMAGE_EXTENSIONS):
                    if os.path.isfile(os.path.join(self._root, f"{folder}{path}{ending}")):
                        self._ways.add((folder, ending, "/" * (path != cell)))
                        return f"{folder}{path}{ending}"
        return None

    def manner(self) -> str:
        """Say in words where the cells are not the paths of the files themselves."""
        endings, folders = (" or ".join(sorted({way[part] for way in self._ways} - {""})) for part in (1, 0))
        words = (endings and f" with {endings} added", folders and f" in {folders}")
        return "".join(words) + " with / for \\" * any(turned for *_, turned in self._ways)
