"""The first sentence of a report: which model to use."""

import numpy as np
import pytest
from small_comparison import arm_of, comparison_of

from comparison.analysis.advice import which_to_use
from comparison.analysis.results import analyse
from comparison.reporting.table import table_md, terminal_table

LABELS = [row % 3 for row in range(60)]


def right(count, *, shift=0):
    """Right about so many of 60 images at each of three seeds."""
    return np.array([(np.arange(60) + shift + seed) % 60 < count for seed in range(3)])


def comparison(tmp_path, **arms):
    made = tuple(arm_of(tmp_path / name, name, correct, LABELS) for name, correct in arms.items())
    return comparison_of((None, made))


@pytest.mark.parametrize(
    ("arms", "sentence"),
    [
        ({"a": right(20), "b": right(57)}, "Use b (95.0 % of 60 test images right): 61.7 points more than a."),
        ({"b": right(57), "a": right(20)}, "Use b (95.0 % of 60 test images right): 61.7 points more than a."),
        (
            {"a": right(10), "b": right(57), "c": right(30)},
            "Use b (95.0 % of 60 test images right): 45.0 points more than the next, c.",
        ),
        (
            {"a": right(54), "b": right(55, shift=30)},
            "Use b (91.7 % of 60 test images right), which may be no better than a (90.0 %).",
        ),
        ({"a": right(55), "b": right(55)}, "Use a (91.7 % of 60 test images right) or b (91.7 %), which is as good."),
        (
            {"a": right(10), "b": right(54), "c": right(55, shift=30), "d": right(53, shift=20)},
            "Use c (91.7 % of 60 test images right), which may be no better than b (90.0 %) or d (88.3 %).",
        ),
        (
            {"a": right(55), "b": right(55), "c": right(54, shift=30)},
            "Use a (91.7 % of 60 test images right) or b (91.7 %), which is as good, and may be no better than "
            "c (90.0 %).",
        ),
    ],
)
def test_the_most_accurate_arm_is_to_be_used_with_those_that_may_be_as_good_beside_it(tmp_path, arms, sentence):
    (result,) = analyse(comparison(tmp_path, **arms))
    assert which_to_use(result, scored="test") == sentence


def test_the_terminal_and_the_document_begin_with_what_to_use(tmp_path):
    made = comparison(tmp_path, a=right(20), b=right(57))
    results = analyse(made)
    use = "Use b (95.0 % of 60 test images right): 61.7 points more than a."
    assert terminal_table(made, results).splitlines()[:2] == [use, ""]
    assert table_md(made, results).splitlines()[2].strip() == f"**{use}**"
