"""Read tables as pandas DataFrames, and write tables that are safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any

from common.errors import DataError
from common.text import WIDE

if TYPE_CHECKING:
    import pandas as pd

_FORMULA = re.compile(r"'*[=+\-@\t\r\n](?!\d*\.?\d*(e[+-]?\d+)?$)")
"""Start of a cell that a spreadsheet takes for a formula, numbers excluded."""
_SIGNS = frozenset("'=+-@\t\r\n")
_ABOVE_HEADER = re.compile(r'(#(?![,;|\t]).*|"?sep=.?"?)?', re.IGNORECASE)


def csv_lines(header: Iterable[object], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    """Yield the lines of a CSV table, the header first, each with its line feed.

    Without pandas, whose import takes 0.4 s: a run writes tables before its first step.
    """
    # With its own line end the writer quotes a carriage return in a cell, too.
    writer: Any = csv.writer(SimpleNamespace(write=lambda line: line.removesuffix("\r\n") + "\n"))
    for row in chain((header,), rows):
        yield writer.writerow(map(escape_formula, row))  # the text that `write` returned


def csv_text(header: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    return "".join(csv_lines(header, rows))


def frame_of(header: Iterable[object], rows: Iterable[Iterable[object]]) -> pd.DataFrame:
    """Build a DataFrame of Python objects, since pandas' strings cannot hold names that are not Unicode."""
    import pandas as pd

    return pd.DataFrame(map(list, rows), columns=pd.Index(list(header), dtype=object), dtype=object)


def frame_text(frame: pd.DataFrame) -> str:
    """Write a DataFrame as CSV without its index: floats in full precision, missing cells empty."""
    known = own_objects(frame)
    return csv_text([*known], known.itertuples(index=False))


def own_objects(frame: pd.DataFrame) -> pd.DataFrame:
    """Convert the cells of a DataFrame to Python objects, missing ones to None."""
    return frame.astype(object).where(frame.notna(), None)


def escape_formula(cell: object) -> object:
    """Put an apostrophe, which `read_table` removes, before text that a spreadsheet would execute."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in _SIGNS and _FORMULA.match(cell) else cell


def unguarded(cell: str) -> str:
    return cell[1:] if cell[:1] == "'" and _FORMULA.match(cell[1:]) else cell


def cells_of(file: IO[str] | Path, **how: Any) -> pd.DataFrame:
    """Read the cells of a table as text, empty where a row is short. Raises DataError: it is not a table."""
    import pandas as pd

    kept: dict[str, Any] = {"dtype": object, "keep_default_na": False, "na_filter": False, "index_col": False}
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # if all rows have one cell too many
        try:
            return pd.read_csv(file, **kept, **how)
        except (pd.errors.ParserError, pd.errors.ParserWarning, pd.errors.EmptyDataError, UnicodeError) as error:
            raise DataError(str(error).removeprefix("Error tokenizing data. C error: ").strip()) from None


def layout_of(beginning: str) -> dict[str, Any]:
    """Return the number of lines above a table's header, and the delimiter of its cells."""
    lines = beginning.split("\n")
    above = next((place for place, line in enumerate(lines) if not _ABOVE_HEADER.fullmatch(line.strip())), 0)
    return {"skiprows": above, "sep": max(",;\t|", key=lines[above].count)}


def opened_as(path: Path) -> dict[str, Any]:
    """Return pandas options for reading a table of ours, with non-UTF-8 bytes of paths kept."""
    with open(path, "rb") as file:
        beginning = file.read(2**16)
    encoding = {"encoding": "utf-16" if beginning.startswith(WIDE) else "utf-8-sig"}
    return layout_of(beginning.decode(**encoding, errors="replace")) | encoding | {"encoding_errors": "surrogateescape"}


def read_table(path: Path, needed: Sequence[str], *, what: str = "table") -> pd.DataFrame:
    """Read a table of ours as text, with the columns `needed`.

    Raises FileNotFoundError: there is no such file. DataError: it is not a table, or lacks a column.
    """
    import pandas as pd

    if not path.is_file():
        raise FileNotFoundError(f"no {what} {path}; expected a CSV with {' and '.join(needed)} among its columns")
    try:
        table = cells_of(path, **opened_as(path))
    except DataError as error:
        raise DataError(f"{path} is no table that can be read: {error}") from None
    missing = [name for name in needed if name not in table]
    if missing:
        raise DataError(f"{path} has the columns {', '.join(map(str, table))}; a {what} needs {', '.join(missing)} too")
    for name in table:
        cells = table[name].tolist()
        if any(
            cell[:1] == "'" for cell in cells
        ):  # text without a valid encoding stays an object: Arrow could not hold it
            table[name] = pd.Series([*map(unguarded, cells)], dtype=object)
    return table


def read_rows(path: Path, needed: Sequence[str], *, what: str = "table") -> list[dict[str, str]]:
    """Read the rows of `read_table` as dictionaries."""
    return read_table(path, needed, what=what).to_dict("records")  # type: ignore[return-value]
