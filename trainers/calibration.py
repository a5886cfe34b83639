"""How far a model's confidence can be believed, and the one number that corrects it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

LIMITS = (0.05, 20.0)  # a model that is right on every val image would want a temperature of zero


@dataclass(frozen=True)
class Bin:
    """The images whose confidence lies in one bin: how many, their mean confidence, the share that is right."""

    count: int
    confidence: float
    accuracy: float


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The T in LIMITS with the least negative log-likelihood of `softmax(logits / T)` (Guo et al. 2017, section 4.2).

    One number for all classes, so no prediction changes. The loss is convex in 1 / T: one minimum.
    """
    from scipy.optimize import minimize_scalar  # takes half a second to import; training needs only the bins

    logits = logits.double()

    def loss(log_temperature: float) -> float:
        return F.cross_entropy(logits / math.exp(log_temperature), labels).item()

    low, high = (math.log(limit) for limit in LIMITS)
    found = minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-6})
    return math.exp(found.x)


def reliability(logits: Tensor, labels: Tensor, *, temperature: float = 1.0, num_bins: int = 15) -> list[Bin]:
    """The equal-width bins of confidence that `trainers.metrics.ExpectedCalibrationError` sums over."""
    confidence, predicted = (logits.float() / temperature).softmax(dim=1).max(dim=1)
    which = (confidence * num_bins).ceil().long().clamp(1, num_bins) - 1
    right = (predicted == labels).double()
    bins = []
    for index in range(num_bins):
        inside = which == index
        count = int(inside.sum())
        means = [float(values[inside].double().mean()) if count else 0.0 for values in (confidence, right)]
        bins.append(Bin(count, *means))
    return bins


def expected_calibration_error(bins: list[Bin]) -> float:
    """Mean gap between confidence and accuracy, weighted by images."""
    total = sum(each.count for each in bins)
    return sum(each.count * abs(each.confidence - each.accuracy) for each in bins) / max(total, 1)


def negative_log_likelihood(logits: Tensor, labels: Tensor, *, temperature: float = 1.0) -> float:
    return F.cross_entropy(logits.double() / temperature, labels).item()
