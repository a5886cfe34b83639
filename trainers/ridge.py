"""Ridge regression on features, judged by leaving out each image in turn: how well a linear head would do.

For centred features X (N, D), centred one-hot targets Y and a penalty p, the fitted values are H Y with
H = X (X'X + p I)^-1 X' + 1/N, and the prediction for an image that the fit did not see is
y - (y - fitted) / (1 - h) with h its entry on the diagonal of H: exact, from one fit (Allen 1974, PRESS).
"""

import torch
from torch import Tensor

PENALTIES = tuple(10.0**exponent for exponent in range(-4, 2))
"""In units of the mean eigenvalue of X'X."""


def judged_when_left_out(features: Tensor, labels: Tensor) -> tuple[Tensor, float]:
    """bool (N,): which images ridge regression gets right without having seen them; and the mean over the images of the
    squared error of such predictions, summed over the classes.

    Of `PENALTIES` the one with the least squared error counts.

    `features` (N, ...) of any type, `labels` int64 (N,).
    """
    x = features.flatten(1).double()
    x = (x - x.mean(dim=0)) / x.std().clamp(min=1e-12)
    y = torch.nn.functional.one_hot(labels).double()
    centred = y - y.mean(dim=0)
    values, vectors = torch.linalg.eigh(x.T @ x if x.size(1) <= len(x) else x @ x.T)
    values = values.clamp(min=0)
    turned = x @ vectors if x.size(1) <= len(x) else vectors * values.sqrt()  # (N, R): X V = U S
    projected = turned.T @ centred  # (R, classes)
    predictions = []
    for penalty in PENALTIES:
        shrunk = turned / (values + penalty * values.mean() + 1e-12)
        leverage = (shrunk * turned).sum(dim=1, keepdim=True) + 1 / len(x)
        predictions.append(y - (centred - shrunk @ projected) / (1 - leverage).clamp(min=1e-9))
    errors = [(left_out - y).square().sum(dim=1).mean().item() for left_out in predictions]
    best = min(range(len(errors)), key=errors.__getitem__)
    return predictions[best].argmax(dim=1) == labels, errors[best]
