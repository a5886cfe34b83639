"""When an arm counts as still improving, on curves made up for it."""

import math

import numpy as np
import pytest

from comparison.analysis.improving import improvement_at_end

EPOCHS = 40


def history(curve, *, rate=lambda done: 0.5 * (1 + math.cos(math.pi * done)), fitted=0.9, noise=0.0, seed=0):
    """The rows of a run whose validation accuracy is `curve` of the share of its learning that is done."""
    rates = np.array([rate(epoch / EPOCHS) for epoch in range(1, EPOCHS + 1)])
    learnt = np.cumsum(rates) / rates.sum()
    accuracy = [curve(share) for share in learnt] + noise * np.random.default_rng(seed).standard_normal(EPOCHS)
    rows = [{"step": 0, "lr": None, "val_accuracy": 0.1, "train_accuracy": None}]
    return rows + [
        {"step": 5 * (epoch + 1), "lr": rates[epoch], "val_accuracy": accuracy[epoch], "train_accuracy": fitted}
        for epoch in range(EPOCHS)
    ]


def straight(share):
    return 0.1 + 0.5 * share


def flat(share):
    return min(0.8, 0.1 + 1.4 * share)


def test_a_curve_that_rises_to_its_end_is_named_with_its_rise_whatever_the_schedule():
    assert improvement_at_end([history(straight)]) == pytest.approx(0.5 * 0.2, abs=0.03)
    assert improvement_at_end([history(straight, rate=lambda done: 1.0)]) == pytest.approx(0.5 * 0.2, abs=0.03)


def test_a_curve_that_came_to_rest_is_not_named():
    assert improvement_at_end([history(flat)]) is None
    assert improvement_at_end([history(straight, fitted=0.99)]) is None  # nothing left to learn of its training images
    assert improvement_at_end([history(lambda share: 0.1 + 0.04 * share)]) is None  # less than a point


@pytest.mark.parametrize("seeds", [1, 3])
def test_noise_is_not_taken_for_a_rise(seeds):
    named = [
        improvement_at_end([history(flat, noise=0.02, seed=seeds * trial + k) for k in range(seeds)]) is not None
        for trial in range(200)
    ]
    assert np.mean(named) <= 0.05
    assert improvement_at_end([history(straight, noise=0.02, seed=k) for k in range(seeds)]) is not None


def test_of_few_epochs_or_old_files_nothing_is_said():
    assert improvement_at_end([history(straight)[:8]]) is None
    rows = history(straight)
    del rows[3]["lr"]
    assert improvement_at_end([rows]) is None
