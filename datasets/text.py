"""Text for people and for files: a hint at the nearest name, one printable line, tables. No torch here."""

import csv
import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from datasets.errors import DataError

_FORMULA = re.compile(r"'*[=+\-@\t\r\n](?!\d*\.?\d*(e[+-]?\d+)?$)")
"""How a cell begins that a spreadsheet takes for a formula, and is no number."""
_SIGNS = frozenset("'=+-@\t\r\n")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """What ends a sentence about an unknown name: `; did you mean X?` with the nearest known one, or a full stop."""
    near = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else "."


def printable(text: str) -> str:
    """The text on one line: what cannot be printed becomes its code, such as `\\n` or `\\udcff`."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def aligned(rows: Sequence[Sequence[str]], *, left: Collection[int] = (0,)) -> Iterator[str]:
    """A table for a terminal, a line per row: the columns `left` begin at their left edge, others end at the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = enumerate(zip(row, widths, strict=True))
        yield "  ".join(f"{cell:{'<' if place in left else '>'}{width}}" for place, (cell, width) in cells).rstrip()


def csv_lines(header: Sequence[object], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    """The lines of a CSV table, the header first, each ended by a line feed."""
    # With its own end of line the writer quotes a carriage return in a cell, too.
    writer: Any = csv.writer(SimpleNamespace(write=lambda line: line.removesuffix("\r\n") + "\n"))
    for row in chain((header,), rows):
        yield writer.writerow(map(guarded, row))  # what `write` returned


def csv_text(header: Sequence[object], rows: Iterable[Iterable[object]]) -> str:
    return "".join(csv_lines(header, rows))


def guarded(cell: object) -> object:
    """A cell as it is written: text that a spreadsheet would run gets an apostrophe, which `read_rows` takes off."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in _SIGNS and _FORMULA.match(cell) else cell


def read_rows(path: Path, needed: Sequence[str], *, what: str = "table") -> list[dict[str, str]]:
    """The rows of a table of ours, by the names of its columns; those that are `needed` are there. Raises
    FileNotFoundError: no such file. DataError: it is no table, or lacks a column."""
    if not path.is_file():
        raise FileNotFoundError(f"no {what} {path}; expected a CSV with {' and '.join(needed)} among its columns")
    with open(path, newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
        first = file.readline()
        file.seek(0)
        semicolons = first.count(";") > first.count(",")  # as spreadsheets save a table in much of Europe
        try:
            header, *rows = csv.reader(file, delimiter=";" if semicolons else ",")
        except (csv.Error, ValueError) as error:
            raise DataError(f"{path} is no table that can be read: {error}") from None
    missing = [name for name in needed if name not in header]
    if missing:
        raise DataError(f"{path} has the columns {', '.join(header)}; a {what} needs {', '.join(missing)} too")
    whole = (map(unguarded, row + [""] * (len(header) - len(row))) for row in rows if row)
    return [dict(zip(header, row, strict=False)) for row in whole]


def unguarded(cell: str) -> str:
    return cell[1:] if cell[:1] == "'" and _FORMULA.match(cell[1:]) else cell


def counted(number: float, noun: str) -> str:
    """A number with its noun: `1 image`, `2,000 images`, `2.5 epochs`, `1 class`."""
    digits = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{digits} {noun}" if number == 1 else f"{digits} {noun}{'es' if noun.endswith('s') else 's'}"


def some(names: Sequence[str], limit: int = 3) -> str:
    """The first few of a list of names, and how many more."""
    shown = ", ".join(map(repr, names[:limit]))
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
