"""Ridge regression on features: how well a linear head would do, in closed form.

For centred features X (N, D), centred targets Y and a penalty p, the fitted values are H Y with
H = X (X'X + p I)^-1 X' + 1/N, and the prediction for an image that the fit did not see is
y - (y - fitted) / (1 - h) with h its entry on the diagonal of H: exact, from one fit (Allen 1974, PRESS). The same
holds for a group of images, with h the block of H that belongs to it and a matrix in place of the quotient.
scikit-learn's RidgeCV gives the same, in more time for a few hundred images.
"""

import numpy as np

PENALTIES = tuple(10.0**exponent for exponent in range(-4, 2))
"""Penalties in units of the mean eigenvalue of X'X. Of them the one with the least squared error of images left out
counts."""


def predictions(
    features: np.ndarray, targets: np.ndarray, rows: np.ndarray, units: np.ndarray | None = None
) -> np.ndarray:
    """(n, C): what ridge regression on the `rows` of features (n, D) and targets (n, C), one-hot, says of each image;
    of one of the rows without having seen it, nor any other of its unit, where `units` (n,) numbers images that belong
    together."""
    middle, centre = features[rows].mean(axis=0), targets[rows].mean(axis=0)
    x, y = features[rows] - middle, targets[rows] - centre
    wide = x.shape[1] > len(x)
    values, vectors = np.linalg.eigh(x @ x.T if wide else x.T @ x)
    values = values.clip(0)
    turned = vectors * np.sqrt(values) if wide else x @ vectors  # (N, R): X V = U S
    projected = turned.T @ y
    penalties = [penalty * values.mean() + 1e-12 for penalty in PENALTIES]
    together = [] if units is None else _several(units[rows])
    left_out = []
    for penalty in penalties:
        shrunk = turned / (values + penalty)
        leverage = (shrunk * turned).sum(axis=1, keepdims=True) + 1 / len(x)
        residual = y - shrunk @ projected
        errors = residual / (1 - leverage).clip(1e-9)
        for unit in together:
            block = shrunk[unit] @ turned[unit].T + 1 / len(x)
            errors[unit] = np.linalg.solve((1 + 1e-9) * np.eye(len(unit)) - block, residual[unit])
        left_out.append(y + centre - errors)
    best = min(range(len(penalties)), key=lambda place: np.square(left_out[place] - targets[rows]).sum())
    inverse = (vectors / (values + penalties[best])) @ vectors.T
    weights = x.T @ (inverse @ y) if wide else inverse @ (x.T @ y)
    said = (features - middle) @ weights + centre
    said[rows] = left_out[best]
    return said


def _several(units: np.ndarray) -> list[np.ndarray]:
    """The places of each unit of several images."""
    order = np.argsort(units, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(units[order])) + 1)
    return [part for part in parts if len(part) > 1]
