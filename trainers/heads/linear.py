"""Fit a linear head on features of frozen networks: logistic regression with equal weight for every class.

The features of each level get one scale. Each network has two heads: a plain one, and one on features whitened by their
within-class covariance, which is shrunk as in Ledoit and Wolf (2004). The penalty is chosen by cross-validation over
whole units, and a temperature fitted to the same out-of-fold logits calibrates the probabilities. The weighted sum of
all heads is again one linear head: docs/results.md. N images, D features, K classes.
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
"""Penalty if there are too few images for cross-validation; the temperature is then 1."""
FOLDS = 5
LEAST = 3
"""Least units per class, on average, for a cross-validation: otherwise heads would learn from one of each."""
MOST_IMAGES = 1_000
"""Training images for choosing penalty and temperature; the head is then fitted to all of them."""
ABSENT = 0.25
"""Logit of a class without images, as a share of the mean logit of the other images for their own class."""

PULL = 10.0
"""Loss, summed over images, for a weight at distance 1 from its start: docs/results.md."""
NEGLIGIBLE = 0.02
"""Weights below this share of their sum are set to 0."""


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
    """Features (N, D) of images, their labels (N,), and their units (N,).

    Images of one unit belong together."""

    features: NDArray
    labels: Ints
    units: Ints
    classes: int
    columns: Sequence[slice]
    """Columns of each network that a head is fitted to."""
    levels: Ints
    """(D,): index of the level of each feature; a level is the output of a network or of one of its stages."""

    def take(self, rows: Ints) -> "Images":
        return replace(self, features=self.features[rows], labels=self.labels[rows], units=self.units[rows])


@dataclass(frozen=True)
class Judged:
    """Cross-validation of the best head."""

    parts: tuple[tuple[float, float], ...]
    """Penalty of each head (for each network the whitened one, then the plain one), and the factor of its logits: its
    weight over its temperature."""
    logits: Floats
    """(n, K): out-of-fold logits."""
    labels: Ints
    """(n,)"""
    units: Ints
    """(n,)"""
    alone: tuple["Judged", ...] = ()
    """The cross-validation of each network, if there are several."""

    @property
    def scores(self) -> dict[str, float]:
        """Return the accuracy with its 95 % interval, and the log loss."""
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
    """Fit the calibrated head to all images; return it with its cross-validation.

    That is None with too few images."""
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
    """Choose penalties, temperatures and weights by cross-validation on a sample; None with too few images."""
    images = images.take(sample(images.labels, images.units, most))
    folds = folds_of(images.labels, images.units)
    if not folds:
        return None
    alone = [pool([judge(images, own, folds, white=white) for white in (True, False)]) for own in images.columns]
    return alone[0] if len(alone) == 1 else replace(pool(alone), alone=tuple(alone))


def pool(heads: Sequence[Judged]) -> Judged:
    """Weight heads that were cross-validated on the same images."""
    logits = [head.logits for head in heads]
    weights = weights_of(logits, heads[0].labels, start=np.full(len(heads), 1 / len(heads)))
    pairs = zip(weights, heads, strict=True)
    parts = tuple((penalty, float(weight) * factor) for weight, head in pairs for penalty, factor in head.parts)
    return replace(heads[0], parts=parts, logits=np.tensordot(weights, np.stack(logits), axes=1))


def judge(images: Images, own: slice, folds: Sequence[Ints], *, white: bool) -> Judged:
    """Cross-validate one head of one network, and choose its penalty."""
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
    """Yield the head of each penalty on the features of one network.

    Linear algebra uses one thread: its products are so small that threads wait for each other longer than they compute,
    and many times as long if others use the machine.
    """
    features, levels = np.ascontiguousarray(images.features[:, own]), images.levels[own]
    with threadpool_limits(limits=1, user_api="blas"):
        mean, variance = (values(axis=0, dtype=np.float64) for values in (features.mean, features.var))
        factor = np.ones_like(mean)
        for level in np.unique(levels):
            factor[levels == level] = 1 / np.sqrt(max(variance[levels == level].sum(), 1e-12))
        x = ((features - mean) * factor).astype(np.float32)
        # n images span at most n directions: the fit is cheaper in a basis of these.
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
                    warnings.simplefilter("ignore", ConvergenceWarning)  # almost converged is good enough
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
    """Return the matrix (d, d) that whitens x by its within-class covariance.

    x (n, d) are centred features. `white` False: a multiple of the identity, so that only the mean of the variances is
    1. If no class has two images, the covariance of all images is used.
    """
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
    """Choose about `most` rows, the same share of each class, in whole units."""
    if len(labels) <= most:
        return np.arange(len(labels))
    _, first, unit = np.unique(units, return_index=True, return_inverse=True)
    by_class = np.argsort(labels[first], kind="stable")  # class of each unit: that of its first image
    count = max(1, len(by_class) * most // len(labels))
    return np.flatnonzero(np.isin(unit, by_class[np.arange(count) * len(by_class) // count]))


def folds_of(labels: Ints, units: Ints) -> list[Ints]:
    """Return each fold's rows; a unit stays whole, classes are spread evenly.

    Empty if there are fewer than `LEAST` units per class, or no class has two.
    """
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


def weights_of(logits: Sequence[Floats], labels: Ints, *, start: Floats, pull: float = PULL) -> Floats:
    """Fit the weights (M,) of a weighted sum of classifiers' calibrated logits (n, K).

    This is the logarithmic opinion pool (Genest and Zidek 1986). Its fit is convex, and regularised towards `start`
    (M,), so that few images cannot move it far.
    """
    stacked, truth = np.stack(logits), np.eye(logits[0].shape[1])[labels]

    def objective(weights: Floats) -> tuple[float, Floats]:
        mixed = np.tensordot(weights, stacked, axes=1)
        gradient = np.einsum("mnk,nk->m", stacked, softmax(mixed, axis=1) - truth)
        away = weights - start
        return float(losses(mixed, labels).sum() + pull * away @ away), gradient + 2 * pull * away

    found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=[(0, None)] * len(start))
    weights: Floats = np.where(found.x < NEGLIGIBLE * found.x.sum(), 0.0, found.x)
    return weights
