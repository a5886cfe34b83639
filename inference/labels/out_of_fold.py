"""Out-of-fold predictions for every image of a set: logistic regression in folds, on features of frozen networks."""

import warnings

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold

from common.errors import DataError

PENALTIES = (0.001, 0.01, 0.1, 1.0)
"""Regularisation of logistic regression (scikit-learn's C), the strongest first; the features have deviation 1."""
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def fold_of_each(labels: Ints, groups: Ints, *, folds: int) -> Ints:
    """(N,): the fold, from 0, that each image is left out in. The images of a group share one; the groups of each
    class, which is that of their first image, are spread evenly. Raises DataError: no class has two groups."""
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)
    folds = min(folds, int(np.bincount(labels[first]).max()))
    if folds < 2:
        raise DataError("no class has two different images: nothing can be learnt of one from another")
    numbers = np.empty(len(first), np.int64)
    splitter = StratifiedKFold(folds, shuffle=True, random_state=0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The least populated class")
        for number, (_, left_out) in enumerate(splitter.split(first, labels[first])):
            numbers[left_out] = number
    return numbers[group]


def out_of_fold(features: NDArray[np.float32], labels: Ints, folds: Ints, learns: Bools) -> Floats:
    """Predict each image by a model of the other folds, of those of their images that `learns` allows: (N, C).

    Where these have none of its class, an image is said to be what its label says."""
    probabilities, penalty = np.eye(int(labels.max()) + 1)[labels], 0.0
    for fold in range(int(folds.max()) + 1):
        learnt = learns & (folds != fold)
        known = np.unique(labels[learnt])
        asked = (folds == fold) & np.isin(labels, known)
        if len(known) > 1 and asked.any():
            penalty = penalty or best_penalty(features, labels, learnt, asked & learns)
            shares = fit_logistic(features[learnt], labels[learnt], penalty).predict_proba(features[asked])
            probabilities[np.ix_(asked, known)] = shares
    return probabilities


def best_penalty(features: NDArray[np.float32], labels: Ints, learnt: Bools, asked: Bools) -> float:
    """Choose from PENALTIES by the log loss on the images asked about."""

    def loss(penalty: float) -> float:
        model = fit_logistic(features[learnt], labels[learnt], penalty)
        return float(log_loss(labels[asked], model.predict_proba(features[asked]), labels=model.classes_))

    return min(PENALTIES, key=loss)


def fit_logistic(features: NDArray[np.float32], labels: Ints, penalty: float) -> LogisticRegression:
    model = LogisticRegression(C=penalty, max_iter=300)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # nearly there is near enough
        return model.fit(features, labels)
