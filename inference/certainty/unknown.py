"""A score for images unlike anything trained on, and the threshold at which a stated share of one's own is called so.

The sum of three, each less its median and in units of its spread among validation images:
- the distance of the features of the first block, of the middle one and before the head (`features.py`) from
  those of validation images, by one Gaussian (`gaussian.py`), which sees what no class is like;
- how far off the direction of the nearest class they lie, from the middle of all (`directions.py`), and
- the log-odds against the likeliest class, both of which see what lies between classes.
Where the features of a model are not known, the energy, minus the log-sum-exp of the logits (Liu et al. 2020,
arXiv:2010.03759), stands alone. Which others were measured, and what each finds: docs/evidence/certainty.md. N images.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from inference.certainty.conformal import unit_weights
from inference.certainty.directions import Directions, fit_directions
from inference.certainty.gaussian import LEAST, Floats, Gaussian, fit_gaussian

RATES = (0.01, 0.05, 0.1)
"""Shares of one's own images that may be called unknown."""
MOST_FITTED = 512
"""Images that the covariances are fitted to: more gave no better ones, and their number bounds the directions."""

TENSORS = ("mean", "deviation", "directions", "variances")
"""Tensors of the Gaussian."""
OF_CLASSES = ("whitening", "classes")
"""Tensors of the directions of the classes."""


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


def odds_against(logits: Tensor) -> Tensor:
    """Logits (B, C) -> (B,): the log-odds of all other classes together against the likeliest, which orders images as
    the maximum softmax does and is linear in the logits where that is near 1."""
    likeliest = logits.argmax(dim=1, keepdim=True)
    places = torch.arange(logits.size(1), device=logits.device)
    others = logits.masked_fill(places == likeliest, -torch.inf).logsumexp(dim=1)
    return others - logits.gather(1, likeliest)[:, 0]


@dataclass(frozen=True)
class Scales:
    """The scale of each part of a score; None: it has no such part."""

    distance: RobustScale | None = None
    direction: RobustScale | None = None
    odds: RobustScale | None = None
    energy: RobustScale | None = None


class Unlikeness(nn.Module):
    """Logits (B, C) and parts (B, width) of the features -> (B,): how unlike the validation images.

    What needs the features is missing where a model's blocks are not known, what needs the logits where these were not
    kept. Files of format 1 joined the distance and the energy by a smooth maximum, and still do.
    """

    def __init__(self, gaussian: Gaussian | None, directions: Directions | None, scales: Scales) -> None:
        super().__init__()
        self.scales = scales
        self.rest, self.lengths = (gaussian.rest, gaussian.lengths) if gaussian else (1.0, ())
        self.rest_within = directions.rest if directions else 1.0
        for name in TENSORS:
            self.register_buffer(name, getattr(gaussian, name) if gaussian else None)
        for name in OF_CLASSES:
            self.register_buffer(name, getattr(directions, name) if directions else None)

    @property
    def gaussian(self) -> Gaussian | None:
        if self.scales.distance is None:
            return None
        return Gaussian(rest=self.rest, lengths=self.lengths, **{name: self.get_buffer(name) for name in TENSORS})

    @property
    def class_directions(self) -> Directions | None:
        if self.scales.direction is None:
            return None
        return Directions(self.get_buffer("whitening"), self.get_buffer("classes"), self.rest_within)

    def forward(self, logits: Tensor, features: Sequence[Tensor] | None) -> Tensor:
        found, scales = [], self.scales
        gaussian, directions = self.gaussian, self.class_directions
        if gaussian is not None and scales.distance is not None:
            assert features is not None
            along, beside = gaussian.coordinates(features)
            squares = gaussian.squared_distance(along, beside)
            found.append(scales.distance.standard(squares.clamp(min=LEAST).log()))
            if directions is not None and scales.direction is not None:
                found.append(scales.direction.standard(-directions.cosine(along, beside)))
        if scales.odds is not None:
            found.append(scales.odds.standard(odds_against(logits.float())))
        if scales.energy is not None:
            energy = scales.energy.standard(-logits.float().logsumexp(dim=1))
            return torch.logaddexp(found[0], energy) if found else energy
        return torch.stack(found).sum(dim=0)


def fit_unlikeness(
    logits: Tensor | None, features: Sequence[Tensor] | None, labels: NDArray, units: NDArray
) -> tuple[Unlikeness, Floats]:
    """The score, and its values (N,) for the images that it is fitted to, each without its own unit's part in what was
    fitted to features. logits (N, C) and the parts (N, width) of the features, of which one may be None; labels and
    units (N,)."""
    if features is None:
        assert logits is not None
        energy = -logits.double().logsumexp(dim=1).numpy()
        scale = RobustScale.of(energy)
        return Unlikeness(None, None, Scales(energy=scale)), scale.standard(energy)
    chosen = _evenly(units)
    gaussian, left_out = fit_gaussian([part[chosen] for part in features], units[chosen])
    along, beside = gaussian.coordinates(features)
    squares = gaussian.squared_distance(along, beside).double().numpy()
    squares[chosen] = left_out
    directions, cosines = fit_directions(
        along.double().numpy(), beside.double().numpy(), labels, units, fitted=chosen, features=len(gaussian.mean)
    )
    values = {"distance": np.log(squares.clip(LEAST)), "direction": -cosines}
    if logits is not None:
        values["odds"] = odds_against(logits.double()).numpy()
    scales = Scales(**{name: RobustScale.of(each) for name, each in values.items()})
    total = sum(getattr(scales, name).standard(each) for name, each in values.items())
    return Unlikeness(gaussian, directions, scales), np.asarray(total)


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
