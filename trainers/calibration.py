"""How far a model's confidence can be believed, and the one number that corrects it."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

NUM_BINS = 15
LIMITS = (0.05, 20.0)  # a model that is right on every val image would want a temperature of zero


def confidence_bins(confidence: Tensor, correct: Tensor) -> Tensor:
    """Sums over the images in equal-width bins of confidence: (3, NUM_BINS) float64 of their number, their confidence,
    and how many of them are right. A confidence (N,) on the edge of two bins belongs to the lower one.
    """
    bins = (confidence * NUM_BINS).ceil().long().clamp(1, NUM_BINS) - 1
    rows = (torch.ones_like(confidence), confidence, correct)
    return torch.stack([torch.bincount(bins, row.double(), minlength=NUM_BINS) for row in rows])


def reliability(logits: Tensor, labels: Tensor, *, temperature: float = 1.0) -> Tensor:
    """The `confidence_bins` of predictions (N, classes), once the logits are divided by `temperature`."""
    confidence, predicted = (logits.detach().float() / temperature).softmax(dim=1).max(dim=1)
    return confidence_bins(confidence, predicted == labels)


def expected_calibration_error(bins: Tensor) -> float:
    """Mean gap between confidence and accuracy, weighted by images (Guo et al. 2017, eq. 3)."""
    count, confidence, correct = bins
    return float((confidence - correct).abs().sum() / count.sum().clamp(min=1))


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The T in LIMITS with the least negative log-likelihood of `softmax(logits / T)` (Guo et al. 2017, section 4.2).

    One number for all classes, so no prediction changes. The loss is convex in 1 / T: one minimum.
    """
    from scipy.optimize import minimize_scalar  # takes half a second to import; training needs only the bins

    low, high = (math.log(limit) for limit in LIMITS)
    minimum = minimize_scalar(
        lambda log_temperature: negative_log_likelihood(logits, labels, temperature=math.exp(log_temperature)),
        bounds=(low, high), method="bounded", options={"xatol": 1e-6},
    )  # fmt: skip
    return math.exp(minimum.x)


def negative_log_likelihood(logits: Tensor, labels: Tensor, *, temperature: float) -> float:
    return F.cross_entropy(logits.double() / temperature, labels).item()
