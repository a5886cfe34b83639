"""A score for images unlike anything trained on, and the threshold at which a stated share of one's own is called so.

Two distances, each in units of its own spread among validation images, joined by a smooth maximum:
- how far the features of the first block, of the middle one and before the head (`uncertainty.features`) lie from those
  of validation images: a Mahalanobis distance by one Gaussian with a shrunken covariance (OAS: Chen et al. 2010,
  arXiv:0907.4698), which sees what no class is like;
- the energy, minus the log-sum-exp of the logits (Liu et al. 2020, arXiv:2010.03759), which sees what lies between
  classes.
Which others were measured, and what each finds: docs/certainty.md. N images, D features, R directions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from uncertainty.conformal import unit_weights

RATES = (0.01, 0.05, 0.1)
"""Shares of one's own images that may be called unknown."""
MOST_FITTED = 512
"""Images that the Gaussian is fitted to: more gave no better one, and their number bounds its directions."""

TENSORS = ("mean", "deviation", "directions", "variances")
LEAST = 1e-30
"""A squared distance below this counts as this."""

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
    """Which parts are divided by their length."""

    def squared_distance(self, parts: Sequence[Tensor]) -> Tensor:
        """Parts (B, width) -> (B,): one product of (B, D) and (D, R)."""
        x = (joined(parts, self.lengths) - self.mean) / self.deviation
        along = x @ self.directions
        beside = (x.square().sum(dim=1) - along.square().sum(dim=1)).clamp(min=0)
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
    _, values, directions = np.linalg.svd(x, full_matrices=False)
    kept = values > 1e-6 * max(values.max(initial=0.0), 1e-12)
    eigenvalues, directions = values[kept] ** 2 / n, directions[kept]
    share, level = shrinkage(eigenvalues, images=n, features=x.shape[1])
    variances, rest = (1 - share) * eigenvalues + share * level, max(share * level, 1e-6 * level, LEAST)
    whitened = x @ directions.T / np.sqrt(variances)
    fitted = Gaussian(
        _single(mean), _single(deviation), _single(directions.T), _single(variances), float(rest), lengths
    )
    return fitted, _left_out(whitened, units, (1 - share) / n)


def _deviations(features: Floats, widths: Sequence[int], lengths: Sequence[bool]) -> Floats:
    """(D,): of each feature its standard deviation; of a part that was divided by its length one for all of it."""
    deviation = features.std(axis=0)
    deviation = deviation + 1e-6 * deviation.mean() + 1e-12
    pieces = np.split(deviation, np.cumsum(widths)[:-1])
    return np.concatenate(
        [np.full_like(piece, np.sqrt((piece**2).mean())) if own else piece for piece, own in zip(pieces, lengths)]  # noqa: B905
    )


def shrinkage(eigenvalues: Floats, *, images: int, features: int) -> tuple[float, float]:
    """The share of a covariance with these eigenvalues, others being 0, that the mean eigenvalue replaces, by Oracle
    Approximating Shrinkage (as sklearn.covariance.oas), and that mean."""
    level = eigenvalues.sum() / features
    squares = (eigenvalues**2).sum() / features**2
    wanted, most = squares + level**2, (images + 1) * (squares - level**2 / features)
    return (1.0 if most <= 0 else min(wanted / most, 1.0)), float(level)


def _left_out(whitened: Floats, units: NDArray, share: float) -> Floats:
    """Squared lengths (n,) of whitened residuals (n, R), each as if the covariance and the mean had been made without
    its unit; `share` is what one image adds to the covariance."""
    n, found = len(whitened), np.empty(len(whitened))
    order = np.argsort(units, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(units[order])) + 1):
        moved = whitened[rows] + whitened[rows].sum(axis=0) / max(n - len(rows), 1)  # from the mean of the others
        # The covariance loses the rows' scatter about the mean, and what moving the mean takes from that of the others.
        taken = share * (np.eye(len(rows)) + 1 / max(n - len(rows), 1))
        products = whitened[rows] @ whitened[rows].T
        inner = np.linalg.solve((1 + 1e-9) * np.eye(len(rows)) - taken @ products, taken)
        across = moved @ whitened[rows].T
        found[rows] = (moved**2).sum(axis=1) + np.einsum("ij,jk,ik->i", across, inner, across)
    return found


def _single(values: Floats) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))


@dataclass(frozen=True)
class Scale:
    """The middle of some values and their spread, the distance of the quartiles."""

    middle: float
    spread: float

    @classmethod
    def of(cls, values: Floats) -> "Scale":
        low, middle, high = np.percentile(values, (25, 50, 75))
        return cls(float(middle), float(high - low) or float(values.std()) or 1.0)

    def standard(self, values: Any) -> Any:
        """Values, as an array or a tensor, less the middle, in units of the spread."""
        return (values - self.middle) / self.spread


class Unlikeness(nn.Module):
    """Logits (B, C) and parts (B, width) of the features -> (B,): how unlike the validation images.

    One of the two distances may be missing: that of features where a model's blocks are not known, the energy where
    logits were not kept.
    """

    def __init__(self, gaussian: Gaussian | None, distance: Scale | None, energy: Scale | None) -> None:
        super().__init__()
        self.distance, self.energy = distance, energy
        self.rest, self.lengths = (gaussian.rest, gaussian.lengths) if gaussian else (1.0, ())
        for name in TENSORS:
            self.register_buffer(name, getattr(gaussian, name) if gaussian else None)

    @property
    def gaussian(self) -> Gaussian | None:
        if self.distance is None:
            return None
        return Gaussian(rest=self.rest, lengths=self.lengths, **{name: self.get_buffer(name) for name in TENSORS})

    def forward(self, logits: Tensor, features: Sequence[Tensor] | None) -> Tensor:
        energy = None if self.energy is None else self.energy.standard(-logits.float().logsumexp(dim=1))
        gaussian = self.gaussian
        if gaussian is None or self.distance is None:
            assert energy is not None
            return energy
        assert features is not None
        distance = self.distance.standard(gaussian.squared_distance(features).clamp(min=LEAST).log())
        return distance if energy is None else torch.logaddexp(distance, energy)


def fit_unlikeness(
    logits: Tensor | None, features: Sequence[Tensor] | None, units: NDArray
) -> tuple[Unlikeness, Floats]:
    """The score, and its values (N,) for the images that it is fitted to, each without its own unit's part in the
    Gaussian. logits (N, C) and the parts (N, width) of the features, of which one may be None; units (N,)."""
    gaussian = of_distance = of_energy = None
    standard = []
    if logits is not None:
        energy = -logits.double().logsumexp(dim=1).numpy()
        of_energy = Scale.of(energy)
        standard.append(of_energy.standard(energy))
    if features is not None:
        chosen = _evenly(units)
        gaussian, left_out = fit_gaussian([part[chosen] for part in features], units[chosen])
        squares = gaussian.squared_distance(features).double().numpy()
        squares[chosen] = left_out
        distance = np.log(squares.clip(LEAST))
        of_distance = Scale.of(distance)
        standard.append(of_distance.standard(distance))
    return Unlikeness(gaussian, of_distance, of_energy), np.logaddexp.reduce(standard)


def _evenly(units: NDArray) -> NDArray[np.intp]:
    """The images that the Gaussian is fitted to: all of up to MOST_FITTED, or whole units drawn from more."""
    if len(units) <= MOST_FITTED:
        return np.arange(len(units))
    _, numbers = np.unique(units, return_inverse=True)
    place = np.random.default_rng(0).permutation(numbers.max() + 1)[numbers]  # of each image's unit, in random order
    order = np.argsort(place, kind="stable")
    last = place[order[MOST_FITTED - 1]]
    whole = order[place[order] < last] if place[order[MOST_FITTED]] == last else order[:MOST_FITTED]
    return np.sort(whole if len(whole) > 1 else order[:MOST_FITTED])


def fewest(rate: float) -> int:
    """The fewest images, or units of them, from which a threshold at this rate of false alarms can be set."""
    return int(np.ceil(1 / rate - 1e-9)) - 1


def fit_threshold(scores: Floats, units: NDArray, rate: float) -> float | None:
    """The score above which an image is unknown, so that the expected share of new images of one's own there is at
    most `rate`: the conformal quantile of scores (N,). None: there are fewer than `fewest(rate)` units."""
    weights = unit_weights(units)
    count = round(weights.sum())
    if count < fewest(rate):
        return None
    order = np.argsort(scores, kind="stable")
    reached = np.cumsum(weights[order])
    place = int(np.searchsorted(reached, np.ceil((1 - rate) * (count + 1) - 1e-9) - 1e-9))
    return float(scores[order[min(place, len(order) - 1)]])
