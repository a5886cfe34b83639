"""Evening out of a draw: whole groups move between the parts until each class has its share of each part.

U units of images that belong together, C classes, P parts.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

TOLERANCE = 0.02
"""Deviation of a class from its share of a part that is left alone; one image is always left alone."""


@dataclass(frozen=True)
class ClassCounts:
    """Images of each class in each unit without the zeros: unit `units[e]` has `images[e]` of class `classes[e]`."""

    units: np.ndarray
    """int64 (E,), ascending, each at least once."""
    classes: np.ndarray
    images: np.ndarray
    num_classes: int

    @cached_property
    def starts(self) -> np.ndarray:
        """Find the first entry of each unit: int64 (U,)."""
        return np.flatnonzero(np.diff(self.units, prepend=-1))

    def of_units(self, reduce: np.ufunc, values: np.ndarray) -> np.ndarray:
        """Reduce values of entries, (E, ...), to one of each unit: (U, ...)."""
        return reduce.reduceat(values, self.starts)

    def shares(self, parts: np.ndarray, count: int) -> np.ndarray:
        """Count the images of each class in each of `count` parts: (P, C); parts (U,)."""
        return self._in_parts(parts, count, self.images)

    def units_in(self, parts: np.ndarray, count: int) -> np.ndarray:
        """Count the units with images of each class in each part: (P, C)."""
        return self._in_parts(parts, count, None)

    def _in_parts(self, parts: np.ndarray, count: int, weights: np.ndarray | None) -> np.ndarray:
        cells = parts[self.units] * self.num_classes + self.classes
        return np.bincount(cells, weights, count * self.num_classes).reshape(count, -1)


def evened_out(counts: ClassCounts, parts: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Move units until each class has its share of each part, `targets` (P, C): int64 (U,).

    Each round moves the unit that helps most, class by class: units of one class concern that class alone, and of those
    that share a class one moves. No unit leaves a part that would then lack a class. Groups that are too large leave
    shares uneven.
    """
    parts, totals = parts.copy(), targets.sum(axis=0)
    joint = np.diff(counts.starts, append=len(counts.units)) > 1  # units of several classes
    for _ in range(len(parts)):
        surplus = counts.shares(parts, len(targets)) - targets
        off = (np.abs(surplus) > np.maximum(TOLERANCE * totals, 1)).any(axis=0)
        if not off.any():
            break
        gains, to = _best_moves(counts, parts, surplus / np.maximum(totals, 1) ** 2, totals)
        sole = counts.units_in(parts, len(targets)) == 1
        stays = counts.of_units(np.logical_or, sole[parts[counts.units], counts.classes])
        concerned = joint | counts.of_units(np.logical_or, off[counts.classes])
        moving = _first_of_their_classes(counts, np.where(concerned & ~stays, gains, 0))
        if not len(moving):
            break
        parts[moving] = to[moving]
    return parts


def _best_moves(
    counts: ClassCounts, parts: np.ndarray, surplus: np.ndarray, totals: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Find the part where each unit helps most, and how much: twice (U,).

    Half of how its move changes the squared deviations."""
    every = np.arange(len(parts))
    towards = counts.of_units(np.add, counts.images[:, None] * surplus.T[counts.classes])  # (U, P)
    squares = counts.of_units(np.add, (counts.images / np.maximum(totals, 1)[counts.classes]) ** 2)
    gains = towards + squares[:, None] - towards[every, parts][:, None]
    gains[every, parts] = np.inf
    to = gains.argmin(axis=1)
    return gains[every, to], to


def _first_of_their_classes(counts: ClassCounts, gains: np.ndarray) -> np.ndarray:
    """Choose units of which each has the least gain, below zero, in each of its classes."""
    able = np.flatnonzero(gains < -1e-12)
    rank = np.full(len(gains), len(gains))
    rank[able[np.argsort(gains[able], kind="stable")]] = np.arange(len(able))
    least = np.full(counts.num_classes, len(gains))
    np.minimum.at(least, counts.classes, rank[counts.units])
    return able[rank[able] == counts.of_units(np.minimum, least[counts.classes])[able]]
