"""A linear head on features of frozen networks, fitted at once: logistic regression in which all classes count alike.

The features of each level get one scale. Each network has two heads: a plain one, and one on features that are whitened
by their covariance within the classes, which is shrunk as Ledoit and Wolf (2004) find best. The penalty is chosen by
cross-validation in whole units; a temperature that is fitted to the same out-of-fold logits makes the probabilities
mean what they say. The weighted sum of all heads is one linear head again: docs/results.md.
N images, D features, K classes.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import minimize
from scipy.special import softmax
from sklearn.covariance import ledoit_wolf
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold
from threadpoolctl import threadpool_limits

from trainers.calibration import Floats, Ints, losses, sharpness
from trainers.statistics import design_of

PENALTIES = (10.0, 1.0, 0.1, 0.01, 0.001)
"""Penalties on half the squared weights, added to the mean cross-entropy; the strongest first."""
FEW_PENALTY = 0.01
"""The penalty where there are too few images to choose one by; the temperature is then 1."""
FOLDS = 5
LEAST = 3
"""Units a class, on average, below which there is no cross-validation: heads would learn from one of each."""
MOST_IMAGES = 1_000
"""Training images that penalty and temperature are chosen by; the head then learns from all of them."""
ABSENT = 0.25
"""Logit of a class without images, as a share of the mean logit of the other images for their own class."""

PULL = 10.0
"""Loss, summed over images, that a weight pays for standing 1 away from where it starts: docs/results.md."""
NEGLIGIBLE = 0.02
"""Weights, as shares of their sum, that are left out."""


class Linear(NamedTuple):
    """Logits of features x (n, D): x @ weight.T + bias."""

    weight: Floats
    """(K, D)"""
    bias: Floats
    """(K,)"""

    def __call__(self, features: NDArray) -> Floats:
        logits: Floats = features @ self.weight.T + self.bias
        return logits


@dataclass(frozen=True)
class Images:
    """Features (N, D) of images, their labels (N,), and their units (N,): those with one number belong together."""

    features: NDArray
    labels: Ints
    units: Ints
    classes: int
    columns: Sequence[slice]
    """Columns of each network that a head is fitted on."""
    levels: Ints
    """(D,): number of the level of each feature; a level is the end of a network or one of its stages."""

    def take(self, rows: Ints) -> "Images":
        return replace(self, features=self.features[rows], labels=self.labels[rows], units=self.units[rows])


@dataclass(frozen=True)
class Judged:
    """Cross-validation of the best head."""

    parts: tuple[tuple[float, float], ...]
    """Penalty of each head, for each network the whitened one and the plain one, and the factor of its logits: its
    weight over its temperature."""
    logits: Floats
    """(n, K): each image's by a head that did not learn from it."""
    labels: Ints
    """(n,)"""
    units: Ints
    """(n,)"""
    alone: tuple["Judged", ...] = ()
    """Each of several networks alone."""

    @property
    def scores(self) -> dict[str, float]:
        """Accuracy with its 95 % interval, and log loss."""
        low, high = design_of(self.right, self.units).interval(self.accuracy)
        return {"accuracy": self.accuracy, "low": low, "high": high, "loss": self.loss}

    @property
    def right(self) -> NDArray[np.bool_]:
        """(n,)"""
        return self.logits.argmax(axis=1) == self.labels

    @property
    def accuracy(self) -> float:
        return float(self.right.mean())

    @property
    def loss(self) -> float:
        return float(losses(self.logits, self.labels).mean())


def fit_head(images: Images) -> tuple[Linear, Judged | None]:
    """Fit the calibrated head to all images; return it with its cross-validation, None of too few images."""
    judged = cross_validate(images)
    kinds = [(own, white) for own in images.columns for white in (True, False)]
    parts = ((FEW_PENALTY, 1 / len(kinds)),) * len(kinds) if judged is None else judged.parts
    weight, bias = np.zeros((images.classes, images.features.shape[1])), np.zeros(images.classes)
    for (own, white), (penalty, factor) in zip(kinds, parts, strict=True):
        if factor:
            [head] = heads_of(images, own, [penalty], white=white)
            weight[:, own] += factor * head.weight
            bias += factor * head.bias
    return Linear(weight, bias), judged


def cross_validate(images: Images, *, most: int = MOST_IMAGES) -> Judged | None:
    """Choose penalties, temperatures and weights by some of the images; None: there are too few."""
    images = images.take(sample(images.labels, images.units, most))
    folds = folds_of(images.labels, images.units)
    if not folds:
        return None
    alone = [pool([judge(images, own, folds, white=white) for white in (True, False)]) for own in images.columns]
    return alone[0] if len(alone) == 1 else replace(pool(alone), alone=tuple(alone))


def pool(heads: Sequence[Judged]) -> Judged:
    """Weigh heads that were cross-validated on the same images."""
    logits = [head.logits for head in heads]
    weights = weights_of(logits, heads[0].labels, start=np.full(len(heads), 1 / len(heads)))
    pairs = zip(weights, heads, strict=True)
    parts = tuple((penalty, float(weight) * factor) for weight, head in pairs for penalty, factor in head.parts)
    return replace(heads[0], parts=parts, logits=np.tensordot(weights, np.stack(logits), axes=1))


def judge(images: Images, own: slice, folds: Sequence[Ints], *, white: bool) -> Judged:
    """Cross-validate one head of one network with the best penalty."""
    logits = np.empty((len(PENALTIES), len(images.labels), images.classes))
    for rows in folds:
        others = images.take(np.setdiff1d(np.arange(len(images.labels)), rows))
        for place, head in enumerate(heads_of(others, own, PENALTIES, white=white)):
            logits[place, rows] = head(images.features[rows, own])
    factors = [sharpness(each, images.labels) for each in logits]
    found = [
        Judged(((penalty, factor),), factor * each, images.labels, images.units)
        for penalty, factor, each in zip(PENALTIES, factors, logits, strict=True)
    ]
    return min(found, key=lambda judged: judged.loss)


def heads_of(images: Images, own: slice, penalties: Sequence[float], *, white: bool) -> Iterator[Linear]:
    """Yield the head of each penalty, on the features of one network as they come.

    Linear algebra runs on one thread: its products are so small that threads wait for each other longer than they
    compute, and many times as long where others use the machine."""
    features, levels = np.ascontiguousarray(images.features[:, own]), images.levels[own]
    with threadpool_limits(limits=1, user_api="blas"):
        mean, variance = (values(axis=0, dtype=np.float64) for values in (features.mean, features.var))
        factor = np.ones_like(mean)
        for level in np.unique(levels):
            factor[levels == level] = 1 / np.sqrt(max(variance[levels == level].sum(), 1e-12))
        x = ((features - mean) * factor).astype(np.float32)
        # Few images differ in no more directions than there are images: in a basis of these a fit costs less.
        turn = np.linalg.qr(x.T)[0] if len(x) < x.shape[1] else np.eye(x.shape[1], dtype=np.float32)
        turn = turn @ whitening(x @ turn, images.labels, white=white)
        x, (present, of) = x @ turn, np.unique(images.labels, return_inverse=True)
        model = LogisticRegression(class_weight="balanced", max_iter=200, tol=1e-3, warm_start=True)
        for penalty in penalties:
            weight, bias = np.zeros((images.classes, len(mean))), np.full(images.classes, -np.log(len(x) + 1))
            bias[present] = 0.0
            if len(present) > 1:
                model.C = 1 / (penalty * len(x))
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", ConvergenceWarning)  # nearly there is near enough
                    warnings.filterwarnings("ignore", message="The number of unique classes is greater than 50%")
                    model.fit(x, images.labels)
                both = len(present) == 2
                coefficients = np.concatenate([-model.coef_, model.coef_]) / 2 if both else model.coef_
                intercepts = np.concatenate([-model.intercept_, model.intercept_]) / 2 if both else model.intercept_
                if len(present) < images.classes:
                    bias[:] = ABSENT * np.einsum("nd,nd->", x, coefficients[of]) / len(x)
                weight[present], bias[present] = coefficients @ turn.T * factor, intercepts
            yield Linear(weight, bias - weight @ mean)


def whitening(x: NDArray, labels: Ints, *, white: bool) -> NDArray:
    """Return the matrix (d, d) after which centred features x (n, d) have the identity as covariance within classes.

    `white` False: a multiple of the identity, so that only the mean of the variances is 1. Where no class has two
    images it is the covariance of all."""
    _, of, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if len(counts) < len(x):
        members = np.eye(len(counts), dtype=x.dtype)[of]
        x = x - (members.T @ x / counts[:, None].astype(x.dtype))[of]
    one = np.eye(x.shape[1], dtype=x.dtype)
    covariance = ledoit_wolf(x, assume_centered=True)[0] if white else np.square(x).mean() * one
    covariance.flat[:: len(covariance) + 1] += 1e-6 * np.trace(covariance) / len(covariance) + 1e-12
    lower = cholesky(covariance, lower=True)
    inverse: NDArray = solve_triangular(lower, one, lower=True)
    return inverse.T


def sample(labels: Ints, units: Ints, most: int) -> Ints:
    """Choose the rows of about `most` images, of each class the same share, with whole units."""
    if len(labels) <= most:
        return np.arange(len(labels))
    _, first, unit = np.unique(units, return_index=True, return_inverse=True)
    by_class = np.argsort(labels[first], kind="stable")  # of the units, each of which is that of its first
    count = max(1, len(by_class) * most // len(labels))
    return np.flatnonzero(np.isin(unit, by_class[np.arange(count) * len(by_class) // count]))


def folds_of(labels: Ints, units: Ints, *, folds: int = FOLDS) -> list[Ints]:
    """Return the rows of each fold; images of a unit share one, and classes are spread evenly.

    Empty: there are fewer than `LEAST` units a class, or no class has two."""
    _, first = np.unique(units, return_index=True)
    folds = min(folds, int(np.bincount(labels[first]).max()))
    if folds < 2 or len(first) < LEAST * len(np.unique(labels)):
        return []
    alone = len(first) == len(units)
    splitter = (StratifiedKFold if alone else StratifiedGroupKFold)(folds, shuffle=True, random_state=0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The least populated class")
        found = [left_out for _, left_out in splitter.split(labels, labels, None if alone else units)]
    return [rows for rows in found if len(rows)]


def weights_of(logits: Sequence[Floats], labels: Ints, *, start: Floats, pull: float = PULL) -> Floats:
    """Return the weight of each classifier (M,) in a weighted sum of their calibrated logits (n, K) for n images.

    That is the logarithmic opinion pool (Genest and Zidek 1986). Its fit is convex, and pulled to `start` (M,), so few
    images cannot lead far from it."""
    stacked, truth = np.stack(logits), np.eye(logits[0].shape[1])[labels]

    def objective(weights: Floats) -> tuple[float, Floats]:
        mixed = np.tensordot(weights, stacked, axes=1)
        gradient = np.einsum("mnk,nk->m", stacked, softmax(mixed, axis=1) - truth)
        away = weights - start
        return float(losses(mixed, labels).sum() + pull * away @ away), gradient + 2 * pull * away

    found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=[(0, None)] * len(start))
    weights: Floats = np.where(found.x < NEGLIGIBLE * found.x.sum(), 0.0, found.x)
    return weights
