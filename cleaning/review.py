"""A page on this machine to decide on doubtful labels, picture by picture; each decision is saved before the next."""

import json
import threading
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

from cleaning.suspects import Suspect, read_suspects, require_decision
from datasets.bundle import Samples
from datasets.errors import DataError
from datasets.images import picture_of
from figures.thumbnails import thumbnail
from inference.local_server import LocalHandler, LocalServer

PAGE = Path(__file__).with_name("review_page.html")
MOST_BYTES = 10_000
"""Of a decision."""
SIDE = 400
"""Pixels of a picture, at most."""


class ChangedElsewhere(Exception):
    """The row to decide on is another one in the table by now."""


class Review(LocalServer):
    """Answers GET / with the page, /suspects with all of them, /picture?N with a sample, and POST /decide."""

    def __init__(self, samples: Samples, table: Path, save: Callable[[list[Suspect]], None], *, port: int) -> None:
        """`save` writes all suspects into `table` after each decision. Raises ConfigError: the port is taken.
        DataError: as `read_suspects`."""
        self.samples, self.table, self.save = samples, table, save
        self.suspects: list[Suspect] = []
        self.known = b""
        self.take_changes()
        self.row_of = {path: row for row, path in enumerate(samples.paths)}
        self.one_at_a_time = threading.Lock()
        super().__init__("127.0.0.1", port, Handler)

    def listed(self) -> dict[str, Any]:
        """What the page shows: each suspect with the numbers of its picture and, of a copy, the other one's."""
        rows = [
            {**suspect._asdict(), "row": self.row_of[suspect.path], "other_row": self.row_of.get(suspect.other)}
            for suspect in self.suspects
        ]
        return {"name": self.samples.name, "class_names": self.samples.class_names, "suspects": rows}

    def take_changes(self) -> int:
        """Take over what the table says by now, where it is not what was last read or written here: how many rows are
        new, gone or decided otherwise. Raises DataError, OSError: it cannot be read."""
        content = self.table.read_bytes()
        if content == self.known:
            return 0
        before, self.suspects = self.suspects, read_suspects(self.table, self.samples)
        self.known = content
        return max(len({*self.suspects} - {*before}), len({*before} - {*self.suspects}))

    def decide(self, place: int, decision: str, decided: str) -> int:
        """Save a decision beside those that were made in the table meanwhile: how many these are.

        Raises DataError: no such decision, or the table is not one any more. IndexError: no such suspect. OSError: the
        table is gone. ChangedElsewhere: this very row was decided there, or is gone; nothing is saved.
        """
        if place < 0:
            raise IndexError("a place below 0")
        with self.one_at_a_time:
            shown = self.suspects[place]
            changed = self.take_changes()
            if shown not in self.suspects:
                raise ChangedElsewhere(f"{shown.path!r} was changed in {self.table.name} meanwhile: decide again")
            suspect, place = shown._replace(decision=decision, decided=decided), self.suspects.index(shown)
            require_decision(suspect, self.samples.class_names)
            self.save([*self.suspects[:place], suspect, *self.suspects[place + 1 :]])
            self.suspects[place], self.known = suspect, self.table.read_bytes()
            return changed


class Handler(LocalHandler):
    server: Review

    def do_GET(self) -> None:
        path, _, row = self.path.partition("?")
        if path == "/":
            self._reply(HTTPStatus.OK, PAGE.read_bytes(), "text/html; charset=utf-8")
        elif path == "/suspects":
            self._answer(self.server.listed())
        elif path == "/picture" and row.isdecimal() and len(row) < 10 and int(row) < len(self.server.samples):
            self._answer({"picture": thumbnail(picture_of(self.server.samples, int(row)), SIDE)})
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "no such page")

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
        return self._answer({"changed": changed, **(self.server.listed() if changed else {})})
