"""Test of whether an arm was still improving when its budget ended: then a verdict on it is one on the budget too."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

LAST = 0.2
"""Share of the learning, counted in steps times learning rate, over which a rise is measured: of a cosine that ends at
zero the second half of the steps, in whose last ones nothing can rise any more."""
LEAST = 0.01
"""A rise of accuracy that counts."""
FITTED = 0.98
"""Accuracy on its training images from which an arm has nothing more to learn from them."""
FEWEST = 8
"""Epochs below which nothing is said."""

RULE = (
    "in the last fifth of the training (steps times learning rate), by over a point and twice its noise, with training "
    "accuracy below 98 %"
)


def improvement_at_end(histories: Sequence[Sequence[Mapping[str, Any]]]) -> float | None:
    """Rise of the validation accuracy of an arm's runs in the last fifth of their learning; None where it did
    not, by more than a point and twice its noise, or where the training images are fitted. `histories`: the rows of
    metrics.csv of each run, the first that of the untrained model."""
    rises, noises = [], []
    for history in histories:
        rows = history[1:]
        if len(rows) < FEWEST or any(row.get(name) is None for row in rows for name in ("lr", "val_accuracy")):
            return None
        steps = np.diff([row["step"] for row in history])
        learnt = np.cumsum(steps * [row["lr"] for row in rows])
        width = max(1, len(rows) // 10)
        start = max(0, int(np.searchsorted(learnt, (1 - LAST) * learnt[-1])) - width // 2)
        accuracy = np.array([row["val_accuracy"] for row in rows])
        rises.append(accuracy[-width:].mean() - accuracy[start : start + width].mean())
        noises.append(np.diff(accuracy[start // 2 :]).var() / width)  # of a difference of two means of `width` epochs
    on_training = [history[-1].get("train_accuracy") or 0.0 for history in histories]
    mean, noise = float(np.mean(rises)), float(np.mean(noises) / len(noises)) ** 0.5
    return mean if mean > max(LEAST, 2 * noise) and np.mean(on_training) < FITTED else None
