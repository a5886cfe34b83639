"""Make sets of classes that contain the right one at a stated level.

By split conformal prediction a class is in the set where its probability reaches a cut, which is a low quantile of the
probabilities that validation images gave their own classes ("least ambiguous classifiers": Sadinle, Lei and Wasserman
2019, arXiv:1609.00451; the score of section 1 of Angelopoulos and Bates 2021, arXiv:2107.07511). Plain split conformal
prediction holds its level on average over validation sets, which for a given one means about half of the time. Here the
quantile is so low that the level holds for *this* validation set with probability CONFIDENCE: the cover of the cut at
the k-th lowest of n probabilities has the distribution Beta(n + 1 - k, k) (Vovk 2012, arXiv:1209.2673; Angelopoulos and
Bates, section 3.2). This is the small sample beta correction of Zwart 2025 (arXiv:2509.15349).

N images, C classes, U units: images that belong together, of which one that stands alone is one.
"""

import math

import numpy as np
from numpy.typing import NDArray

LEVELS = (0.9, 0.95, 0.99)
"""Shares of images whose set is to contain the right class."""
CONFIDENCE = 0.95
"""Probability, over validation sets, that a cut reaches its level."""

Floats = NDArray[np.float64]


def fewest_for_level(level: float) -> int:
    """Return the fewest images, or units of them, that a promised level takes.

    All then lie in their sets."""
    return math.ceil(math.log(1 - CONFIDENCE) / math.log(level))


def misses(level: float, count: int) -> int | None:
    """Return how many of `count` images may have a probability below the cut.

    None: even no miss is no promise. With m misses the cover is at least `level` with the probability that a binomial
    variable of `count` trials, each a miss at 1 - level, exceeds m.
    """
    from scipy.special import bdtr  # the binomial distribution function

    enough = bdtr(np.arange(count + 1), count, 1 - level) <= 1 - CONFIDENCE
    return int(enough.sum()) - 1 if enough[0] else None


def fit_cut(own: Floats, units: NDArray, level: float) -> float | None:
    """Fit the least probability with which a class is in the set.

    `own` (N,): the probabilities that images gave their own classes. None: there are fewer than
    `fewest_for_level(level)` units. Of units (N,) of several images each weighs as one image, its own ones equally
    (Lee, Barber and Willett 2023, arXiv:2306.06342): what is promised is the cover of a random image of a new unit.
    """
    weights = unit_weights(units)
    allowed = misses(level, round(weights.sum()))
    if allowed is None:
        return None
    order = np.argsort(own, kind="stable")
    below = np.cumsum(weights[order])  # with each image, the units at it or below
    return float(own[order[np.searchsorted(below, allowed + 1e-9, side="right")]])


def unit_weights(units: NDArray) -> Floats:
    """Return for each image (N,) 1 over the number of images of its unit."""
    _, numbers, sizes = np.unique(units, return_inverse=True, return_counts=True)
    return 1 / sizes[numbers]


def sets_of(probabilities: Floats, cut: float) -> NDArray[np.bool_]:
    """Mark classes whose probability (N, C) reaches the cut, and always the likeliest."""
    sets = probabilities >= cut
    sets[np.arange(len(sets)), probabilities.argmax(axis=1)] = True
    return sets
