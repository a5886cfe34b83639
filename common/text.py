"""Format text for people and for files. No torch here."""

import codecs
import difflib
import re
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from common.errors import DataError
from common.shell import PROGRAM, TENSORBOARD

WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_NOT_SURELY_WESTERN = re.compile(rb"[\x80-\xbf\xd7\xf7]|[\x80-\xff]{3}")
"""Bytes of another code page: no letters of Western Europe in Windows-1252, or three of them in a row."""
_STRAY_BYTES = re.compile("[\udc80-\udcff]+")


def decode_text(content: bytes) -> tuple[str, str]:
    """Decode the text of a person's file; return it and its encoding if not UTF-8.

    Raises DataError: neither UTF-8 nor UTF-16 with its mark, nor certainly Windows-1252.
    """
    western = [] if _NOT_SURELY_WESTERN.search(content) else [("cp1252", "Windows-1252")]
    for encoding, name in [("utf-16", "UTF-16")] if content.startswith(WIDE) else [("utf-8-sig", ""), *western]:
        with suppress(UnicodeDecodeError):
            text = content.decode(encoding)
            if "\0" not in text:
                return text, name
    raise DataError("no text in UTF-8 or UTF-16, nor surely in Windows-1252; save it as UTF-8")


def read_text(path: Path) -> str:
    """Return the text of a file that a person saved. Raises as `decode_text` does."""
    try:
        return decode_text(path.read_bytes())[0]
    except DataError as error:
        raise DataError(f"{path} is {error}") from None


def plain_path(path: str) -> str:
    """Return a path with letters as NFC, forward slashes, and invalid bytes as Latin-1."""
    path = _STRAY_BYTES.sub(lambda stray: stray[0].encode("utf-8", "surrogateescape").decode("latin-1"), path)
    return unicodedata.normalize("NFC", path).replace("\\", "/")


def normal(text: str) -> str:
    """Strip a name and compose its letters (NFC), since file systems spell them differently."""
    return unicodedata.normalize("NFC", text.strip())


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """End a sentence about an unknown name with `; did you mean X?` or a full stop."""
    word, words = name.lower().lstrip("-"), {other.lstrip("-"): other for other in known}
    near = [other for other in words if other.startswith(word)] or difflib.get_close_matches(word, words, n=1)
    return f"; did you mean {words[near[0]]}?" if near else "."


def printable(text: str) -> str:
    """Put text on one line, with codes such as `\\n` and `\\udcff` for unprintable characters."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def format_table(rows: Sequence[Sequence[str]], *, left: Collection[int] = (0,)) -> Iterator[str]:
    """Yield the aligned lines of a table; the columns `left` are left-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = enumerate(zip(row, widths, strict=True))
        yield "  ".join(f"{cell:{'<' if place in left else '>'}{width}}" for place, (cell, width) in cells).rstrip()


def pluralise(number: float, noun: str) -> str:
    """Join a number and its noun: `1 image`, `2,000 images`, `2.5 epochs`, `1 class`."""
    digits = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{digits} {noun}" if number == 1 else f"{digits} {noun}{'es' if noun.endswith('s') else 's'}"


def shorten_list(names: Sequence[str], limit: int = 3) -> str:
    """Quote the first few of a list of names, and count the others."""
    shown = ", ".join(map(repr, names[:limit]))
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def ellipsis(name: str, width: int) -> str:
    """Shorten a long name in the middle, since names often differ at the end."""
    if len(name) <= width:
        return name
    half = (width - 1) // 2
    return f"{name[: width - 1 - half]}…{name[-half:]}"


def wrapped(text: str, *, indent: int = 0) -> str:
    """Wrap long sentences at the width of a terminal, but not tables, commands or output to pipes.

    Continuation lines are indented by `indent` blanks.
    """
    if not sys.stdout.isatty():
        return text
    width = shutil.get_terminal_size().columns
    lines: list[str] = []
    for line in text.splitlines():
        start = max(indent, len(line) - len(line.lstrip()))
        body = line[start:]
        if "  " in body.strip() or body.startswith((PROGRAM, TENSORBOARD)):
            lines.append(line)
        else:
            parts = textwrap.wrap(body, max(1, width - start), break_long_words=False, break_on_hyphens=False) or [""]
            lines += [line[:start] + parts[0], *(" " * start + part for part in parts[1:])]
    return "\n".join(lines)
