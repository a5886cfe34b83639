"""Sentences of a comparison: the winner, what is not known, and how sure it is."""

import numpy as np

from comparison.verdict import verdict
from trainers.statistics import is_claim, paired_difference


def test_the_sentence_of_a_difference_names_the_winner_whichever_comes_first():
    generator = np.random.default_rng(0)
    a, b = generator.random((3, 360)) < 0.97, generator.random((3, 360)) < 0.8
    for pair, names in (((a, b), ("good", "bad")), ((b, a), ("bad", "good"))):
        difference = paired_difference(*pair)
        sentence = verdict(difference, names, (pair[0].mean(), pair[1].mean()))
        low, high = sorted(abs(value) * 100 for value in (difference.low, difference.high))
        points = abs(difference.mean) * 100
        assert sentence == (
            f"good beats bad by {points:.1f} points (95 % interval {low:.1f} to {high:.1f}, 3 seeds, 360 test images)."
        )


def test_the_sentence_of_one_seed_speaks_of_runs_and_says_what_it_does_not_know():
    a, b = np.ones((1, 100), bool), np.arange(100)[None] < 60
    sentence = verdict(paired_difference(a, b), ("a", "b"), (1.0, 0.6), scored="validation")
    assert sentence.startswith("This run of a beats this run of b by 40.0 points (")
    assert "100 validation images" in sentence
    assert sentence.endswith("one seed says nothing about training noise.")


def test_the_sentence_of_too_few_images_says_that_they_cannot_separate():
    correct_a = np.arange(153)[None] >= 6
    correct_b = np.arange(153)[None] < 150
    difference = paired_difference(correct_b, correct_a)
    sentence = verdict(difference, ("b", "a"), (150 / 153, 147 / 153))
    assert sentence.startswith("153 test images and 1 seed cannot tell a (96.1 %) from b (98.0 %): ")
    assert "difference 2.0 points, 95 % interval -" in sentence


def test_a_difference_that_holms_correction_takes_away_is_not_claimed():
    generator = np.random.default_rng(3)
    a, b = generator.random((3, 300)) < 0.95, generator.random((3, 300)) < 0.8
    difference = paired_difference(a, b)
    assert is_claim(difference)
    assert not is_claim(difference, 0.08)
    sentence = verdict(difference, ("a", "b"), (a.mean(), b.mean()), adjusted_p=0.08, claims=3)
    assert "cannot tell b" in sentence
    assert "once the 3 comparisons of this report are judged together (Holm's p = 0.08)" in sentence
