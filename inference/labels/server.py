"""A page on this machine on which a person decides on the rows of a table; each decision is saved at once."""

import json
import threading
from pathlib import Path
from typing import Any

from werkzeug.exceptions import NotFound, UnprocessableEntity
from werkzeug.wrappers import Request, Response

from common.errors import DataError
from datasets.images import picture_of
from inference.labels.table import Reviewed
from inference.local_server import LocalServer, as_json, as_page
from trainers.reporting.figures.thumbnails import thumbnail

PAGE = Path(__file__).with_name("page.html")
SIDES = {"": 400, "small": 120, "large": 1600}
"""Longest side of a picture in pixels: in question, as an example, and enlarged."""


class ChangedElsewhere(Exception):
    """The row to decide on was changed in the table meanwhile."""


class Review(LocalServer):
    """Answers GET / with the page, /rows with all of them, /picture?N&SIZE with a sample, and POST /decide."""

    max_bytes = 10_000

    def __init__(self, table: Reviewed[Any], *, port: int) -> None:
        """Raises OptionError: the port is taken. DataError: as `table.read`."""
        self.table, self.samples = table, table.samples
        self.rows: list[Any] = []
        self.known = b""
        self.take_changes()
        self.one_at_a_time = threading.Lock()
        super().__init__("127.0.0.1", port)

    def listed(self) -> dict[str, Any]:
        """Return what the page shows: the wording, the classes, and each row with its decision."""
        wording = self.table.wording
        return {
            **vars(wording),
            "take": wording.take._asdict(),
            "choices": [choice._asdict() for choice in wording.choices],
            "table": self.table.path.name,
            "class_names": list(self.table.class_names),
            "rows": [self.shown(row) for row in self.rows],
        }

    def shown(self, row: Any) -> dict[str, Any]:
        shown = self.table.shown(row)
        examples = [strip._asdict() for strip in shown.examples]
        other = "" if shown.other is None else self.samples.paths[shown.other]
        own = {"path": row.path, "decision": row.decision, "decided": row.decided, "other_path": other}
        return {**vars(shown), **own, "examples": examples}

    def take_changes(self) -> int:
        """Read the table again if its file has changed; return how many rows are new, gone or decided otherwise.

        Raises DataError, OSError: it cannot be read.
        """
        content = self.table.path.read_bytes()
        if content == self.known:
            return 0
        before, self.rows = self.rows, self.table.read()
        self.known = content
        return max(len({*self.rows} - {*before}), len({*before} - {*self.rows}))

    def decide(self, place: int, decision: str, decided: str) -> int:
        """Save a decision, keep those made in the table meanwhile, and return how many these are.

        Raises DataError: no such decision, or a damaged table. IndexError: no such row. OSError: the table is gone.
        ChangedElsewhere: this row was decided there, or is gone; nothing is saved.
        """
        if place < 0:
            raise IndexError("a place below 0")
        with self.one_at_a_time:
            shown = self.rows[place]
            changed = self.take_changes()
            if shown not in self.rows:
                raise ChangedElsewhere(f"{shown.path!r} was changed in {self.table.path.name} meanwhile: decide again")
            row, place = self.table.decided(shown, decision, decided), self.rows.index(shown)
            self.table.save([*self.rows[:place], row, *self.rows[place + 1 :]])
            self.rows[place], self.known = row, self.table.path.read_bytes()
            return changed

    def answer(self, request: Request) -> Response:
        match request.method, request.path:
            case "GET", "/":
                return as_page(PAGE.read_bytes())
            case "GET", "/rows":
                return as_json(self.listed())
            case "GET", "/picture":
                row, _, size = request.query_string.decode("latin-1").partition("&")
                if size in SIDES and row.isdecimal() and len(row) < 10 and int(row) < len(self.samples):
                    return as_json({"picture": thumbnail(picture_of(self.samples, int(row)), SIDES[size])})
            case "POST", "/decide":
                return self.decided(request.get_data())
        raise NotFound("no such page")

    def decided(self, asked: bytes) -> Response:
        """Save the decision in a request's body. Raises UnprocessableEntity: it holds none that can be saved."""
        try:
            values = json.loads(asked)
            place, decision, by = int(values["place"]), str(values["decision"]), "person" * bool(values["decided"])
        except (ArithmeticError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise UnprocessableEntity(f"no decision: {error}") from None
        try:
            changed = self.decide(place, decision, by)
        except ChangedElsewhere as error:
            return as_json({"error": str(error), **self.listed()}, 409)
        except (DataError, IndexError, FileNotFoundError) as error:
            raise UnprocessableEntity(f"no decision: {error}") from None
        classes = {"class_names": [*self.table.class_names]}
        return as_json({"changed": changed, **classes, **(self.listed() if changed else {})})
