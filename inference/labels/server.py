"""A page on this machine to decide on the rows of a table, one by one; each decision is saved before the next."""

import json
import threading
from http import HTTPStatus
from pathlib import Path
from typing import Any

from common.errors import DataError
from datasets.images import picture_of
from inference.labels.table import Reviewed
from inference.local_server import LocalHandler, LocalServer
from trainers.reporting.figures.thumbnails import thumbnail

PAGE = Path(__file__).with_name("page.html")
MOST_BYTES = 10_000
"""Size limit of a posted decision."""
SIDES = {"": 400, "small": 120, "large": 1600}
"""Longest side of a picture in pixels: as it is asked about, as an example, and enlarged."""


class ChangedElsewhere(Exception):
    """The row to decide on is another one in the table by now."""


class Review(LocalServer):
    """Answers GET / with the page, /rows with all of them, /picture?N with a sample, and POST /decide."""

    def __init__(self, table: Reviewed[Any], *, port: int) -> None:
        """Raises OptionError: the port is taken. DataError: as `table.read`."""
        self.table, self.samples = table, table.samples
        self.rows: list[Any] = []
        self.known = b""
        self.take_changes()
        self.one_at_a_time = threading.Lock()
        super().__init__("127.0.0.1", port, ReviewHandler)

    def listed(self) -> dict[str, Any]:
        """List what the page shows: the wording, the classes, and of each row its decision and what is known of it."""
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
        """Take over what the table says by now, where it is not what was last read or written here: how many rows are
        new, gone or decided otherwise. Raises DataError, OSError: it cannot be read."""
        content = self.table.path.read_bytes()
        if content == self.known:
            return 0
        before, self.rows = self.rows, self.table.read()
        self.known = content
        return max(len({*self.rows} - {*before}), len({*before} - {*self.rows}))

    def decide(self, place: int, decision: str, decided: str) -> int:
        """Save a decision beside those that were made in the table meanwhile: how many these are.

        Raises DataError: no such decision, or the table is not one any more. IndexError: no such row. OSError: the
        table is gone. ChangedElsewhere: this very row was decided there, or is gone; nothing is saved.
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


class ReviewHandler(LocalHandler):
    server: Review

    def do_GET(self) -> None:
        path, _, asked = self.path.partition("?")
        row, _, size = asked.partition("&")
        if path == "/":
            self._reply(HTTPStatus.OK, PAGE.read_bytes(), "text/html; charset=utf-8")
        elif path == "/rows":
            self._answer(self.server.listed())
        elif path == "/picture" and size in SIDES and self.has(row):
            self._answer({"picture": thumbnail(picture_of(self.server.samples, int(row)), SIDES[size])})
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "no such page")

    def has(self, row: str) -> bool:
        """Return whether there is a picture of this number."""
        return row.isdecimal() and len(row) < 10 and int(row) < len(self.server.samples)

    def do_POST(self) -> None:
        if (length := self._length(MOST_BYTES)) is None:
            return None
        try:
            asked = json.loads(b"".join(self._parts(length)))
            place, decision, decided = int(asked["place"]), str(asked["decision"]), "person" * bool(asked["decided"])
        except (ArithmeticError, ValueError, KeyError, TypeError, RecursionError) as error:
            return self._refuse(HTTPStatus.UNPROCESSABLE_ENTITY, f"no decision: {error}")
        try:
            changed = self.server.decide(place, decision, decided)
        except (DataError, IndexError, FileNotFoundError) as error:
            return self._refuse(HTTPStatus.UNPROCESSABLE_ENTITY, f"no decision: {error}")
        except ChangedElsewhere as error:
            return self._answer({"error": str(error), **self.server.listed()}, HTTPStatus.CONFLICT)
        classes = {"class_names": list(self.server.table.class_names)}
        return self._answer({"changed": changed, **classes, **(self.server.listed() if changed else {})})
