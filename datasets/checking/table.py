"""A CSV or TSV table as `check` reads it: every row, the faulty ones too."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from pathlib import Path

from datasets.checking.layout import SPLIT_ORDER, Finding, Layout, Picture
from datasets.errors import DataError
from datasets.images import IMAGE_EXTENSIONS
from datasets.sources.image_folder import SPLIT_FOLDERS

TABLE_EXTENSIONS = (".csv", ".tsv")
COLUMNS: dict[str, tuple[str, ...]] = {"path": ("path", "id"), "label": ("label", "breed"), "split": ("split",)}
"""What the columns are called, here and in Kaggle's dog breeds; upper or lower case."""


def table_layout(table: Path) -> Layout:
    """Read a table of path, label and perhaps split; paths are relative to the table, or to a folder `train` beside it.

    Raises:
        FileNotFoundError: no such table.
        DataError: it is not text, a column is missing, or no row names an image that is there.
    """
    header, rows = _read(table)
    path_at, label_at, split_at = (_column(header, role, table) for role in COLUMNS)
    layout = Layout(table.parent, "table")
    rows = [(number, row + [""] * (len(header) - len(row))) for number, row in rows]  # a short row lacks its last cells
    splits = [row[split_at].strip() if split_at >= 0 else "" for _, row in rows]
    walk = _Rows(layout, has_splits=any(splits))
    for (number, row), split in zip(rows, splits, strict=True):
        walk.add(number, row[path_at].strip(), row[label_at].strip(), split)
    if not layout.pictures:
        missing = next((found.path for found in layout.findings if found.kind == "missing_file"), "")
        hint = f"; for example {missing!r} is not in {table.parent}" if missing else ""
        raise DataError(f"{table} names no image that is there{hint}")
    layout.pictures.sort(key=lambda picture: (SPLIT_ORDER[picture.split], picture.path))
    return layout


def _read(table: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The header, and (line number, cells) of every row that is not blank."""
    try:
        text = table.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{table} is not UTF-8 text (byte {error.start}); save it as CSV in UTF-8") from error
    except OSError as error:
        raise DataError(f"cannot read {table}: {error.strerror}") from error
    lines = text.splitlines(keepends=True)
    tab = table.suffix.lower() == ".tsv" or bool(lines and "\t" in lines[0] and "," not in lines[0])
    reader = csv.reader(lines, delimiter="\t" if tab else ",")
    header = [cell.strip().lower() for cell in next(reader, [])]
    return header, [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]


def _column(header: Sequence[str], role: str, table: Path) -> int:
    for name in COLUMNS[role]:
        if name in header:
            return header.index(name)
    if role == "split":
        return -1
    found = ", ".join(header) or "nothing"
    raise DataError(f"{table} has no {role} column: found {found}; call it {role!r} in the first line")


class _Rows:
    """Takes rows one by one, keeps the good ones as pictures and reports the others."""

    def __init__(self, layout: Layout, *, has_splits: bool) -> None:
        self.layout = layout
        self._has_splits = has_splits
        self._first: dict[str, tuple[int, Picture]] = {}
        self._inside = os.path.realpath(layout.root)

    def add(self, number: int, path: str, label: str, split_name: str) -> None:
        findings, where = self.layout.findings, f"line {number}"
        split = SPLIT_FOLDERS.get(split_name.lower(), "")
        if not split and self._has_splits:
            detail = f"{where}: {split_name!r}; known: train, val, test"
            findings.append(Finding("unknown_split", path, "", label, "", detail))
            return
        if not label:
            findings.append(Finding("empty_label", path, split, "", "", where))
            return
        self.layout.classes.setdefault(split, set()).add(label)
        file = self._find(path)
        if file is None:
            findings.append(Finding("missing_file", path, split, label, "", where))
            return
        if not Path(os.path.realpath(self.layout.root / file)).is_relative_to(self._inside):
            findings.append(Finding("outside_root", file, split, label, "", where))
        if file in self._first:
            self._repeated(Picture(file, split, label), where)
        else:
            self._first[file] = number, Picture(file, split, label)
            self.layout.pictures.append(Picture(file, split, label))

    def _repeated(self, picture: Picture, where: str) -> None:
        number, first = self._first[picture.path]
        detail = f"{where}, first in line {number}"
        kinds = []
        if picture.split != first.split:
            kinds.append("row_in_two_splits")
        if picture.label != first.label:
            kinds.append("row_with_two_labels")
        for kind in kinds or ["duplicate_row"]:
            self.layout.findings.append(Finding.about(kind, picture, detail))

    def _find(self, path: str) -> str | None:
        """The file a cell means, relative to the table: as written, without its extension, or in `train` (Kaggle)."""
        if not path:
            return None
        endings = ("",) if path.lower().endswith(IMAGE_EXTENSIONS) else ("", *IMAGE_EXTENSIONS)
        for folder in ("", "train/"):
            for ending in endings:
                if (self.layout.root / f"{folder}{path}{ending}").is_file():
                    return os.path.normpath(f"{folder}{path}{ending}").replace(os.sep, "/")
        return None
