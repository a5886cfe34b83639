"""Text for people and for files: a hint at the nearest name, one printable line, aligned columns. No torch here."""

import difflib
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence

from datasets.shell import broken, is_command


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown name: `; did you mean X?` with the nearest known one, or a full
    stop."""
    near = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else "."


def printable(text: str) -> str:
    """The text on one line: what cannot be printed becomes its code, such as `\\n` or `\\udcff`."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def format_table(rows: Sequence[Sequence[str]], *, left: Collection[int] = (0,)) -> Iterator[str]:
    """A table for a terminal, a line per row: the columns `left` begin at their left edge, others end at the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = enumerate(zip(row, widths, strict=True))
        yield "  ".join(f"{cell:{'<' if place in left else '>'}{width}}" for place, (cell, width) in cells).rstrip()


def pluralise(number: float, noun: str) -> str:
    """A number with its noun: `1 image`, `2,000 images`, `2.5 epochs`, `1 class`."""
    digits = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{digits} {noun}" if number == 1 else f"{digits} {noun}{'es' if noun.endswith('s') else 's'}"


def shorten_list(names: Sequence[str], limit: int = 3) -> str:
    """The first few of a list of names, and how many more."""
    shown = ", ".join(map(repr, names[:limit]))
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def ellipsis(name: str, width: int) -> str:
    """Keep the two ends of a long name: what makes names differ often stands at the end."""
    if len(name) <= width:
        return name
    half = (width - 1) // 2
    return f"{name[: width - 1 - half]}…{name[-half:]}"


def wrapped(text: str, *, indent: int = 0) -> str:
    """Break lines between words where the terminal is narrower, with `indent` blanks before what follows. Lines of a
    table, with two blanks between their columns, only lose a last remark in parentheses to a line of its own; a command
    is broken so that it can be pasted. What goes into a file or a pipe stays as it is."""
    if not sys.stdout.isatty():
        return text
    import shutil
    import textwrap

    width = shutil.get_terminal_size().columns
    lines: list[str] = []
    for line in text.splitlines():
        start = max(indent, len(line) - len(line.lstrip()))
        cells, gap, remark = line.rpartition("  (")
        body, space = line[start:], " " * start
        if len(line) <= width:
            lines.append(line)
        elif is_command(body):
            lines.append(line[:start] + (body if os.name == "nt" else broken(body, width, indent=start)))
        elif gap and cells.strip():
            lines += [
                cells.rstrip(),
                *textwrap.wrap(f"({remark}", width, initial_indent=REMARK, subsequent_indent=REMARK),
            ]
        elif "  " in body.strip():
            lines.append(line)
        else:
            first, *rest = textwrap.wrap(body, width - start, break_long_words=False, break_on_hyphens=False)
            lines += [line[:start] + first, *(space + part for part in rest)]
    return "\n".join(lines)


REMARK = " " * 11
