"""A page on this machine to decide on doubtful labels, picture by picture; each decision is saved before the next."""

import json
import threading
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

from datasets.bundle import Samples
from datasets.errors import DataError
from datasets.images import picture_of
from datasets.suspects import Suspect, require_decision
from figures.thumbnails import thumbnail
from inference.local_server import LocalHandler, LocalServer

PAGE = Path(__file__).with_name("review_page.html")
MOST_BYTES = 10_000
"""Of a decision."""
SIDE = 400
"""Pixels of a picture, at most."""


class Review(LocalServer):
    """Answers GET / with the page, /suspects with all of them, /picture?N with a sample, and POST /decide."""

    def __init__(
        self, samples: Samples, suspects: list[Suspect], save: Callable[[list[Suspect]], None], *, port: int
    ) -> None:
        """`save` is called with all suspects after each decision. Raises ConfigError: the port is taken."""
        self.samples, self.suspects, self.save = samples, suspects, save
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

    def decide(self, place: int, decision: str, decided: str) -> None:
        """Raises DataError: no such decision. IndexError: no such suspect."""
        if place < 0:
            raise IndexError("a place below 0")
        with self.one_at_a_time:
            suspect = self.suspects[place]._replace(decision=decision, decided=decided)
            require_decision(suspect, self.samples.class_names)
            self.save([*self.suspects[:place], suspect, *self.suspects[place + 1 :]])
            self.suspects[place] = suspect


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
            return
        try:
            asked = json.loads(b"".join(self._parts(length)))
            self.server.decide(int(asked["place"]), str(asked["decision"]), "person" * bool(asked["decided"]))
        except (DataError, ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
            self._refuse(HTTPStatus.UNPROCESSABLE_ENTITY, f"no decision: {error}")
        else:
            self._answer({})
