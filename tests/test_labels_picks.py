"""The choice of pictures to label next: typical of many, then those of which a model is least sure."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from inference.labels.features import side_by_side
from inference.labels.picks import SWITCH, free_rows, probabilities_of, typical, uncertain


def unit(values):
    return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)


def clouds(sizes, *, dimensions=12, spread=0.05, seed=0):
    """Features of length 1 in clouds of these sizes, and which cloud each is of."""
    of = np.repeat(np.arange(len(sizes)), sizes)
    noise = spread * np.random.default_rng(seed).normal(size=(len(of), dimensions))
    return unit(np.eye(dimensions)[of] + noise), of


NONE = np.array([], np.int64)


def test_each_cloud_gives_one_picture():
    features, of = clouds((40, 10, 25, 5))
    chosen = typical(features, np.arange(80), NONE, 4)
    assert [int(of[row]) for row, _ in chosen] == [0, 2, 1, 3]
    for row, score in chosen:
        inside = np.flatnonzero(of == of[row])
        distances = np.linalg.norm(features[inside] - features[inside].mean(axis=0), axis=1)
        assert inside[distances.argmin()] == row
        assert score == pytest.approx(1 / (1 + distances.min()), abs=1e-5)
    chosen = typical(features, np.setdiff1d(np.arange(80), [0, 50]), np.array([0, 50]), 2)
    assert sorted(int(of[row]) for row, _ in chosen) == [1, 3]  # clouds that have a label come last


def test_uncertain_pictures_lie_apart():
    features, of = clouds((100, 100, 100))
    probabilities = np.tile([0.98, 0.01, 0.01], (300, 1))
    doubtful = np.concatenate([np.arange(0, 20), np.arange(100, 120)])
    probabilities[doubtful] = [0.5, 0.1, 0.4]
    chosen = uncertain(features, np.arange(300), probabilities, 4)
    rows = [row for row, _ in chosen]
    assert set(rows) <= set(doubtful.tolist())
    assert set(of[rows].tolist()) == {0, 1}
    assert [score for _, score in chosen] == pytest.approx([0.9] * 4)


@pytest.mark.parametrize("certain", [False, True])
@pytest.mark.parametrize("count", [1, 7, 60, 100])
def test_as_many_as_wanted_are_chosen_each_once(count, certain):
    features, _ = clouds((30, 30), spread=0.5)
    features[10:20] = features[10]  # the same point many times over
    probabilities = np.random.default_rng(0).dirichlet([1, 1, 1], 60) if not certain else np.eye(3)[np.arange(60) % 3]
    for choose, given in ((typical, NONE), (uncertain, probabilities)):
        chosen = choose(features, np.arange(60), given, count)
        assert len({row for row, _ in chosen}) == len(chosen) == min(count, 60)
        assert chosen == choose(features, np.arange(60), given, count)  # always the same


def test_probabilities_are_those_of_scikit_learn():
    features, of = clouds((20, 20, 20), spread=0.3)
    rows = np.arange(0, 60, 3)
    oracle = LogisticRegression(C=30.0, max_iter=300).fit(features[rows], of[rows]).predict_proba(features)
    assert probabilities_of(features, rows, of[rows]) == pytest.approx(oracle, abs=1e-6)


@pytest.mark.parametrize(
    ("labels", "few"),
    [([], True), ([0] * 50, True), ([0] * (SWITCH - 1) + [1] * SWITCH, True), ([0] * SWITCH + [1] * SWITCH, False)],
)
def test_a_model_is_asked_from_some_labels_on(labels, few):
    features, rows = clouds((60, 60))[0], np.arange(len(labels))
    assert (probabilities_of(features, rows, np.array(labels, int)) is None) == few


def test_of_copies_without_a_label_one_is_free():
    groups = np.array([0, 0, 1, 2, 2, 2, 3, 4])
    usable = np.ones(8, bool)
    usable[[3, 7]] = False
    assert free_rows(groups, usable, np.array([0])).tolist() == [2, 4, 6]
    assert free_rows(groups, usable, NONE).tolist() == [0, 2, 4, 6]


def test_features_of_networks_weigh_the_same():
    generator = np.random.default_rng(0)
    parts = [generator.normal(size=(50, 8)), 1000 * generator.normal(size=(50, 200))]
    both = side_by_side([torch.from_numpy(part) for part in parts], 8)
    assert both.shape == (50, 16)
    assert both[:, :8].std() == pytest.approx(both[:, 8:].std(), rel=1e-4)
