"""Text for people and for files: a hint at the nearest name, one printable line, tables. No torch here."""

import csv
import difflib
import io
from collections.abc import Collection, Iterable, Iterator, Sequence


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


def csv_text(header: Sequence[object], rows: Iterable[Iterable[object]]) -> str:
    """A CSV table as one text, the header first, each line ended by a line feed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def some(names: Sequence[str], limit: int = 3) -> str:
    """The first few of a list of names, and how many more."""
    shown = ", ".join(map(repr, names[:limit]))
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
