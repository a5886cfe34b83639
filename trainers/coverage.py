"""Risk against coverage: how often a model is wrong on the share of images that it is surest of (Geifman and El-Yaniv
2017, arXiv:1705.08500). N images."""

import numpy as np
from numpy.typing import NDArray

RIGHT = 0.95
"""The share of right answers that reports ask for."""


def accuracy_by_coverage(confidence: NDArray, correct: NDArray) -> NDArray[np.float64]:
    """Return the accuracy (N,) on the k most confident images, for each k; `confidence` and `correct` are (N,).

    Images of equal confidence are answered together: each has the accuracy of all of them and those above."""
    order = np.argsort(-confidence, kind="stable")
    shares = np.cumsum(correct[order]) / np.arange(1, len(order) + 1)
    levels = confidence[order]
    last = np.searchsorted(-levels, -levels, side="right") - 1
    return shares[last]


def answered(confidence: NDArray, correct: NDArray, right: float = RIGHT) -> float:
    """Return the largest share of these images, the surest first, of which `right` are right; 0: of none."""
    enough = np.flatnonzero(accuracy_by_coverage(confidence, correct) >= right)
    return (int(enough[-1]) + 1) / len(correct) if len(enough) else 0.0
