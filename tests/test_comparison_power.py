"""Power of a comparison: what is predicted is what simulated comparisons show."""

import numpy as np
import pytest
from scipy.stats import norm

from comparison.analysis.power import half_width, power_line, smallest_difference
from trainers.statistics import LEVEL, Spread, estimate


def runs(*shares, images=1000, seeds=10, seed=0):
    """Arms bool (K, N) that are right about such shares of the images, which differ in difficulty."""
    generator = np.random.default_rng(seed)
    difficulty = generator.random(images)
    return [difficulty + 0.1 * generator.standard_normal((seeds, images)) < share for share in shares]


def test_the_predicted_power_is_that_of_simulated_comparisons():
    told, parts = [], []
    for seed in range(300):
        first, second = runs(0.8, 0.83, images=300, seeds=5, seed=seed)
        found = estimate(second.astype(np.int8) - first.astype(np.int8))
        told.append(abs(found.centre) > found.half_width(LEVEL))
        parts.append((found.spread.images, found.spread.runs, found.spread.seeds))
    spread = Spread(*np.mean(parts, axis=0))

    def power(difference: float) -> float:
        return norm.sf((half_width(spread, 5, 300) - difference) / spread.error(5, 300))

    assert np.mean(told) == pytest.approx(power(0.03), abs=0.08)
    assert power(smallest_difference(spread, 5, 300)) == pytest.approx(0.8, abs=0.01)


def test_the_line_before_the_first_step_says_what_can_be_seen():
    few = power_line(20, 2, claims=20)
    assert few.startswith("20 test images and 2 seeds are too few to detect any difference 80 % of the time")
    line = power_line(360, 3)
    assert line.startswith("360 test images and 3 seeds detect a difference of ")
    assert smallest_difference(Spread(0.05, 0.05, 1e-4), 3, 10_000) < smallest_difference(
        Spread(0.05, 0.05, 1e-4), 3, 360
    )
