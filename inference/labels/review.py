"""Serve a page on which a person decides on the rows of a table.

Each decision is saved at once.
"""

import json
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from werkzeug.exceptions import NotFound, UnprocessableEntity
from werkzeug.wrappers import Request, Response

from common.errors import DataError
from common.files import write_text
from common.tables import csv_text
from datasets.bundle import Samples
from datasets.images import picture_of
from inference.labels.features import ExtractedFeatures, nearest, unit_length
from inference.local_server import LocalServer, as_json, as_page
from trainers.reporting.figures.images import thumbnail

PAGE = Path(__file__).with_name("page.html")
SIDES = {"": 400, "small": 120, "large": 1600}
"""Longest side of a picture in pixels: in question, as an example, and enlarged."""
MOST_EXAMPLES = 4
"""Pictures of a class next to the one in question."""


def write_utf8(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a table to train on.

    Raises DataError: a path that a table in UTF-8 cannot hold."""
    try:
        write_text(path, csv_text(header, rows), errors="strict")
    except UnicodeEncodeError as error:
        raise DataError(f"a table in UTF-8 cannot hold the name {error.object!r:.200}: rename the file") from None


def require_share(text: str, path: str) -> None:
    """Raise DataError where a cell is no number, such as with a decimal comma."""
    try:
        float(text)
    except ValueError:
        raise DataError(f"{path!r}: confidence {text!r} is no number such as 0.95") from None


class Review(LocalServer):
    """Answers requests of the page; a subclass says what the table is.

    GET / is the page, /rows all of them, /row?N one, /picture?N&SIZE a sample; POST /decide is a decision. A subclass
    also says what follows from a decision. Rows are named tuples with at least `path`, of a sample, `decision` and
    `decided`.
    """

    max_bytes = 10_000
    texts: ClassVar[dict[str, Any]]
    """Words of the page: `title`, `hint`; `prefix` of a decision for a class; the buttons `take`, for the suggested
    class, and `choices`, each {key, text, decision}; `new_classes`: may a class be typed that no image has yet?"""

    def __init__(self, folder: Path, samples: Samples, found: ExtractedFeatures, *, port: int) -> None:
        """Read the table and listen. Raises OptionError: the port is taken. DataError: as `read`."""
        self.folder, self.samples, self.one_at_a_time = folder, samples, threading.Lock()
        self.features, self.found = unit_length(found.values), found
        self.row_of = {name: row for row, name in enumerate(samples.paths)}
        self.rows = self.read()
        super().__init__("127.0.0.1", port)

    def class_names(self) -> Sequence[str]:
        """List the classes that have a button and a key, in an order that stays."""
        raise NotImplementedError

    def read(self) -> list[Any]:
        """Read the table. Raises DataError: it is damaged, or holds a decision that is none."""
        raise NotImplementedError

    def decided(self, row: Any, decision: str, by: str) -> Any:
        """Return the row with this decision; `by` is `person`, or empty: nobody.

        Raises DataError: no such decision."""
        raise NotImplementedError

    def save(self, rows: Sequence[Any]) -> None:
        """Write the table, and whatever follows from it."""
        raise NotImplementedError

    def shown(self, row: Any) -> dict[str, Any]:
        """Return what the page shows of a row.

        `facts`, pairs of term and sentence; `suggested`, a class or empty; `other`, the path of the sample that it is a
        copy of, or empty; `classes`, to compare with."""
        raise NotImplementedError

    def comparable(self, row: Any, name: str) -> np.ndarray:
        """Return the samples of a class that a row may be compared with."""
        raise NotImplementedError

    def details(self, row: Any) -> dict[str, Any]:
        """Return what is `shown` of a row, and samples to compare it with."""
        shown, place, groups = self.shown(row), self.row_of[row.path], self.found.groups
        near = {name: nearest(self.features, groups, place, self.comparable(row, name)) for name in shown["classes"]}
        strips = [(f"labelled {name}", rows[:MOST_EXAMPLES]) for name, rows in near.items() if rows]
        return shown | {"row": place, "other_row": self.row_of.get(shown["other"]), "examples": strips}

    def listed(self) -> dict[str, Any]:
        """Return the words of the page, the classes, and each row with its decision."""
        rows = [{"path": row.path, "decision": row.decision, "decided": row.decided} for row in self.rows]
        return {**self.texts, "of": self.samples.name, "class_names": list(self.class_names()), "rows": rows}

    def answer(self, request: Request) -> Response:
        number, _, size = request.query_string.decode("latin-1").partition("&")
        place = int(number) if number.isdecimal() and len(number) < 10 else len(self.samples)
        match request.method, request.path:
            case "GET", "/":
                return as_page(PAGE.read_bytes())
            case "GET", "/rows":
                return as_json(self.listed())
            case "GET", "/row" if place < len(self.rows):
                return as_json(self.details(self.rows[place]))
            case "GET", "/picture" if place < len(self.samples) and size in SIDES:
                return as_json({"picture": self.picture(place, SIDES[size])})
            case "POST", "/decide":
                asked = request.get_data()  # before the lock: a client may be slow
                with self.one_at_a_time:
                    self.decide(asked)
                    return as_json(self.listed())
        raise NotFound("no such page")

    def picture(self, place: int, side: int) -> str:
        """Return a sample as a data URI. Raises NotFound: it cannot be read any more."""
        try:
            return thumbnail(picture_of(self.samples, place), side)
        except DataError as error:
            raise NotFound(str(error)) from None

    def decide(self, asked: bytes) -> None:
        """Save the decision in a request's body into the table as it is now.

        Others may have been made there meanwhile. Raises UnprocessableEntity: it is no decision, or the table
        cannot be read or written."""
        try:
            values = json.loads(asked)
            path, decision, by = values["path"], str(values["decision"]), "person" * bool(values["decided"])
            rows = self.read()
            place = [row.path for row in rows].index(path)
            rows[place] = self.decided(rows[place], decision, by)
            self.save(rows)
        except (DataError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise UnprocessableEntity(f"no decision: {error}") from None
        self.rows = rows
