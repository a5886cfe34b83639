"""What labels are worth: read off curves that are known, and said in one sentence."""

import numpy as np
import pytest
from small_comparison import arm_of, comparison_of

from comparison.analysis.results import analyse
from comparison.analysis.worth import as_text, drawn_accuracies, interpolated, matching_and_meeting
from comparison.reporting.table import notes

LABELS = np.array([5.0, 10, 20, 40, 80])


def rungs(accuracies, *, seeds=3, images=4000, spread=0.0):
    """Arms bool (K, N), right about the easiest images, in each seed the same ones but for `spread`."""
    generator, ease = np.random.default_rng(0), np.linspace(0, 1, images, endpoint=False)
    return [
        np.stack([ease < accuracy + spread * generator.standard_normal() for _ in range(seeds)])
        for accuracy in accuracies
    ]


def test_on_straight_ladders_labels_are_worth_what_the_lines_say():
    """Accuracy rises by 0.1 each time the labels double; the second arm is one and a half doublings ahead."""
    first, second = rungs(0.3 + 0.1 * np.arange(5)), rungs(0.45 + 0.1 * np.arange(5))
    found, meeting = matching_and_meeting(LABELS, first, second)
    for rung, (low, middle, high) in zip(LABELS[:3], found, strict=False):
        assert middle == pytest.approx(rung * 2**1.5, rel=0.02)
        assert low <= middle <= high < 1.1 * middle
    assert np.isinf(found[-1]).all()
    assert np.isinf(meeting).all()
    assert (matching_and_meeting(LABELS, second, first)[1] == 0).all()


def test_curves_that_cross_meet_where_they_cross():
    first, second = rungs(0.2 + 0.15 * np.arange(5)), rungs(0.45 + 0.05 * np.arange(5))
    assert matching_and_meeting(LABELS, first, second)[1][1] == pytest.approx(5 * 2**2.5, rel=0.03)


def test_a_parabola_is_read_between_its_rungs_as_it_is():
    x = np.log(LABELS)
    draws = np.tile(0.9 - 0.03 * (x[-1] - x) ** 2, (4000, 1))
    at = np.array([7.0, 30.0])
    drawn = interpolated(LABELS, draws, at, np.random.default_rng(0))
    assert drawn.mean(axis=0) == pytest.approx(0.9 - 0.03 * (x[-1] - np.log(at)) ** 2, abs=2e-4)
    assert interpolated(LABELS, draws, LABELS, np.random.default_rng(0)) == pytest.approx(draws)


def test_seeds_that_spread_widen_the_interval():
    ladder = 0.3 + 0.1 * np.arange(5)
    calm, wild = (
        matching_and_meeting(LABELS, rungs(ladder, spread=spread), rungs(ladder + 0.15, spread=spread))[0][1]
        for spread in (0, 0.03)
    )
    assert wild[2] - wild[0] > 1.5 * (calm[2] - calm[0])
    draws = drawn_accuracies(rungs(ladder), np.random.default_rng(0))
    assert draws.mean(axis=0) == pytest.approx(ladder, abs=1e-3)


def test_beyond_the_ladder_nothing_is_said():
    assert as_text((np.inf, np.inf, np.inf), LABELS) == "more than 80"
    assert as_text((0.0, 6.2, np.inf), LABELS) == "5 or fewer to more than 80"
    assert as_text((0.0, 6.2, 9.0), LABELS) == "6 (5 or fewer to 9)"


def test_a_comparison_of_three_numbers_of_labels_says_what_they_are_worth(tmp_path):
    labels = [0, 1, 2] * 20
    conditions = [
        (
            count,
            tuple(
                arm_of(tmp_path / f"{count}{name}", name, rungs([accuracy], images=60)[0], labels)
                for name, accuracy in (("scratch", 0.3 + 0.2 * rung), ("pretrained", 0.5 + 0.2 * rung))
            ),
        )
        for rung, count in enumerate((5, 10, 20))
    ]
    several = comparison_of(*conditions)
    (line,) = [line for line in notes(several, analyse(several)) if "labels per class of" in line]
    assert line.startswith(
        "labels per class of pretrained, in those of scratch (90 % interval): 5 worth 10; 10 worth 20 ("
    )
    assert "; 20 worth more than 20; they do not meet up to 20 labels" in line
    two = comparison_of(*conditions[:2])
    assert not [line for line in notes(two, analyse(two)) if "labels per class of" in line]
