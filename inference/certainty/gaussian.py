"""A Gaussian of features with a shrunken covariance, and how far from it an image would lie without its own part in it.

The shrinkage is OAS (Chen et al. 2010, arXiv:0907.4698). N images, D features, R directions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

LEAST = 1e-30
"""A squared length below this counts as this."""
MOST_ROWS = 1024
"""Images that are left out at once: a batch of them is an array for each class, too."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Gaussian:
    """A normal distribution of features, standardised: its covariance has R directions with variances of their own, and
    one variance for all that is orthogonal to them.

    A part whose features are never negative, such as what a ReLU leaves of the maps of a convolutional network, is
    divided by its length first, as its length says little but how much contrast a picture has.
    """

    mean: Tensor
    """float32 (D,)"""
    deviation: Tensor
    """float32 (D,)"""
    directions: Tensor
    """float32 (D, R), orthonormal."""
    variances: Tensor
    """float32 (R,)"""
    rest: float
    lengths: tuple[bool, ...] = (False,)
    """Parts that are divided by their length."""

    def coordinates(self, parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Parts (B, width) -> (B, R) along the directions, and (B,) the squared length of what lies beside them: one
        product of (B, D) and (D, R)."""
        x = (joined(parts, self.lengths) - self.mean) / self.deviation
        along = x @ self.directions
        return along, (x.square().sum(dim=1) - along.square().sum(dim=1)).clamp(min=0)

    def squared_distance(self, along: Tensor, beside: Tensor) -> Tensor:
        """Coordinates (B, R) and (B,) -> (B,)."""
        return (along.square() / self.variances).sum(dim=1) + beside / self.rest


def joined(parts: Sequence[Tensor], lengths: Sequence[bool]) -> Tensor:
    """Parts (B, width) side by side (B, D), those of `lengths` divided by theirs."""
    return torch.cat(
        [functional.normalize(part, dim=1) if own else part for part, own in zip(parts, lengths, strict=True)], dim=1
    ).float()


def fit_gaussian(parts: Sequence[Tensor], units: NDArray) -> tuple[Gaussian, Floats]:
    """The Gaussian of parts (n, width), and the squared distance (n,) of each image from the one that all other units
    alone would give, with the same scales and the same shrinkage.

    Leaving out rows X of the residuals takes a share of X'X from the covariance, so that their distances follow from
    the one fit by the inverse of I - g X A^-1 X' (Woodbury), as in `trainers/budget/ridge.py`.
    """
    lengths = tuple(bool((part >= 0).all()) for part in parts)
    features = joined(parts, lengths).double().numpy()
    mean, deviation = features.mean(axis=0), _deviations(features, [part.shape[1] for part in parts], lengths)
    x = (features - mean) / deviation
    n = len(x)
    eigenvalues, directions = principal_axes(x)
    share, level = shrinkage(float(eigenvalues.sum()), float((eigenvalues**2).sum()), images=n, features=x.shape[1])
    variances, rest = (1 - share) * eigenvalues + share * level, max(share * level, 1e-6 * level, LEAST)
    whitened = x @ directions.T / np.sqrt(variances)
    fitted = Gaussian(single(mean), single(deviation), single(directions.T), single(variances), float(rest), lengths)
    return fitted, _left_out(whitened, units, (1 - share) / n)


def _deviations(features: Floats, widths: Sequence[int], lengths: Sequence[bool]) -> Floats:
    """(D,): of each feature its standard deviation; of a part that was divided by its length one for all of it."""
    deviation = features.std(axis=0)
    deviation = deviation + 1e-6 * deviation.mean() + 1e-12
    pieces = np.split(deviation, np.cumsum(widths)[:-1])
    return np.concatenate(
        [np.full_like(piece, np.sqrt((piece**2).mean())) if own else piece for piece, own in zip(pieces, lengths)]  # noqa: B905
    )


def principal_axes(x: Floats) -> tuple[Floats, Floats]:
    """The eigenvalues (R,) of the second moments of x (n, D) and their directions (R, D), the largest first, but those
    below 1e-10 of it.

    They come from the smaller of the two matrices of products, of images or of features, which takes a quarter of the
    time of a singular value decomposition and squares its condition: hence float64, and that limit.
    """
    n, width = x.shape
    wide = n < width
    values, vectors = np.linalg.eigh(x @ x.T if wide else x.T @ x)
    values, vectors = values[::-1], vectors[:, ::-1]
    kept = values > 1e-10 * max(values.max(initial=0.0), 1e-24)
    values, vectors = values[kept], vectors[:, kept]
    return values / n, (vectors / np.sqrt(values)).T @ x if wide else vectors.T


def shrinkage(trace: float, squares: float, *, images: int, features: int) -> tuple[float, float]:
    """The share of a covariance with this trace, and this sum of squares of its entries, that the mean variance
    replaces, by Oracle Approximating Shrinkage (as sklearn.covariance.oas), and that mean."""
    level, mean_square = trace / features, squares / features**2
    wanted, most = mean_square + level**2, (images + 1) * (mean_square - level**2 / features)
    return (1.0 if most <= 0 else min(wanted / most, 1.0)), level


def _left_out(whitened: Floats, units: NDArray, share: float) -> Floats:
    """Squared lengths (n,) of whitened residuals (n, R), each as if the covariance and the mean had been made without
    its unit; `share` is what one image adds to the covariance."""
    n, found = len(whitened), np.empty(len(whitened))
    for rows in batches_of(units):
        one, others = np.eye(rows.shape[1]), max(n - rows.shape[1], 1)
        own = whitened[rows]
        moved = own + own.sum(axis=1, keepdims=True) / others  # from the mean of the others
        # The covariance loses the rows' scatter about the mean, and what moving the mean takes from that of the others.
        taken = share * (one + 1 / others)
        products = own @ own.swapaxes(1, 2)
        inner = np.linalg.solve((1 + 1e-9) * one - taken @ products, taken)
        across = moved @ own.swapaxes(1, 2)
        found[rows] = (moved**2).sum(axis=2) + ((across @ inner) * across).sum(axis=2)
    return found


def batches_of(units: NDArray) -> Iterator[NDArray[np.intp]]:
    """The rows (U, m) of all units of n rows, those of m images in batches of U, which arrays take at once."""
    _, starts, sizes = np.unique(np.sort(units), return_index=True, return_counts=True)
    order = np.argsort(units, kind="stable")
    for size in np.unique(sizes):
        rows = order[starts[sizes == size][:, None] + np.arange(size)]
        yield from np.split(rows, range(0, len(rows), max(1, MOST_ROWS // int(size)))[1:])


def single(values: Floats) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
