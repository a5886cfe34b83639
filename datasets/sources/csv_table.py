"""A table of images: path, label and perhaps split, one row per image, paths relative to the table."""

import io
import os
import posixpath
from collections import defaultdict
from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path

from common.errors import DataError
from common.tables import cells_of, layout_of, opened_as, unguarded
from common.text import decode_text, normal, plain_path, shorten_list
from datasets.bundle import SPLITS
from datasets.config import USUAL_COLUMNS, Columns, by_column, column_of
from datasets.images import is_image_name
from datasets.sources.reading import SPLIT_FOLDERS, Reading, Rows, split_word
from datasets.sources.walk import list_folder, walk
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
table lies next to class folders."""
WITH_YES_OR_NO = frozenset(("is", "in", "for", "set", "split", "data", "flag", "or", "and"))
"""Words around that of a split in the name of a column of yes and no."""
YES_OR_NO = frozenset(("0", "1", "true", "false", "t", "f", "yes", "no", "y", "n"))
ONE_HOT = frozenset(("", "0", "1", "0.0", "1.0"))
"""Cells of a column that says of each row whether it has one label."""
LISTED = 12
"""Columns that are named where the right one is missing."""
MOST_SPLITS = 10
"""Values that a column of splits has, at most."""
MOST_NAMES = 2_000_000
"""Names of files below a table's folder from which on no further folder is listed: it may be that of a whole disk."""
Cells = dict[str, list[str]]
"""The columns of a table, by their names in lower case."""


def read_table(
    table: Path,
    name: str | None = None,
    *,
    columns: Columns = USUAL_COLUMNS,
    confined: bool = False,
    needs_labels: bool = True,
) -> Reading:
    """Read a table of paths, labels and perhaps splits, and report its faulty rows.

    `confined`: the table came out of an archive, so its paths may not lead out of its folder. Without `needs_labels` a
    row, or the table, may lack a label. Raises FileNotFoundError: no such table. DataError: it is not text, a column is
    missing, or no row names an image that is there.
    """
    cells, lines, encoding = read_columns(table)
    rows = _TableRows(table.parent, confined=confined, needs_labels=needs_labels)
    paths, label = columns_of(cells, "path", columns, table), ""
    if needs_labels or any(name in cells for name in column_names("label", columns)):
        label = columns_of(cells, "label", columns, table)[0]
    path = next((each for each in paths if rows.files.find("".join(cells[each][:1]))), paths[0])
    group = _group_column(cells, columns, table)
    split = split_column(cells, {path, label, group}, table)
    empty = [""] * len(lines)
    of_roles = [cells[path], cells.get(label, empty), cells.get(split, empty), cells.get(group, empty)]
    for row in zip(lines, *of_roles, strict=True):
        rows.add_row(*row, has_splits=bool(split))
    if not len(rows.paths):
        first = f": {rows.problems[0]}" if rows.problems else ""
        raise DataError(f"{table} names no image that can be used{first}")
    if needs_labels and not rows.classes.keys() & {"train", ""}:
        rows.problem("empty_split", "train", "train")
    if needs_labels and columns.group is None and (suspected := suspect_column(cells, split)):
        rows.problem("group_column", table.name, detail=suspected)
    how = f"path from {path!r}" + f", label from {label!r}" * bool(label)
    how += f", split from {split!r}" * (split not in ("", "split")) + f", read as {encoding}" * bool(encoding)
    plain = how in ("path from 'path'", "path from 'path', label from 'label'")
    notes = () if plain else (f"columns of {table.name}: {how}",)
    grouped = {"grouped_by": by_column(group)} if group else {}
    samples = rows.samples(name or table.stem, table.parent, notes=notes, **grouped)
    classes = rows.classes if needs_labels else {}
    return Reading(str(table), "table" if plain else f"table ({how})", samples, classes, rows.problems)


def is_sample_table(table: Path, columns: Columns, *, sure: bool = False) -> bool:
    """Return whether the header names paths and labels. `sure`: by names that mean nothing else, or that are given."""
    try:
        header = {str(name).strip().lower() for name in cells_of(table, nrows=0, **opened_as(table))}
    except (OSError, DataError):
        return False
    return all(header & {*column_names(role, columns)[: 2 if sure else None]} for role in USUAL)


def read_columns(table: Path) -> tuple[Cells, list[int], str]:
    """Return the named columns, the line of each row, and the encoding if not UTF-8.

    Rows that are blank are left out.

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


def columns_of(cells: Mapping[str, Collection[str]], role: str, columns: Columns, table: Path) -> list[str]:
    """Return the columns that may be the path, or the label: the likeliest first."""
    names = [name for name in column_names(role, columns) if name in cells]
    if names:
        return names
    known = getattr(columns, role)
    wanted = f"{role} column" if known is None else f"column {known!r}"
    hint = f"name it with --{role}-column, or write path,label above it"
    flags = [name for name, column in cells.items() if {*column} - {""} and ONE_HOT.issuperset(column)]
    if role == "label" and known is None and len(flags) > 1:
        hint = f"{shorten_list(flags)} hold 0 and 1: write a column label with the name of the one that is 1"
    raise DataError(f"{table} has no {wanted}: found {_listed(cells)}; {hint}")


def _listed(columns: Collection[str]) -> str:
    names, more = [*columns], len(columns) - LISTED
    return ", ".join(names[:LISTED]) + f" and {more} more" * (more > 0) or "nothing"


def split_column(cells: Mapping[str, Collection[str]], roles: Collection[str], table: Path) -> str:
    """Return the column whose cells say train, val or test; empty: there is none.

    `roles`: the columns that mean something else. Raises DataError: a column seems to say it in words that are not
    sure, or several do, for test images must not be trained on.
    """
    if any(cells.get("split", ())):
        return "split"
    values = {name: {cell.strip() for cell in column} - {""} for name, column in cells.items() if name not in roles}
    found = [name for name in values if _says_splits(name, values[name])]
    if not found:
        return ""
    if len(found) == 1 and {value.lower() for value in values[found[0]]} <= SPLIT_FOLDERS.keys():
        return found[0]
    raise DataError(
        f"{table}: the column {found[0]!r} seems to say the split ({shorten_list(sorted(values[found[0]]))}); rename it"
        " to split, with train, val or test in it, or take it out"
    )


def _says_splits(name: str, values: Collection[str]) -> bool:
    """Return whether a column may say the split.

    By yes and no under a name like is_train, or by its words."""
    if not 0 < len(values) <= MOST_SPLITS:
        return False
    if {value.lower().removesuffix(".0") for value in values} <= YES_OR_NO:
        named = split_word(name)
        return len(values) == 2 and named is not None and WITH_YES_OR_NO.issuperset(named[1].split())
    found = [word for value in values if (word := split_word(value))]
    several = len({split for split, _ in found}) > 1
    return len(found) == len(values) and (several or not any(rest for _, rest in found))


def _group_column(cells: Cells, columns: Columns, table: Path) -> str:
    """Return the column that --group names; empty where it names none.

    It may say something else, such as a pattern for the path."""
    name = (columns.group or "").strip().lower()
    if name not in cells and column_of(columns.group):
        raise DataError(f"{table} has no column {name!r}: found {_listed(cells)}")
    return name if name in cells else ""


class _TableRows(Rows):
    """Takes row by row, keeps the good ones and reports the others."""

    def __init__(self, root: Path, *, confined: bool, needs_labels: bool) -> None:
        super().__init__()
        self.files, self._confined, self._needs_labels = FilesOfTable(root), confined, needs_labels
        self._first: dict[str, tuple[str, tuple[str, str, str]]] = {}
        """File -> line and words, and label, split and group, of the first row that names it."""

    def add_row(self, line: int, cell: str, label: str, split_cell: str, group: str, *, has_splits: bool) -> None:
        where, split = f"line {line}", SPLIT_FOLDERS.get(split_cell.strip().lower(), "")
        if not split and has_splits and (label or self._needs_labels):
            self.problem("unknown_split", cell, "", label, f"{where}: {split_cell!r}; known: {', '.join(SPLITS)}")
            return
        if not label and self._needs_labels:
            self.problem("empty_label", cell, split, detail=where)
            return
        self.classes.setdefault(split, set()).add(label)
        file, *others = self.files.find(cell) or [""]
        key, said, meant = os.path.normpath(file), f"{where}: {label!r} {split_cell}".rstrip(), (label, split, group)
        if not file:
            self.problem("missing_file", cell, split, label, where)
        elif others:
            self.problem("ambiguous_file", cell, split, label, f"{where}: {shorten_list([file, *others])}")
        elif self._confined and (os.path.isabs(key) or key.startswith(os.pardir + os.sep)):
            self.problem("outside_archive", file, split, label, where)
        elif key in self._first:
            earlier, same = self._first[key][0], meant == self._first[key][1]
            self.problem("repeated_row" if same else "duplicate_row", file, split, label, f"{said}; {earlier}")
        else:
            self._first[key] = said, meant
            self.add(file, label, split, normal(group))


class FilesOfTable:
    """Finds files in the folder of a table and in the folders next to it; lists them once, if a cell is not exact."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        training = [name for name in list_folder(root)[0] if SPLIT_FOLDERS.get(name.lower(), "train") == "train"]
        self._folders = ["", *(f"{plain_path(name)}/" for name in training)]

    def find(self, cell: str) -> list[str]:
        """Return the files that a cell may mean, relative to the table.

        Several: it is not clear which.

        A cell is a path as it is written, or with Windows' \\, without its extension, in another spelling of Unicode,
        or in a folder next to the table.
        """
        for path in (cell, cell.replace("\\", "/")):
            if path and os.path.isfile(os.path.join(self._root, path)):
                return [path]
        path = posixpath.normpath(plain_path(cell))
        return [file for folder in self._folders for file in self._by_name.get(folder + path, ())]

    @cached_property
    def _by_name(self) -> dict[str, list[str]]:
        """Return the files below the folder by name in NFC, images also without extension."""
        names = defaultdict(list)
        for folder in walk(self._root):
            others = [path for kind, path, _ in folder.odd if kind in ("unread_picture", "unsupported_file")]
            for path in [*(posixpath.join(folder.path, image) for image in folder.images), *others]:
                name = plain_path(path)
                stem = os.path.splitext(name)[0]
                names[name].append(path)
                if is_image_name(name) and not is_image_name(stem):
                    names[stem].append(path)
            if len(names) > MOST_NAMES:
                break
        return names
