"""Linear heads on features, each fitted at once: ridge regression, discriminant analysis, logistic regression.

Every head takes features x (n, D) of one scale (see `scale`), labels (n,) from 0 to K - 1, and gives a weight (K, D)
and a bias (K,). Its logits say what it prefers; how sure it may be is for a temperature to say. All classes count as
equally frequent, except in logistic regression, which learns from the images how frequent they are.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from trainers.engine.temperature import Floats, Ints


@dataclass(frozen=True)
class Linear:
    """Logits of features x (n, D): x @ weight.T + bias."""

    weight: Floats
    bias: Floats

    def __call__(self, features: Floats) -> Floats:
        logits: Floats = features @ self.weight.T + self.bias
        return logits

    def times(self, factor: float) -> "Linear":
        """The head whose logits are those of this one, times a factor."""
        return Linear(factor * self.weight, factor * self.bias)


@dataclass(frozen=True)
class Scale:
    """Scaling that brings the features of several networks together: (x - mean) * factor, both (D,)."""

    mean: Floats
    factor: Floats

    def __call__(self, features: NDArray) -> Floats:
        scaled: Floats = (features - self.mean) * self.factor
        return scaled

    def undone(self, head: Linear) -> Linear:
        """The head on features as they come that does what `head` does on scaled ones."""
        weight = head.weight * self.factor
        return Linear(weight, head.bias - weight @ self.mean)


def scale(features: NDArray, columns: Sequence[slice]) -> Scale:
    """The scale on which the features of each level of a network, which stand in one of the `columns`, have mean 0 and
    together variance 1: none speaks louder because it has more features, or larger ones."""
    mean = features.mean(axis=0, dtype=np.float64)
    variance = features.var(axis=0, dtype=np.float64)
    factor = np.ones_like(mean)
    for column in columns:
        factor[column] = 1 / np.sqrt(max(variance[column].sum(), 1e-12))
    return Scale(mean, factor)


def ridge(features: Floats, labels: Ints, classes: int, *, penalty: float) -> Linear:
    """Ridge regression on targets that are 1 for the class of an image and else 0."""
    targets = np.eye(classes)[labels]
    middle, centre = features.mean(axis=0), targets.mean(axis=0)
    x, y = features - middle, targets - centre
    if len(x) < x.shape[1]:
        weight = solve(x @ x.T + penalty * np.eye(len(x)), y, assume_a="pos").T @ x
    else:
        weight = solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ y, assume_a="pos").T
    return Linear(weight, np.full(classes, 1 / classes) - weight @ middle)


def discriminant(features: Floats, labels: Ints, classes: int, *, dimensions: int) -> Linear:
    """Linear discriminant analysis with flat priors, on the covariance within the classes, shrunk as Ledoit and Wolf
    2004 find best. Classes without an image get a logit of 0.

    scikit-learn shrinks the covariance of each class by itself, which a class of a few images cannot bear.
    `dimensions`: those of the features before they were turned, without loss, into fewer.
    """
    present = np.unique(labels)
    means = np.stack([features[labels == label].mean(axis=0) for label in present])
    within = features - means[np.searchsorted(present, labels)]
    covariance = within.T @ within / len(within)
    average = max(np.trace(covariance) / dimensions, 1e-12)
    spread = np.square(within).sum(axis=1)
    noise = (np.square(spread).mean() - np.square(covariance).sum()) / len(within)
    distance = np.square(covariance).sum() - average**2 * dimensions
    share = min(max(noise / distance, 0.0), 1.0) if distance > 0 else 1.0
    shrunk = (1 - share) * covariance + share * average * np.eye(len(covariance))
    shrunk += 1e-9 * average * np.eye(len(covariance))
    of_present = solve(shrunk, means.T, assume_a="pos").T
    weight, bias = np.zeros((classes, features.shape[1])), np.zeros(classes)
    weight[present], bias[present] = of_present, -0.5 * (of_present * means).sum(axis=1)
    return Linear(weight, bias)


def logistic(features: Floats, labels: Ints, classes: int, *, penalty: float) -> Linear:
    """Multinomial logistic regression (scikit-learn's C = 1 / penalty). Classes without an image get a very low one."""
    model = LogisticRegression(C=1 / penalty, max_iter=200, tol=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # nearly there is near enough
        model.fit(features, labels)
    weight, bias = np.zeros((classes, features.shape[1])), np.full(classes, ABSENT)
    both = len(model.classes_) == 2
    weight[model.classes_] = np.concatenate([-model.coef_, model.coef_]) / 2 if both else model.coef_
    bias[model.classes_] = np.concatenate([-model.intercept_, model.intercept_]) / 2 if both else model.intercept_
    return Linear(weight, bias)


ABSENT = -20.0
"""Logit of a class that logistic regression has seen no image of."""


def basis_of(features: Floats) -> Floats | None:
    """(D, R), orthonormal: the directions in which the features of few images differ at all. Heads on features @ basis
    are those on the features, and cost less. None where there are no fewer of them than dimensions."""
    if features.shape[1] <= len(features):
        return None
    values, vectors = np.linalg.eigh(features @ features.T)
    kept = values > 1e-10 * values[-1]
    basis: Floats = features.T @ (vectors[:, kept] / np.sqrt(values[kept]))
    return basis
