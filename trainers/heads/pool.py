"""Several classifiers as one: a weighted sum of their logits, the weights fitted to images that none has learnt from.

That is the logarithmic opinion pool (Genest and Zidek 1986): its probabilities are a product of powers of theirs. A
weight is a share of the mixture divided by a temperature, so it is zero or larger; the sum of the heads of several
networks is one head again. The fit is pulled to where it starts, so few images cannot lead far from it.
"""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize
from scipy.special import softmax

from trainers.engine.temperature import Floats, Ints, losses

PULL = 10.0
"""Loss, summed over images, that a weight pays for standing 1 away from where it starts: docs/results.md."""
NEGLIGIBLE = 0.02
"""Weights, as shares of their sum, that are left out."""


def weights_of(logits: Sequence[Floats], labels: Ints, *, start: Floats, pull: float = PULL) -> Floats:
    """The weight of each classifier (M,) whose logits (n, K), calibrated, are given for n images. The problem is
    convex: it has one answer. `start`: the weights (M,) that the fit is pulled to."""
    stacked, truth = np.stack(logits), np.eye(logits[0].shape[1])[labels]

    def objective(weights: Floats) -> tuple[float, Floats]:
        mixed = np.tensordot(weights, stacked, axes=1)
        gradient = np.einsum("mnk,nk->m", stacked, softmax(mixed, axis=1) - truth)
        away = weights - start
        return float(losses(mixed, labels).sum() + pull * away @ away), gradient + 2 * pull * away

    found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=[(0, None)] * len(start))
    weights: Floats = np.where(found.x < NEGLIGIBLE * found.x.sum(), 0.0, found.x)
    return weights
