"""The interval of an accuracy: Wilson's of independent images, and as wide as it must be where they come in groups."""

import numpy as np
import pytest
from scipy.stats import binomtest
from simulated_groups import ACCURACIES, KINDS, LAWS, SIZES, coverage, groups_of, right_images

from trainers.engine.intervals import Design, design_of, score_interval, summed, wilson


def in_groups(kind="eights", *, images=200, accuracy=0.8, correlation=0.5, seed=0):
    generator = np.random.default_rng(seed)
    groups = groups_of(kind, images, generator)
    return groups, right_images(groups, accuracy, correlation=correlation, law="copy", generator=generator)


@pytest.mark.parametrize("accuracy", [0.0, 0.7, 0.98, 1.0])
def test_images_that_stand_alone_have_wilsons_interval_to_the_last_bit(accuracy):
    right = np.random.default_rng(0).random(150) < accuracy
    expected = binomtest(int(right.sum()), 150).proportion_ci(method="wilson")
    for clusters in (None, np.arange(150), np.random.default_rng(1).permutation(150) + 7):
        design = design_of(right, clusters)
        assert (design, design.worth, str(design)) == (Design(150, 150), 150, "")
        assert wilson(int(right.sum()), 150, design) == (expected.low, expected.high)


@pytest.mark.parametrize("kind", KINDS)
def test_the_variance_is_the_sum_over_all_pairs_of_images_of_one_group(kind):
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
    assert (design.effect, design.worth, str(design)) == (
        pytest.approx(5),
        pytest.approx(60),
        "in 60 groups, worth about 60",
    )


@pytest.mark.parametrize("right", [np.ones(80, bool), np.zeros(80, bool)])
def test_where_no_image_differs_from_another_groups_count_as_wholly_alike(right):
    design = design_of(right, np.repeat(np.arange(10), 8))
    assert design.effect == pytest.approx(design.most) == 8
    assert design.interval(right.mean()) == pytest.approx(score_interval(right.mean(), 10))


def test_one_group_of_all_images_is_worth_one_image():
    groups = np.zeros(40, int)
    assert design_of(np.arange(40) < 30, groups).interval(0.75) == score_interval(0.75, 1)


def test_a_pair_among_many_lone_images_changes_next_to_nothing():
    right, groups = np.random.default_rng(0).random(1000) < 0.8, np.arange(1000)
    groups[1] = 0
    alone, pair = (wilson(int(right.sum()), 1000, design_of(right, clusters)) for clusters in (None, groups))
    assert pair == pytest.approx(alone, abs=2e-4)


def test_groups_are_the_same_however_they_are_numbered_and_ordered():
    groups, right = in_groups("unequal")
    order = np.random.default_rng(0).permutation(200)
    other = design_of(right[order], 1000 - 3 * groups[order])
    assert other.effect == pytest.approx(design_of(right, groups).effect)


def test_sums_over_groups_are_those_of_a_loop():
    groups = np.random.default_rng(0).integers(0, 7, 50)
    values = np.random.default_rng(1).random((3, 50))
    expected = [[row[groups == number].sum() for number in range(7)] for row in values]
    assert summed(values, groups) == pytest.approx(np.array(expected))


def test_the_interval_of_groups_holds_the_accuracy_and_that_of_images_does_not():
    by_groups, by_images = coverage("eights", "beta", correlation=0.5, accuracy=0.7, images=200, sets=400)
    assert 0.93 <= by_groups <= 0.98
    assert by_images < 0.8


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("kind", KINDS)
def test_of_2000_sets_of_each_accuracy_and_size_95_percent_are_covered(kind, law):
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
