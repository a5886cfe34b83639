"""A table whose rows a person decides on, one picture each: what the page of this room asks of it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from datasets.bundle import Samples

SURE, NEVER = 0.999, 0.001
"""Beyond these a probability is said as `over 99.9 %` or `under 0.1 %`: no model is certain."""


class Button(NamedTuple):
    """A button of the page, and the key that does the same."""

    key: str
    text: str
    decision: str


class Examples(NamedTuple):
    """A strip of pictures to compare with."""

    title: str
    rows: list[int]
    """Rows of the samples that they are."""


@dataclass(frozen=True)
class Shown:
    """One row as the page shows it."""

    row: int
    """Row of the sample whose picture it is."""
    facts: list[tuple[str, str]]
    """Term and sentence, such as `the model thinks`, `1 (99.6 %)`."""
    suggested: str = ""
    """The class that one key takes over."""
    other: int | None = None
    """A second picture, of which this one is a copy."""
    examples: list[Examples] = field(default_factory=list)


@dataclass(frozen=True)
class Wording:
    """Texts of the page about the table as a whole."""

    title: str
    hint: str
    prefix: str
    """Prefix of a decision for a class: `relabel:` or `label:`."""
    take: Button
    """The button that takes the suggested class; its decision is made of `prefix` and that class."""
    choices: Sequence[Button]
    new_classes: bool
    """True if a class may be typed that no image has yet."""


Row = TypeVar("Row", bound=Any)
"""A named tuple with at least `path`, `decision` and `decided`."""


class Reviewed(ABC, Generic[Row]):
    """A table on the disk, its pictures, and what may be decided on them."""

    path: Path
    samples: Samples
    wording: Wording

    @property
    @abstractmethod
    def class_names(self) -> Sequence[str]:
        """The classes that have a button and a key, in an order that stays."""

    @abstractmethod
    def read(self) -> list[Row]:
        """Read the table from the disk. Raises DataError: it is damaged, or says what may not be decided."""

    @abstractmethod
    def decided(self, row: Row, decision: str, by: str) -> Row:
        """Return the row with this decision; `by` is `person`, or empty: nobody. Raises DataError: no such decision."""

    @abstractmethod
    def save(self, rows: Sequence[Row]) -> None:
        """Write the table, and whatever follows from it."""

    @abstractmethod
    def shown(self, row: Row) -> Shown:
        """Say what the page shows of a row."""


def percent(probability: float) -> str:
    """A probability in words that claim no certainty: `99.6 %`, `over 99.9 %`, `under 0.1 %`."""
    if probability > SURE:
        return f"over {100 * SURE:.1f} %"
    if probability < NEVER:
        return f"under {100 * NEVER:.1f} %"
    return f"{100 * probability:.1f} %"
