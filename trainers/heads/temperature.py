"""Log loss, and the temperature that makes probabilities mean what they say (Guo et al. 2017, arXiv:1706.04599)."""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
HOTTEST, COLDEST = 1e-3, 1e4
"""Least and largest factor of the logits that is tried: the temperature's inverse."""


def losses(logits: Floats, labels: Ints) -> Floats:
    """Cross-entropy of each image (n,)."""
    of_labels: Floats = -log_softmax(logits, axis=1)[np.arange(len(labels)), labels]
    return of_labels


def sharpness(logits: Floats, labels: Ints) -> float:
    """The factor of the logits with the least mean cross-entropy: one over the temperature. Of n images, each target
    gives one part in n + 1 to all classes alike (Platt 1999): a few that are all right prove no certainty."""
    share = 1 / (len(labels) + 1)

    def loss(exponent: float) -> float:
        logs = log_softmax(np.exp(exponent) * logits, axis=1)
        of_labels = logs[np.arange(len(labels)), labels]
        return float(-((1 - share) * of_labels + share * logs.mean(axis=1)).mean())

    bounds = (np.log(HOTTEST), np.log(COLDEST))
    return float(np.exp(minimize_scalar(loss, bounds=bounds, method="bounded").x))
