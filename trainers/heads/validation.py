"""Cross-validation: what heads are worth on images that they have not learnt from."""

import warnings
from collections.abc import Callable, Sequence

import numpy as np
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

from trainers.engine.temperature import Floats, Ints

FOLDS = 5
LEAST = 3
"""Images a class, on average, with fewer of which cross-validation says little: heads would learn from one of each."""


def folds_of(labels: Ints, units: Ints) -> list[Ints]:
    """The rows of each fold, at most `FOLDS` of them; images of a unit share one, and classes are spread evenly. Empty
    where there are fewer than `LEAST` units a class, or none in some folds."""
    _, first = np.unique(units, return_index=True)
    folds = min(FOLDS, int(np.bincount(labels[first]).max()))
    if folds < 2 or len(first) < LEAST * len(np.unique(labels)):
        return []
    alone = len(first) == len(units)
    splitter = (StratifiedKFold if alone else StratifiedGroupKFold)(folds, shuffle=True, random_state=0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The least populated class")
        found = [left_out for _, left_out in splitter.split(labels, labels, None if alone else units)]
    return [rows for rows in found if len(rows)]


def out_of_fold(answers: Callable[[Ints, Ints], Floats], folds: Sequence[Ints]) -> Floats:
    """Logits (n, K) of each image, by a head that learnt from the rows of the other folds; `answers`: the logits that
    one which learnt from some rows gives others."""
    everything = np.arange(sum(map(len, folds)))
    parts = [answers(np.setdiff1d(everything, rows), rows) for rows in folds]
    logits = np.empty((len(everything), parts[0].shape[1]))
    for rows, part in zip(folds, parts, strict=True):
        logits[rows] = part
    return logits
