"""A page on this machine on which a person decides on the rows of a table; each decision is saved at once."""

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from werkzeug.exceptions import NotFound, UnprocessableEntity
from werkzeug.wrappers import Request, Response

from common.errors import DataError
from datasets.bundle import Samples
from datasets.images import picture_of
from inference.local_server import LocalServer, as_json, as_page
from trainers.reporting.figures.thumbnails import thumbnail

PAGE = Path(__file__).with_name("page.html")
SIDES = {"": 400, "small": 120, "large": 1600}
"""Longest side of a picture in pixels: in question, as an example, and enlarged."""
MOST_EXAMPLES = 4
"""Pictures of a class beside the one in question."""
SURE, NEVER = 0.999, 0.001
"""Beyond these a probability is said as `over 99.9 %` or `under 0.1 %`: no model is certain."""


def percent(probability: float) -> str:
    """Say a probability without claiming certainty: `99.6 %`, `over 99.9 %`, `under 0.1 %`."""
    bound = "over " if probability > SURE else "under " if probability < NEVER else ""
    return f"{bound}{100 * min(max(probability, NEVER), SURE):.1f} %"


class Table(Protocol):
    """A table on the disk. Its rows are named tuples with at least `path`, `decision` and `decided`."""

    path: Path
    samples: Samples
    texts: dict[str, Any]
    """Words of the page: `title`, `hint`; `prefix` of a decision for a class; the buttons `take`, for the suggested
    class, and `choices`, each {key, text, decision}; `new_classes`: may a class be typed that no image has yet?"""

    @property
    def class_names(self) -> Sequence[str]:
        """The classes that have a button and a key, in an order that stays."""

    def read(self) -> list[Any]:
        """Read the table from the disk. Raises DataError: it is damaged, or holds a decision that is none."""

    def decided(self, row: Any, decision: str, by: str) -> Any:
        """Return the row with this decision; `by` is `person`, or empty: nobody. Raises DataError: no such decision."""

    def save(self, rows: Sequence[Any]) -> None:
        """Write the table, and whatever follows from it."""

    def shown(self, row: Any) -> dict[str, Any]:
        """Return what the page shows of a row: `row`, the number of its sample; `facts`, pairs of term and sentence;
        `suggested`, a class or empty; `other`, the sample that it is a copy of, or None; `examples`, pairs of a title
        and sample numbers."""


class Review(LocalServer):
    """Answers GET / with the page, /rows with all of them, /picture?N&SIZE with a sample, and POST /decide."""

    max_bytes = 10_000

    def __init__(self, table: Table, *, port: int) -> None:
        """Raises OptionError: the port is taken. DataError: as `table.read`."""
        self.table, self.samples = table, table.samples
        self.rows: list[Any] = []
        self.known = b""
        self.take_changes()
        self.one_at_a_time = threading.Lock()
        super().__init__("127.0.0.1", port)

    def listed(self) -> dict[str, Any]:
        """Return all that the page shows: its words, the classes, and each row with its decision."""
        names, paths = list(self.table.class_names), self.samples.paths
        rows = []
        for row in self.rows:
            shown = self.table.shown(row)
            other = "" if shown["other"] is None else paths[shown["other"]]
            own = {"path": row.path, "decision": row.decision, "decided": row.decided, "other_path": other}
            rows.append(shown | own)
        return {**self.table.texts, "table": self.table.path.name, "class_names": names, "rows": rows}

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
                return self.decide(request.get_data())
        raise NotFound("no such page")

    def decide(self, asked: bytes) -> Response:
        """Save the decision in a request's body, and keep those made in the table meanwhile.

        Nothing is saved where the row itself was changed there: 409. Raises UnprocessableEntity: no decision.
        """
        try:
            values = json.loads(asked)
            place, decision, by = int(values["place"]), str(values["decision"]), "person" * bool(values["decided"])
        except (ArithmeticError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise UnprocessableEntity(f"no decision: {error}") from None
        with self.one_at_a_time:
            if not 0 <= place < len(self.rows):
                raise UnprocessableEntity(f"no decision: there is no row {place}")
            row = self.rows[place]
            try:
                changed = self.take_changes()
                if row not in self.rows:
                    again = f"{row.path!r} was changed in {self.table.path.name} meanwhile: decide again"
                    return as_json({"error": again, **self.listed()}, 409)
                place = self.rows.index(row)
                rows = [*self.rows[:place], self.table.decided(row, decision, by), *self.rows[place + 1 :]]
                self.table.save(rows)
            except (DataError, FileNotFoundError) as error:
                raise UnprocessableEntity(f"no decision: {error}") from None
            self.rows, self.known = rows, self.table.path.read_bytes()
        more = self.listed() if changed else {"class_names": [*self.table.class_names]}
        return as_json({"changed": changed, **more})
