"""How well heads do on images that they have not learnt from: cross-validation, and the temperature that makes their
probabilities mean what they say (Guo et al. 2017, arXiv:1706.04599)."""

import warnings
from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

from trainers.heads.linear import Floats, Ints, Linear

FOLDS = 5
HOTTEST, COLDEST = 1e-3, 1e4
"""Least and largest factor of the logits that is tried: the temperature's inverse."""


def folds_of(labels: Ints, units: Ints) -> list[Ints]:
    """The rows of each fold, at most `FOLDS` of them; images of a unit share one, and classes are spread evenly. Empty
    where no class has images of two units: nothing can be learnt of one from another."""
    _, first = np.unique(units, return_index=True)
    folds = min(FOLDS, int(np.bincount(labels[first]).max()))
    if folds < 2:
        return []
    alone = len(first) == len(units)
    splitter = (StratifiedKFold if alone else StratifiedGroupKFold)(folds, shuffle=True, random_state=0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The least populated class")
        found = [left_out for _, left_out in splitter.split(labels, labels, None if alone else units)]
    return [rows for rows in found if len(rows)]


def out_of_fold(fit: Callable[[Ints], Linear], features: Floats, folds: Sequence[Ints]) -> Floats:
    """Logits (n, K) of each image, by a head that `fit` made of the rows of the other folds."""
    everything = np.arange(len(features))
    parts = [fit(np.setdiff1d(everything, rows))(features[rows]) for rows in folds]
    logits = np.empty((len(features), parts[0].shape[1]))
    for rows, part in zip(folds, parts, strict=True):
        logits[rows] = part
    return logits


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
