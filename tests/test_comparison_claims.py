"""All verdicts of a report are judged together, over its numbers of labels as over its arms."""

import re

import numpy as np
import pytest
from small_comparison import arm_in_memory, arm_of, comparison_of

from comparison.results import analyse, judge
from comparison.runs import Condition
from comparison.verdict import notes, pair_sentence, power_line
from trainers.statistics import LEVEL, holm, paired_difference

CONDITIONS, LABELS = 6, [row % 3 for row in range(60)]


def equal_arms(generator, *, seeds=3, images=300, of_run=0.2):
    """Two arms bool (K, N) of one accuracy: images differ in difficulty, each arm finds other ones hard, and the
    runs of one arm mostly agree, as those of a fine-tuned model do."""
    difficulty = 1.5 + 2 * generator.standard_normal(images)
    own = generator.standard_normal((2, 1, images)) + of_run * generator.standard_normal((2, seeds, images))
    return difficulty + own > 0


def names_a_winner(generator):
    conditions = [
        Condition(labels, tuple(map(arm_in_memory, "ab", equal_arms(generator)))) for labels in range(CONDITIONS)
    ]
    return any(pair.mark in {"better", "worse"} for (pair,) in judge(conditions))


@pytest.mark.slow
def test_of_500_reports_on_six_numbers_of_labels_with_equal_arms_at_most_5_percent_name_a_winner():
    generator = np.random.default_rng(0)
    assert np.mean([names_a_winner(generator) for _ in range(500)]) <= LEVEL  # 12.8 % with each pair judged alone


def borderline(conditions=CONDITIONS):
    """Arms of which one pair alone would be told apart, and the rest are equal."""
    right = np.ones((3, 60), bool)
    worse = right.copy()
    worse[:, :7] = False
    assert LEVEL / conditions < paired_difference(right, worse).p <= LEVEL
    return [(right, worse)] + [(right, right)] * (conditions - 1)


def test_a_winner_at_one_of_six_numbers_of_labels_has_to_stand_beside_the_other_five(tmp_path):
    conditions = [
        (place, tuple(arm_of(tmp_path / str(place), *named, LABELS) for named in zip("ab", arms, strict=True)))
        for place, arms in enumerate(borderline(), 1)
    ]
    report = comparison_of(*conditions)
    results = analyse(report)
    pairs = [pair for result in results for pair in result.pairs]
    assert [pair.adjusted_p for pair in pairs] == holm([pair.difference.p for pair in pairs])
    assert pairs[0].mark == "unclear"
    alone = judge([report.conditions[0]])[0][0]
    assert (alone.mark, alone.adjusted_p) == ("worse", None)
    for text in (pair_sentence(pairs[0]), " ".join(notes(report, results))):
        assert "the 6 comparisons" in text
        assert "Holm" in text
    one = comparison_of((None, report.conditions[0].arms))
    assert "together" not in " ".join(notes(one, analyse(one)))


def test_more_comparisons_see_less_each():
    points = [float(re.search(r"of ([\d.]+) points", power_line(360, 3, claims=claims))[1]) for claims in (1, 6)]
    assert points[0] < points[1]
