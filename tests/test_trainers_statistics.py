"""Statistics of accuracies: Wilson's interval, groups of images, the paired difference and Holm's correction."""

import math

import numpy as np
import pytest
from scipy.stats import binomtest
from simulated_groups import ACCURACIES, KINDS, LAWS, SIZES, coverage, groups_of, right_images

from trainers.statistics import Design, design_of, holm, is_claim, paired_difference, sign_flip, wilson


@pytest.mark.parametrize(("correct", "n"), [(0, 1), (1, 1), (0, 360), (153, 153), (147, 153), (9012, 10000)])
def test_wilsons_interval_equals_scipys(correct, n):
    expected = binomtest(correct, n).proportion_ci(method="wilson")
    assert wilson(correct / n, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


def in_groups(kind="eights", *, images=200, accuracy=0.8, correlation=0.5, seed=0):
    generator = np.random.default_rng(seed)
    groups = groups_of(kind, images, generator)
    return groups, right_images(groups, accuracy, correlation=correlation, law="copy", generator=generator)


def test_images_that_stand_alone_have_wilsons_interval():
    right = np.random.default_rng(0).random(150) < 0.7
    for clusters in (None, np.arange(150), np.random.default_rng(1).permutation(150) + 7):
        design = design_of(right, clusters)
        assert (design, design.effective, str(design)) == (Design(150, 150), 150, "")
        assert design.interval(right.mean()) == wilson(right.mean(), 150)


@pytest.mark.parametrize("kind", KINDS)
def test_variance_is_the_sum_over_pairs_of_a_group(kind):
    groups, right = in_groups(kind)
    residuals = right - right.mean()
    pairs = sum(a * b for i, a in enumerate(residuals) for j, b in enumerate(residuals) if groups[i] == groups[j])
    design = design_of(right, groups, prior=0)
    assert design.effect == pytest.approx(min(max(1, pairs / (residuals**2).sum()), design.most))
    assert design.most == pytest.approx(sum(a == b for a in groups for b in groups) / 200)
    assert design_of([right, right], groups).effect == pytest.approx(design_of(right, groups).effect)


def test_exact_copies_are_worth_one_image_each():
    right = np.repeat(np.random.default_rng(0).random(60) < 0.8, 5)
    design = design_of(right, np.repeat(np.arange(60), 5))
    assert (design.effect, design.effective, str(design)) == (
        pytest.approx(5),
        pytest.approx(60),
        "in 60 groups, effectively about 60",
    )


@pytest.mark.parametrize("right", [np.ones(80, bool), np.zeros(80, bool)])
def test_equal_images_make_groups_wholly_alike(right):
    design = design_of(right, np.repeat(np.arange(10), 8))
    assert design.effect == pytest.approx(design.most) == 8
    assert design.interval(right.mean()) == pytest.approx(wilson(right.mean(), 10))
    assert design_of(right, np.zeros(80, int)).interval(right.mean()) == wilson(right.mean(), 1)


def test_one_pair_changes_next_to_nothing():
    right, groups = np.random.default_rng(0).random(1000) < 0.8, np.arange(1000)
    groups[1] = 0
    alone, pair = (design_of(right, clusters).interval(right.mean()) for clusters in (None, groups))
    assert pair == pytest.approx(alone, abs=2e-4)


def test_numbers_and_order_of_groups_do_not_matter():
    groups, right = in_groups("unequal")
    order = np.random.default_rng(0).permutation(200)
    assert design_of(right[order], 1000 - 3 * groups[order]).effect == pytest.approx(design_of(right, groups).effect)


def test_interval_of_groups_holds_the_accuracy():
    by_groups, by_images = coverage("eights", "beta", correlation=0.5, accuracy=0.7, images=200, sets=400)
    assert 0.93 <= by_groups <= 0.98
    assert by_images < 0.8


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("kind", KINDS)
def test_95_percent_of_2000_sets_are_covered(kind, law):
    cells = np.array([
        coverage(kind, law, correlation=0.5, accuracy=accuracy, images=images, sets=2000)
        for accuracy in ACCURACIES for images in SIZES
    ])  # fmt: skip
    by_groups, by_images = cells.mean(axis=0)
    assert 0.93 <= by_groups <= (0.97 if kind != "one" else 0.985)
    assert cells[:, 0].min() > 0.89
    if kind in ("eights", "unequal"):
        assert by_images < 0.7
        assert cells[:, 1].max() < 0.8


@pytest.mark.parametrize(("only_a", "only_b"), [(0, 0), (1, 0), (5, 0), (7, 12), (12, 7), (40, 61), (3, 3)])
def test_sign_flip_of_one_seed_is_mcnemars(only_a, only_b):
    a = np.array([True] * only_a + [False] * only_b + [True, False] * 20)
    b = np.array([False] * only_a + [True] * only_b + [True, False] * 20)
    n = only_a + only_b
    tail = sum(math.comb(n, k) for k in range(min(only_a, only_b) + 1)) / 2**n
    expected = 1.0 if n == 0 else min(1.0, 2 * tail)
    assert sign_flip((a.astype(np.int8) - b.astype(np.int8))[None]) == pytest.approx(expected, abs=1e-9)


def test_holm_keeps_the_order():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([0.2]) == [0.2]


@pytest.mark.parametrize("seeds", [1, 2, 5])
def test_identical_arms_have_p_one_and_no_difference(seeds):
    correct = np.random.default_rng(0).random((seeds, 200)) < 0.8
    difference = paired_difference(correct, correct)
    assert (difference.mean, difference.p, difference.identical) == (0.0, 1.0, True)
    assert difference.low < 0 < difference.high


def test_swapping_the_arms_mirrors_the_interval():
    generator = np.random.default_rng(0)
    a, b = generator.random((3, 400)) < 0.9, generator.random((3, 400)) < 0.8
    one, other = paired_difference(a, b), paired_difference(b, a)
    assert other.mean == pytest.approx(-one.mean)
    assert (other.low, other.high) == pytest.approx((-one.high, -one.low), abs=2e-3)  # two bootstraps
    assert other.p == pytest.approx(one.p, rel=0.2)


def test_spread_of_seeds_widens_the_interval():
    generator = np.random.default_rng(1)
    a, b = generator.random((1, 5000)) < 0.9, generator.random((1, 5000)) < 0.8
    difference = paired_difference(a, b)
    half = 1.96 * (a.astype(float) - b).std() / math.sqrt(5000)
    assert difference.high - difference.low == pytest.approx(2 * half, rel=0.03)
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


def test_equal_arms_are_no_claim_in_any_order():
    generator = np.random.default_rng(0)
    a, b = generator.random((5, 10_000)) < 0.9, generator.random((5, 10_000)) < 0.9
    difference, order = paired_difference(a, b), generator.permutation(10_000)
    assert difference.low < 0 < difference.high < difference.low + 0.02
    assert not is_claim(difference)
    assert paired_difference(a[:, order], b[:, order]) == difference
