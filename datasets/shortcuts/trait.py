"""A shortcut: a fact that tells the classes, and the one question about it that tells them best."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.text import printable
from datasets.shortcuts.columns import NUMBER, Fact
from datasets.shortcuts.tree import Told, binned, bound, stump


class Trait(NamedTuple):
    """The one question that tells the classes best: which images have it."""

    words: str
    has: NDArray[np.bool_]
    """(N,)"""
    most: str
    """The class that has it most often, in this share of its images."""
    share: float
    least: str
    """The class that has it most seldom, in the share `other`."""
    other: float

    @property
    def example(self) -> int:
        """The first image that has it."""
        return int(self.has.argmax())


def trait_of(fact: Fact, labels: NDArray[np.int64], names: Sequence[str]) -> Trait:
    """The trait of a fact, of all images."""
    column, at = stump(fact.numbers, labels, len(names))
    values = fact.numbers[:, column]
    is_category = set(np.unique(values)) <= {0.0, 1.0} and fact.name != NUMBER
    has = values > 0.5 if is_category else binned(values) <= at
    words = (
        fact.columns[column] or f"no {fact.name}" if is_category else worded(fact.columns[column], bound(values, at))
    )
    sizes = np.bincount(labels, minlength=len(names))
    shares = np.bincount(labels, has, len(names)) / np.maximum(sizes, 1)
    most, least = int(shares.argmax()), int(shares.argmin())
    return Trait(printable(words), has, names[most], float(shares[most]), names[least], float(shares[least]))


def worded(column: str, most: float) -> str:
    """The trait of a number that is no larger than `most`."""
    if column == "day":
        return f"taken by {date.fromordinal(int(most))}" if most >= 1 else "no date"
    if column == "logarithm of width to height":
        return f"width up to {2**most:.2f} times the height"
    if column in ("width", "height"):
        return f"{column} up to {most:.0f} pixels"
    if column == "pixels":
        return f"up to {most:,.0f} pixels"
    return f"{column} up to {most:.3g}" if abs(most) < 1000 else f"{column} up to {most:.0f}"


@dataclass(frozen=True)
class Shortcut:
    """One fact that tells the classes."""

    fact: Fact
    told: Told
    trait: Trait
