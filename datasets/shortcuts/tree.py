"""A small decision tree on a few numbers, cross-validated: how much they tell about the class of an image.

Our own, in NumPy: `check` of a few hundred photographs takes no longer than to import scikit-learn.
"""

import math
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

BINS, DEPTH, LEAST, FOLDS = 32, 4, 5, 5
"""Steps of a number, questions in a row, images in a leaf, and parts that take turns in being guessed."""
SURE = 2.0
"""Standard deviations above what chance gives from which on a split is made."""
PRIOR = 4.0
"""Images with the shares of all classes that are added to each leaf."""
Places = NDArray[np.int64]


class Told(NamedTuple):
    """Prediction from facts about N images of C classes that were not learnt from."""

    gain: NDArray[np.float64]
    """(N, C): logarithm of each class's probability, once the facts are known, over its share."""
    labels: Places

    @property
    def of_images(self) -> NDArray[np.float64]:
        """(N,): that of the true class, in nats."""
        return self.gain[np.arange(len(self.labels)), self.labels]

    @property
    def classes(self) -> int:
        return self.gain.shape[1]

    @property
    def mean(self) -> float:
        """Nats that the facts tell about an image, 0 or less where they tell nothing."""
        return float(self.of_images.mean())

    def joined(self, other: "Told") -> "Told":
        """Combine what both tell about the same images as independent witnesses."""
        shares = np.bincount(self.labels, minlength=self.classes) / len(self.labels)
        likely = np.exp(self.gain + other.gain) * shares
        return Told(np.log(likely / likely.sum(axis=1, keepdims=True) / shares), self.labels)

    @property
    def accuracy(self) -> float:
        """Mean over the classes of the share that is guessed right, where all are taken as equally likely."""
        right = self.gain.argmax(axis=1) == self.labels
        sizes = np.bincount(self.labels, minlength=self.gain.shape[1])
        return float((np.bincount(self.labels, right, len(sizes))[sizes > 0] / sizes[sizes > 0]).mean())

    @property
    def chance(self) -> float:
        """p-value of a permutation test: how often shuffled labels would be told as well, by the
        mean and variance of all permutations (Hoeffding 1951)."""
        count, classes = self.gain.shape
        sizes = np.bincount(self.labels, minlength=classes)
        of_class = self.gain.mean(axis=0)
        rows = self.gain @ sizes / count
        centred = self.gain - of_class - rows[:, None] + float(of_class @ sizes) / count
        variance = float((centred**2 @ sizes).sum()) / (count - 1)
        if variance <= 1e-12:
            return 1.0
        above = float(self.of_images.sum() - of_class @ sizes)
        return math.erfc(above / math.sqrt(2 * variance)) / 2


def told(facts: NDArray[np.float64], labels: Places, fold: Places, classes: int) -> Told:
    """Let the images (N, F) of each fold be judged by trees grown on those of the others."""
    steps = np.stack([binned(column) for column in facts.T], axis=1)
    gain = np.empty((len(labels), classes))
    for part in range(int(fold.max()) + 1):
        test = fold == part
        learnt, counts = steps[~test], np.bincount(labels[~test], minlength=classes)
        shares = (counts + 1e-3) / (counts + 1e-3).sum()
        leaves = _leaves(learnt, labels[~test], steps[test], classes)
        gain[test] = np.log((leaves + PRIOR * shares) / (leaves.sum(axis=1, keepdims=True) + PRIOR) / shares)
    return Told(gain, labels)


def binned(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """(N,): steps from 0 to BINS - 1, by value where there are few values, else equally many each."""
    return np.searchsorted(_edges(values), values, side="right").astype(np.int64)


def _edges(values: NDArray[np.float64]) -> NDArray[np.float64]:
    ordered = np.sort(values)
    known = ordered[np.append(True, ordered[1:] != ordered[:-1])]
    if len(known) <= BINS:
        return known[1:]
    return np.unique(ordered[-(-(len(values) - 1) * np.arange(1, BINS) // BINS)])  # quicker than np.quantile


def bound(values: NDArray[np.float64], step: int) -> float:
    """The largest value of this step."""
    return float(values[binned(values) <= step].max())


def stump(facts: NDArray[np.float64], labels: Places, classes: int) -> tuple[int, int]:
    """The column of facts (N, F), and the step of it up to which images have the trait that tells classes best."""
    steps = np.stack([binned(column) for column in facts.T], axis=1)
    return _best(steps, labels, classes)[1:]


def _leaves(facts: Places, labels: Places, asked: Places, classes: int, depth: int = DEPTH) -> NDArray[np.float64]:
    """(M, C): of each image that is asked for, the classes of the images that it shares a leaf with."""
    counts = np.bincount(labels, minlength=classes)
    split = _split(facts, labels, counts) if depth and len(labels) >= 2 * LEAST else None
    if split is None:
        return np.broadcast_to(counts.astype(np.float64), (len(asked), classes))
    column, at = split
    right, asked_right = facts[:, column] > at, asked[:, column] > at
    found = np.empty((len(asked), classes))
    for here, there in ((~right, ~asked_right), (right, asked_right)):
        if there.any():
            found[there] = _leaves(facts[here], labels[here], asked[there], classes, depth - 1)
    return found


def _split(facts: Places, labels: Places, counts: Places) -> tuple[int, int] | None:
    """The best question, where it tells more than the best of so many would by chance: twice the gain of one has a
    chi-squared distribution then. `counts`: the images of each class."""
    present = counts > 0
    freedom = int(present.sum()) - 1
    if not freedom:
        return None
    gain, column, at = _best(facts, (present.cumsum() - 1)[labels], freedom + 1)
    least = freedom / 2 + SURE * math.sqrt(freedom / 2) + math.log(facts.shape[1] * BINS) / 2
    return (column, at) if gain > least else None


def _best(facts: Places, labels: Places, classes: int) -> tuple[float, int, int]:
    """Find what the best question tells, in nats of all images together; its column, and the step up to which images go
    to the left."""
    images, columns = facts.shape
    bins = int(facts.max()) + 1
    cells = (classes * np.arange(columns) + labels[:, None]) * bins + facts
    left = np.bincount(cells.ravel(), minlength=columns * classes * bins).reshape(columns, classes, bins).cumsum(axis=2)
    whole, sizes, logarithms = left[:, :, -1:], left.sum(axis=1), _times_logarithm(images.bit_length())

    def order(counts: Places, sums: Places | int) -> NDArray[np.float64]:
        """Minus the entropy of tables of counts, times their sums."""
        return logarithms[counts].sum(axis=1) - logarithms[sums]

    gain = order(left, sizes) + order(whole - left, images - sizes) - order(whole, images)  # (columns, bins)
    gain[np.minimum(sizes, images - sizes) < LEAST] = 0
    column, at = divmod(int(gain.argmax()), bins)
    return float(gain[column, at]), column, at


@cache
def _times_logarithm(bits: int) -> NDArray[np.float64]:
    """(2 ** bits,): n log n of each n, to be looked up."""
    numbers = np.arange(2**bits)
    return numbers * np.log(np.maximum(numbers, 1))
