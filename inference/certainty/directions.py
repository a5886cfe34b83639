"""Directions of the known classes: how nearly an image lies in the direction of one of them, from the middle of all.

The cosine is taken where the spread within a class is a sphere, between what an image has over the mean of all images
and what the mean of a class has over it. It says where an image lies, not how far off, which is what the distance of
`inference.certainty.gaussian` says. R directions of the features, K classes, n images.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from inference.certainty.gaussian import LEAST, Floats, batches_of, shrinkage, single


@dataclass(frozen=True)
class Directions:
    """A metric by the shrunken covariance within the classes, and the direction of each class in it."""

    whitening: Tensor
    """float32 (R, R): coordinates by `Gaussian.coordinates` times this have the covariance 1 within a class."""
    classes: Tensor
    """float32 (R, K), each of length 1."""
    rest: float
    """The variance within a class of all that is orthogonal to the R directions."""

    def cosine(self, along: Tensor, beside: Tensor) -> Tensor:
        """Coordinates (B, R) and the squared lengths (B,) beside them -> (B,): the cosine to the nearest class."""
        white = along @ self.whitening
        length = (white.square().sum(dim=1) + beside / self.rest).clamp(min=LEAST).sqrt()
        return (white @ self.classes).amax(dim=1) / length


def fit_directions(
    along: Floats, beside: Floats, labels: NDArray, units: NDArray, *, fitted: NDArray, features: int
) -> tuple[Directions, Floats]:
    """The directions of the classes among n images, and the cosine (n,) of each image as all other units alone would
    give it, with the same shrinkage.

    along: coordinates (n, R) about the mean, and what lies beside them, as a squared length, (n,); fitted: the rows
    that the covariance is fitted to; features: the dimensions of the space that the R directions are of.
    """
    present, numbers, counts = np.unique(labels, return_inverse=True, return_counts=True)
    means = np.zeros((len(present), along.shape[1]))
    np.add.at(means, numbers, along)
    means /= counts[:, None]
    residuals = (along - means[numbers])[fitted]
    covariance = residuals.T @ residuals / len(residuals)
    share, level = shrinkage(
        float(covariance.trace()), float((covariance**2).sum()), images=len(residuals), features=features
    )
    rest = max(share * level, 1e-6 * level, LEAST)
    shrunken = (1 - share) * covariance + rest * np.eye(len(covariance))
    whitening = np.linalg.inv(np.linalg.cholesky(shrunken)).T  # any root does: a turned sphere has the same cosines
    found = _left_out(
        along @ whitening, beside / rest, means @ whitening, numbers, counts, units,
        np.isin(np.arange(len(along)), fitted), (1 - share) / len(residuals),
    )  # fmt: skip
    white = means @ whitening
    lengths = np.sqrt((white**2).sum(axis=1, keepdims=True).clip(LEAST))
    return Directions(single(whitening), single((white / lengths).T), float(rest)), found


def _left_out(
    white: Floats,
    beside: Floats,
    means: Floats,
    numbers: NDArray,
    counts: NDArray,
    units: NDArray,
    fitted: NDArray[np.bool_],
    share: float,
) -> Floats:
    """The cosines (n,) of whitened coordinates (n, R) to the nearest of the means (K, R), each as if its unit had had
    no part in the means and in the covariance, of which `share` is what one fitted image adds; -1 without a class."""
    n, found = len(white), np.empty(len(white))
    products, among = white @ means.T, means @ means.T
    for rows in batches_of(units):  # (U, m): U units of m images
        of, one, others = numbers[rows], np.eye(rows.shape[1]), max(n - rows.shape[1], 1)
        unit, image = np.ix_(range(len(rows)), range(rows.shape[1]))
        middle = -white[rows].sum(axis=1, keepdims=True) / others  # (U, 1, R): the mean of the others
        x, residuals = white[rows] - middle, white[rows] - means[of]
        # By what is known of all: products of the images, and of their residuals, with the means about that middle.
        to_middle = -products[rows].sum(axis=1, keepdims=True) / others
        turned = middle.swapaxes(1, 2)
        a = products[rows] - to_middle - x @ turned
        b = products[rows] - among[of] - residuals @ turned
        squares = (among.diagonal() - 2 * to_middle + middle @ turned)[:, 0]
        left = np.repeat(counts[None], len(rows), axis=0)
        np.subtract.at(left, (unit, of), 1)
        alike = (of[:, :, None] == of[:, None]) / left[unit, of].clip(1)[:, None]
        moved = means[of] - alike @ residuals - middle  # the means that move: one for each image, of its class
        a[unit[..., None], image[..., None], of[:, None]] = x @ moved.swapaxes(1, 2)
        b[unit[..., None], image[..., None], of[:, None]] = residuals @ moved.swapaxes(1, 2)
        squares[unit, of] = (moved**2).sum(axis=2)
        own = (x**2).sum(axis=2) + beside[rows]
        taken = share * np.reshape(fitted[rows].all(axis=1), (-1, 1, 1)) * (one + alike)
        inner = np.linalg.solve((1 + 1e-9) * one - taken @ (residuals @ residuals.swapaxes(1, 2)), taken)
        among_own = x @ residuals.swapaxes(1, 2)
        across = among_own @ inner
        a, own = a + across @ b, own + (across * among_own).sum(axis=2)
        squares = squares + (b * (inner @ b)).sum(axis=1)
        cosines = a / np.sqrt((own[..., None] * squares[:, None]).clip(LEAST))
        found[rows] = np.where(left[:, None] > 0, cosines, -1.0).max(axis=2)
    return found
