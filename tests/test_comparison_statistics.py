import math

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.metrics import confusion_matrix

from inference.evaluation_report import reliability
from trainers.engine.intervals import wilson
from trainers.engine.metrics import expected_calibration_error, macro_f1
from trainers.statistics import (
    calibration_bins,
    holm,
    is_claim,
    paired_difference,
    sign_flip,
    verdict,
)


@pytest.mark.parametrize(("correct", "n"), [(0, 1), (1, 1), (0, 360), (153, 153), (147, 153), (9012, 10000)])
def test_wilson_equals_the_formula_of_the_textbook(correct, n):
    z, share = norm.isf(0.025), correct / n
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    assert wilson(correct, n) == pytest.approx((max(0, middle - half), min(1, middle + half)), abs=1e-9)


@pytest.mark.parametrize(("only_a", "only_b"), [(0, 0), (1, 0), (5, 0), (7, 12), (12, 7), (40, 61), (3, 3)])
def test_the_sign_flip_test_of_one_seed_is_mcnemars_the_sum_of_binomials(only_a, only_b):
    a = np.array([True] * only_a + [False] * only_b + [True, False] * 20)
    b = np.array([False] * only_a + [True] * only_b + [True, False] * 20)
    n = only_a + only_b
    tail = sum(math.comb(n, k) for k in range(min(only_a, only_b) + 1)) / 2**n
    expected = 1.0 if n == 0 else min(1.0, 2 * tail)
    assert sign_flip((a.astype(np.int8) - b.astype(np.int8))[None]) == pytest.approx(expected, abs=1e-9)


def test_the_sign_flip_test_of_several_seeds_equals_all_flips():
    generator = np.random.default_rng(0)
    differences = generator.integers(-1, 2, (3, 9)).astype(np.int8)
    differences[:, 0] = 1
    sums = differences.sum(axis=0)
    signs = 1 - 2 * ((np.arange(2**9)[:, None] >> np.arange(9)) & 1)
    expected = (np.abs(signs @ sums) >= abs(sums.sum())).mean()
    assert sign_flip(differences) == pytest.approx(expected, abs=1e-9)


def test_ece_equals_a_loop_over_bins_and_the_metric_of_the_training():
    logits = torch.randn(500, 7, generator=torch.Generator().manual_seed(0)) * 2
    labels = torch.randint(0, 7, (500,), generator=torch.Generator().manual_seed(1))
    probabilities = logits.double().softmax(1).numpy()
    bins = calibration_bins(probabilities, labels.numpy())
    error = expected_calibration_error(bins)
    confidence, right = probabilities.max(1), probabilities.argmax(1) == labels.numpy()
    expected = 0.0
    for index in range(15):
        inside = (confidence > index / 15) & (confidence <= (index + 1) / 15)
        if inside.any():
            expected += inside.mean() * abs(confidence[inside].mean() - right[inside].mean())
    assert error == pytest.approx(expected, abs=1e-12)
    in_training = expected_calibration_error(reliability(logits, labels))
    assert error == pytest.approx(in_training, abs=1e-6)  # its softmax is float32
    assert bins[0].sum() == 500


def test_macro_f1_counts_the_classes_that_occur():
    labels, predicted = np.array([0, 0, 1, 1, 3]), np.array([0, 1, 1, 1, 2])
    assert macro_f1(torch.from_numpy(confusion_matrix(labels, predicted))) == pytest.approx(
        (2 / 3 + 4 / 5 + 0 + 0) / 4, abs=1e-12
    )


def test_holm_multiplies_the_smallest_by_all_and_never_changes_the_order():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([0.2]) == [0.2]


@pytest.mark.parametrize("seeds", [1, 2, 5])
def test_identical_arms_have_p_one_and_no_difference(seeds):
    correct = np.random.default_rng(0).random((seeds, 200)) < 0.8
    difference = paired_difference(correct, correct)
    assert (difference.mean, difference.p, difference.identical) == (0.0, 1.0, True)
    assert difference.low < 0 < difference.high
    sentence = verdict(difference, ("a", "b"), (0.8, 0.8))
    counted = f"{seeds} seed{'s' * (seeds > 1)}"
    assert sentence == f"No difference: a and b are right about the same of 200 test images ({counted})."


def test_swapping_the_arms_mirrors_the_interval():
    generator = np.random.default_rng(0)
    a, b = generator.random((3, 400)) < 0.9, generator.random((3, 400)) < 0.8
    one, other = paired_difference(a, b), paired_difference(b, a)
    assert other.mean == pytest.approx(-one.mean)
    assert (other.low, other.high) == pytest.approx((-one.high, -one.low), abs=2e-3)  # two bootstraps
    assert other.p == pytest.approx(one.p, rel=0.2)


def test_a_bootstrap_of_the_images_alone_has_the_known_standard_error():
    generator = np.random.default_rng(1)
    a, b = generator.random((1, 5000)) < 0.9, generator.random((1, 5000)) < 0.8
    differences = a.astype(float) - b
    difference = paired_difference(a, b)
    half = 1.96 * differences.std() / math.sqrt(5000)
    assert difference.high - difference.low == pytest.approx(2 * half, rel=0.03)


def test_seeds_that_spread_widen_the_interval():
    generator = np.random.default_rng(2)
    a, b = generator.random((3, 1000)) < 0.9, generator.random((3, 1000)) < 0.85
    spread = a.copy()
    spread[0], spread[1, :120] = True, False
    calm, wild = paired_difference(a, b), paired_difference(spread, b)
    assert wild.high - wild.low > 1.5 * (calm.high - calm.low)


def test_a_handful_of_unanimous_images_proves_nothing():
    difference = paired_difference(np.ones((1, 5), bool), np.zeros((1, 5), bool))
    assert difference.p == pytest.approx(0.0625)  # McNemar's
    assert difference.low <= 0
    assert not is_claim(difference)


def test_two_equal_arms_are_no_claim_on_ten_thousand_images_and_five_seeds_either():
    generator = np.random.default_rng(0)
    a, b = generator.random((5, 10_000)) < 0.9, generator.random((5, 10_000)) < 0.9
    difference = paired_difference(a, b)
    assert difference.low < 0 < difference.high
    assert difference.high - difference.low < 0.02
    assert not is_claim(difference)


def test_the_order_of_the_images_changes_nothing():
    generator = np.random.default_rng(0)
    a, b = generator.random((5, 10_000)) < 0.9, generator.random((5, 10_000)) < 0.9
    order = generator.permutation(10_000)
    assert paired_difference(a, b) == paired_difference(a[:, order], b[:, order])


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


CENTRES = {0.85: 3.1288, 0.90: 3.8793}  # logits whose images are right that often on average


def simulated_pair(generator, accuracies, *, seeds, images, noise):
    """Two arms on the same images, bool (K, N) each; `noise` between seeds, in the logit of being right.

    Images differ in difficulty; each arm finds some harder than the other does; each run errs in its own way, by which
    the accuracies of an arm's runs on 1,000 images have a standard deviation of 0.8 points even without `noise`. A
    noise of 0.1 adds 0.6 points of its own.
    """
    difficulty = 2 * generator.normal(size=images)
    arms = []
    for accuracy in accuracies:
        logits = CENTRES[accuracy] + difficulty + generator.normal(size=images)
        logits = logits + generator.normal(size=(seeds, images)) + noise * generator.normal(size=(seeds, 1))
        arms.append(generator.random((seeds, images)) < 1 / (1 + np.exp(-logits)))
    return arms


def share_of_claims(accuracies, *, repeats, **options):
    generator = np.random.default_rng(0)
    differences = [paired_difference(*simulated_pair(generator, accuracies, **options)) for _ in range(repeats)]
    return np.mean([is_claim(difference) for difference in differences])


@pytest.mark.parametrize(("seeds", "noise"), [(1, 0), (3, 0.1), (5, 0.1)])
def test_equal_arms_are_rarely_told_apart(seeds, noise):
    assert share_of_claims((0.85, 0.85), repeats=100, seeds=seeds, images=300, noise=noise) <= 0.1


def test_a_true_difference_of_five_points_is_difference():
    assert share_of_claims((0.90, 0.85), repeats=40, seeds=3, images=1000, noise=0.05) >= 0.8


@pytest.mark.slow
@pytest.mark.parametrize("images", [150, 1000])
@pytest.mark.parametrize(
    ("seeds", "noise"), [(1, 0), (2, 0.1), (2, 0.5), (3, 0), (3, 0.1), (3, 0.5), (5, 0.1), (5, 0.5)]
)
def test_of_10000_pairs_of_equal_arms_5_percent_are_told_apart(seeds, noise, images):
    assert share_of_claims((0.85, 0.85), repeats=10_000, seeds=seeds, images=images, noise=noise) <= 0.06


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "noise"), [(1, 0), (3, 0), (3, 0.05), (5, 0.1)])
def test_of_500_true_differences_of_five_points_at_least_80_percent_are_difference(seeds, noise):
    assert share_of_claims((0.90, 0.85), repeats=500, seeds=seeds, images=1000, noise=noise) >= 0.8
