"""Test of whether pictures of one guessed group look more alike than others: a permutation test on 32 x 32 grey
thumbnails."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from datasets.bundle import Samples
from datasets.checking.inspection import inspect_files
from datasets.checking.near_duplicates import THUMBNAIL_SIZE
from datasets.grouping.candidates import CandidateGrouping

GROUPS, OF_EACH = 14, 4
"""Number of groups that are looked at, and of images of each."""
DRAWS = 199
SURE = 0.01
"""The share of the draws that may come as near, for pictures of one group to be more alike than by chance."""
CLEARLY = 0.7
"""Share of the time that two pictures of one group must be more alike than two of different ones, if names say little.
What breeds of dogs and crops of one photograph have: docs/evidence/benchmarks.md, "Thresholds"."""
Thumbnails = Callable[[Sequence[int]], NDArray[np.uint8]]
"""Rows -> (n, 1024): their thumbnails, all zero where a file cannot be read."""


class Likeness(NamedTuple):
    """Evidence of thumbnails about groups."""

    often: float
    """Share of the time that two pictures of one group are more alike than two of different groups: 0.5 by chance."""
    p: float
    """p-value: share of random groupings of the same images in which they are as much alike."""

    @property
    def more(self) -> bool:
        return self.p <= SURE

    @property
    def clear(self) -> bool:
        return self.more and self.often >= CLEARLY


def looked_at(candidate: CandidateGrouping) -> NDArray[np.int64]:
    """The rows to look at: a few of some groups, spread over the set, of each those that lie next to one another."""
    members = candidate.members
    chosen = np.unique(np.linspace(0, len(members) - 1, GROUPS).astype(int))
    return np.unique(np.concatenate([_few(members[place], candidate.labels[members[place]]) for place in chosen]))


def _few(rows: NDArray[np.int64], labels: NDArray) -> NDArray[np.int64]:
    """OF_EACH of these rows, of two classes where there are two."""
    first, *others = (rows[labels == label] for label in np.unique(labels))
    second = max(others, key=len, default=first[:0])[: OF_EACH // 2]
    return np.concatenate([first[: OF_EACH - len(second)], second])


def thumbnails_of(samples: Samples) -> Thumbnails:
    """Thumbnails as `check` makes them, from the files."""

    def read(rows: Sequence[int]) -> NDArray[np.uint8]:
        seen = inspect_files([samples.file(row) for row in rows], workers=0)
        return as_array([picture.thumbnail for picture in seen])

    return read


def as_array(thumbnails: Sequence[bytes]) -> NDArray[np.uint8]:
    """(n, 1024): zeros where there is none."""
    blank = bytes(THUMBNAIL_SIZE**2)
    return np.frombuffer(b"".join(one or blank for one in thumbnails), np.uint8).reshape(-1, THUMBNAIL_SIZE**2)


def likeness(
    thumbnails: NDArray[np.uint8], groups: NDArray, labels: NDArray, *, across: bool = False
) -> Likeness | None:
    """Compare pairs of one group with pairs of different groups, all of one class, or `across` classes. None: there are
    too few pairs to tell."""
    usable = np.flatnonzero((thumbnails.std(axis=1) >= 2) & (groups >= 0))
    groups, labels = groups[usable], labels[usable]
    i, j = np.triu_indices(len(usable), 1)
    compared = (labels[i] != labels[j]) if across else (labels[i] == labels[j])
    i, j = i[compared], j[compared]
    same = groups[i] == groups[j]
    if same.sum() < 5 or (~same).sum() < 5:
        return None
    pixels = thumbnails[usable].astype(np.float32)
    pixels -= pixels.mean(axis=1, keepdims=True)
    pixels /= np.linalg.norm(pixels, axis=1, keepdims=True)
    ranks = np.empty(len(i))
    ranks[np.argsort((pixels @ pixels.T)[i, j])] = np.arange(1, len(i) + 1)
    found, generator = _often(ranks, same), np.random.default_rng(0)
    as_much = 0
    for _ in range(DRAWS):
        shuffled = groups.copy()
        for label in np.unique(labels):
            of_class = np.flatnonzero(labels == label)
            shuffled[of_class] = groups[generator.permutation(of_class)]
        as_much += _often(ranks, shuffled[i] == shuffled[j]) >= found
    return Likeness(found, (1 + as_much) / (1 + DRAWS))


def _often(ranks: NDArray[np.float64], same: NDArray[np.bool_]) -> float:
    """Probability that a pair of one group ranks before one of two (Mann and Whitney's U over the number of such
    pairs)."""
    count = int(same.sum())
    if not 0 < count < len(ranks):
        return 0.5
    return float((ranks[same].sum() - count * (count + 1) / 2) / (count * (len(ranks) - count)))
