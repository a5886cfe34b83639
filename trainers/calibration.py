"""Confidence of a model: log loss, the temperature that calibrates it, and accuracy by confidence.

Temperature: Guo et al. 2017, arXiv:1706.04599. Risk against coverage, the error rate on the images with the highest
confidence: Geifman and El-Yaniv 2017, arXiv:1705.08500. N images, K classes.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
HOTTEST, COLDEST = 1e-3, 1e4
"""Range of the factor of the logits, the inverse of the temperature."""
WANTED = 0.95
"""Accuracy that reports ask for among the most confident answers."""


def losses(logits: Floats, labels: Ints) -> Floats:
    """Return the cross-entropy of each image (N,)."""
    from scipy.special import log_softmax  # slow to import, and seldom needed

    of_labels: Floats = -log_softmax(logits, axis=1)[np.arange(len(labels)), labels]
    return of_labels


def sharpness(logits: Floats, labels: Ints) -> float:
    """Fit the factor of the logits, one over the temperature, by the mean cross-entropy.

    With N images the target of each gives 1 / (N + 1) to all classes alike (Platt 1999): a few correct ones prove no
    certainty.
    """
    from scipy.optimize import minimize_scalar
    from scipy.special import log_softmax

    share = 1 / (len(labels) + 1)

    def loss(exponent: float) -> float:
        logs = log_softmax(np.exp(exponent) * logits, axis=1)
        of_labels = logs[np.arange(len(labels)), labels]
        return float(-((1 - share) * of_labels + share * logs.mean(axis=1)).mean())

    bounds = (np.log(HOTTEST), np.log(COLDEST))
    return float(np.exp(minimize_scalar(loss, bounds=bounds, method="bounded").x))


def accuracy_by_coverage(confidence: NDArray, correct: NDArray) -> NDArray[np.float64]:
    """Return the accuracy (N,) on the k most confident images, for each k.

    `confidence` and `correct` are (N,). Images of equal confidence are answered together: each has the accuracy of all
    of them and those above.
    """
    order = np.argsort(-confidence, kind="stable")
    shares = np.cumsum(correct[order]) / np.arange(1, len(order) + 1)
    levels = confidence[order]
    last = np.searchsorted(-levels, -levels, side="right") - 1
    return shares[last]


def answered(confidence: NDArray, correct: NDArray, right: float = WANTED) -> float:
    """Return the largest share of most confident images, `right` of them right, or 0."""
    enough = np.flatnonzero(accuracy_by_coverage(confidence, correct) >= right)
    return (int(enough[-1]) + 1) / len(correct) if len(enough) else 0.0
