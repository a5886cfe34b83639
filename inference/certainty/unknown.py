"""Score how unlike the validation images others are, and fit a threshold.

The score is a smooth maximum of two, each less its median and in units of its spread among validation images: the
distance of the features (`layer_features.py`) from one Gaussian with a shrunken covariance, and the energy, minus the
log-sum-exp of the logits (Liu et al. 2020, arXiv:2010.03759). A model whose features are not known has the energy
alone. The Gaussian is fitted to one half of the validation images; spreads and thresholds come from the other.
N images, D features, R directions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from inference.certainty.conformal import Floats, unit_weights

RATES = (0.01, 0.05, 0.1)
"""Shares of one's own images that may be called unknown."""
MOST_FITTED = 512
"""Images that the Gaussian is fitted to: more gave no better one, and their number bounds the directions."""
LEAST = 1e-30
"""A squared length below this counts as this, and one above its inverse as its inverse."""


@dataclass(frozen=True)
class RobustScale:
    """The middle of some values and their spread, the distance of the quartiles."""

    middle: float
    spread: float

    @classmethod
    def of(cls, values: Floats) -> "RobustScale":
        low, middle, high = np.percentile(values, (25, 50, 75))
        return cls(float(middle), float(high - low) or float(values.std()) or 1.0)

    def standard(self, values: Any) -> Any:
        """Values, as an array or a tensor, less the middle, in units of the spread."""
        return (values - self.middle) / self.spread


class Gaussian(nn.Module):
    """Parts (B, width) of the features -> (B,), the log of their squared Mahalanobis distance.

    The covariance of the standardised features has R directions with variances of their own, and one variance for all
    that is orthogonal to them.
    """

    def __init__(self, mean: Tensor, scale: Tensor, axes: Tensor, rest: float, lengths: Sequence[bool]) -> None:
        """Take mean and scale (D,), which standardise features, and axes (D, R).

        Features less `mean` times `scale` are standardised, float32. axes: directions times
        sqrt(1 / rest - 1 / variance). rest: the variance of what is orthogonal to them. lengths: the parts that are
        divided by their length first."""
        super().__init__()
        self.rest, self.lengths = rest, tuple(lengths)
        for name, tensor in (("mean", mean), ("scale", scale), ("axes", axes)):
            self.register_buffer(name, tensor)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        x = (joined_parts(features, self.lengths) - self.get_buffer("mean")) * self.get_buffer("scale")
        squares = x.square().sum(dim=1) / self.rest - (x @ self.get_buffer("axes")).square().sum(dim=1)
        return squares.clamp(LEAST, 1 / LEAST).log()


def joined_parts(parts: Sequence[Tensor], lengths: Sequence[bool]) -> Tensor:
    """Join parts (B, width) side by side (B, D), those of `lengths` divided by theirs."""
    return torch.cat(
        [functional.normalize(part, dim=1) if own else part for part, own in zip(parts, lengths, strict=True)], dim=1
    ).float()


def fit_gaussian(parts: Sequence[Tensor]) -> Gaussian:
    """Fit a Gaussian with a shrunken covariance to parts (n, width).

    It is shrunken by OAS (Chen et al. 2010, arXiv:0907.4698). A part that is never negative, such as what a ReLU
    leaves of the maps of a convolutional network, is divided by its length, which says little but how much contrast a
    picture has.
    """
    lengths = [bool((part >= 0).all()) for part in parts]
    features = joined_parts(parts, lengths).double().numpy()
    deviations = np.split(features.std(axis=0), np.cumsum([part.shape[1] for part in parts])[:-1])
    of_parts = [
        np.full_like(d, np.sqrt((d**2).mean())) if own else d for d, own in zip(deviations, lengths, strict=True)
    ]
    deviation = np.concatenate(of_parts)
    scale = 1 / (deviation + 1e-6 * deviation.mean() + 1e-12)
    mean = features.mean(axis=0)
    x = (features - mean) * scale
    _, singular, directions = np.linalg.svd(x, full_matrices=False)
    kept = singular > 1e-5 * singular.max(initial=1e-12)
    variances = singular[kept] ** 2 / len(x)
    share, level = shrinkage(variances, images=len(x), features=x.shape[1])
    rest = max(share * level, 1e-6 * level, LEAST)
    weights = np.sqrt(1 / rest - 1 / ((1 - share) * variances + rest))
    axes = directions[kept].T * weights
    return Gaussian(single(mean), single(scale), single(axes), float(rest), lengths)


def single(values: Floats) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))


def shrinkage(variances: Floats, *, images: int, features: int) -> tuple[float, float]:
    """Return the share of a covariance with these eigenvalues that the mean variance replaces (as
    `sklearn.covariance.oas`, without its features x features matrix), and that mean."""
    level, mean_square = variances.sum() / features, (variances**2).sum() / features**2
    wanted, most = mean_square + level**2, (images + 1) * (mean_square - level**2 / features)
    return (1.0 if most <= 0 else min(float(wanted / most), 1.0)), float(level)


class Unlikeness(nn.Module):
    """Logits (B, C) and parts (B, width) of the features -> (B,), the score."""

    def __init__(self, gaussian: Gaussian | None, distance: RobustScale | None, energy: RobustScale | None) -> None:
        """Take what is fitted; all None for an ONNX file.

        `gaussian` with the scale of its `distance`: None without features. `energy`: None without logits. An ONNX file
        computes its score and gives it as its features (B, 1)."""
        super().__init__()
        self.gaussian, self.distance, self.energy = gaussian, distance, energy

    @property
    def needs_logits(self) -> bool:
        return self.energy is not None

    @property
    def needs_features(self) -> bool:
        return self.gaussian is not None or self.energy is None

    def forward(self, logits: Tensor, features: Sequence[Tensor] | None) -> Tensor:
        """Compute the score; what it does not need may be anything."""
        found = []
        if self.gaussian is not None and self.distance is not None:
            assert features is not None
            found.append(self.distance.standard(self.gaussian(features)))
        if self.energy is not None:
            found.append(self.energy.standard(energy(logits.float())))
        if not found:
            assert features is not None
            found.append(features[0][:, 0])
        return found[0] if len(found) == 1 else torch.logaddexp(*found)


def energy(logits: Tensor) -> Tensor:
    return -logits.logsumexp(dim=1)


def fit_unlikeness(
    logits: Tensor | None, features: Sequence[Tensor] | None, units: NDArray
) -> tuple[Unlikeness, Floats]:
    """Fit the score to logits (N, C) and parts (N, width); one may be None.

    Returns it with its values (N,); those of the images that the Gaussian is fitted to, which are nearer than new ones,
    are NaN. Images of one of the units (N,) lie in one half.
    """
    gaussian = distance = of_energy = None
    held_out = np.ones(len(units), bool)
    if features is not None and len(np.unique(units)) > 1:
        held_out = ~fitted_rows(units)
        gaussian = fit_gaussian([part[~held_out] for part in features])
        distance = RobustScale.of(gaussian(features).double().numpy()[held_out])
    if logits is not None:
        of_energy = RobustScale.of(energy(logits.double()).numpy()[held_out])
    score = Unlikeness(gaussian, distance, of_energy)
    values = score(torch.zeros(len(units), 1) if logits is None else logits, features).double().numpy()
    return score, np.where(held_out, values, np.nan)


def fitted_rows(units: NDArray) -> NDArray[np.bool_]:
    """Draw whole units, at least one, with half of the images, at most MOST_FITTED."""
    _, numbers, sizes = np.unique(units, return_inverse=True, return_counts=True)
    order = np.random.default_rng(0).permutation(len(sizes))
    chosen = np.cumsum(sizes[order]) <= min(len(units) // 2, MOST_FITTED)
    chosen[0] = True
    return np.isin(numbers, order[chosen])


def fewest_for_rate(rate: float) -> int:
    """Return the fewest images, or units of them, that a threshold at this rate takes."""
    return int(np.ceil(1 / rate - 1e-9)) - 1


def fit_threshold(scores: Floats, units: NDArray, rate: float) -> float | None:
    """Fit the score above which an image is unknown: a quantile of known scores (N,).

    The expected share of new images of one's own above it is at most `rate`. None: there are less than
    `fewest_for_rate(rate)` units."""
    known = ~np.isnan(scores)
    scores, weights = scores[known], unit_weights(units[known])
    count = round(weights.sum())
    if count < fewest_for_rate(rate):
        return None
    order = np.argsort(scores, kind="stable")
    reached = np.cumsum(weights[order])
    place = int(np.searchsorted(reached, np.ceil((1 - rate) * (count + 1) - 1e-9) - 1e-9))
    return float(scores[order[min(place, len(order) - 1)]])
