"""The headline of a report: who wins, or which model to use."""

import re

import numpy as np
import pytest
from small_comparison import arm_of, comparison_of

from comparison.analysis.advice import headline
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
        ({"a": right(20), "b": right(57)}, r"b wins: 95.0 % against 33.3 % \(\+61.7 points, 95 % interval .*\)\."),
        ({"b": right(57), "a": right(20)}, r"b wins: 95.0 % against 33.3 % \(\+61.7 points, 95 % interval .*\)\."),
        (
            {"a": right(54), "b": right(55, shift=30)},
            r"No clear winner: b 91.7 %, a 90.0 % \(\+1.7 points, 95 % interval -.* to .*\)\.",
        ),
        ({"a": right(55), "b": right(55)}, "No difference: a and b are right on the same images."),
        (
            {"a": right(10)[:1], "b": right(57)[:1]},
            r"b wins, in one run each: 95.0 % against 16.7 % \(\+78.3 points, 95 % interval .*\)\.",
        ),
    ],
)
def test_of_two_arms_the_winner_is_named_with_both_accuracies_and_the_difference(tmp_path, arms, sentence):
    made = comparison(tmp_path, **arms)
    (result,) = analyse(made)
    assert re.fullmatch(sentence, headline(made, result))
    assert " with all labels" in headline(made, result, where=" with all labels")
    assert len(headline(made, result).split()) <= 20


@pytest.mark.parametrize(
    ("arms", "sentence"),
    [
        (
            {"a": right(10), "b": right(57), "c": right(30)},
            "Use b (95.0 % of 60 test images right): 45.0 points more than the next, c.",
        ),
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
def test_of_more_arms_the_most_accurate_is_to_be_used_with_those_that_may_be_as_good(tmp_path, arms, sentence):
    made = comparison(tmp_path, **arms)
    (result,) = analyse(made)
    assert headline(made, result) == sentence


def test_the_terminal_and_the_document_begin_with_the_headline(tmp_path):
    made = comparison(tmp_path, a=right(20), b=right(57))
    results = analyse(made)
    said = headline(made, results[0])
    assert terminal_table(made, results, width=120).splitlines()[:2] == [said, ""]
    assert table_md(made, results).splitlines()[2].strip() == f"**{said}**"
