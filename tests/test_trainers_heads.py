"""The linear head that is fitted at once: its fit, its cross-validation, and several heads as one."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.covariance import ledoit_wolf
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_info

from trainers.calibration import losses, sharpness
from trainers.heads import linear
from trainers.heads.fit import mixed_head
from trainers.heads.linear import (
    PENALTIES,
    Images,
    Linear,
    cross_validate,
    fit_head,
    folds_of,
    heads_of,
    sample,
    weights_of,
)

ALL, NETWORKS = slice(None), (slice(0, 10), slice(10, 20))


def clouds(n=60, width=20, classes=3, *, seed=0, distance=1.0):
    """Features (n, width) of classes that overlap, and labels."""
    random = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    return distance * random.normal(size=(classes, width))[labels] + random.normal(size=(n, width)), labels


def one_network(features, labels, *, units=None, classes=3):
    units = np.arange(len(labels)) if units is None else units
    return Images(features, labels, units, classes, [ALL], np.zeros(features.shape[1], int))


def two_networks(*, second):
    """The first network sees one half of what tells the classes apart, the second the other half or nothing."""
    features, labels = clouds(n=300, width=20, distance=0.6)
    other = features[:, 10:] if second else np.random.default_rng(1).normal(size=(300, 10))
    features = np.concatenate([features[:, :10], other], axis=1)
    return Images(features, labels, np.arange(300), 3, NETWORKS, np.arange(20) // 10)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("white", [True, False])
def test_a_head_is_scikit_learns_regression(classes, white):
    features, labels = clouds(n=150, classes=classes)
    features, labels = (each[np.flatnonzero((labels > 0) | (np.arange(150) < 60))] for each in (features, labels))
    images = one_network(features, labels, classes=classes)
    [head] = heads_of(images, ALL, [0.5 / len(labels)], white=white)
    scaled = (features - features.mean(axis=0)) / np.sqrt(features.var(axis=0).sum())
    within = scaled - np.stack([scaled[labels == label].mean(axis=0) for label in range(classes)])[labels]
    values, vectors = np.linalg.eigh(ledoit_wolf(within, assume_centered=True)[0])
    x = scaled @ vectors / np.sqrt(values if white else values.mean())
    model = LogisticRegression(C=2.0, class_weight="balanced", max_iter=500, tol=1e-6)
    assert softmax(head(features), axis=1) == pytest.approx(model.fit(x, labels).predict_proba(x), abs=1e-2)


@pytest.mark.parametrize("width", [20, 200])
def test_what_classes_share_hides_no_difference(width):
    features, labels = clouds(n=90, width=width, distance=0.5)
    common = np.random.default_rng(2).normal(size=(90, 1)) * np.random.default_rng(3).normal(size=(1, width))
    judged = cross_validate(one_network(features + 10 * common, labels))
    without = cross_validate(one_network(features, labels))
    assert judged.accuracy > without.accuracy - 0.1 > 0.4


def test_the_scale_of_a_level_does_not_matter():
    images = two_networks(second=True)
    [head] = heads_of(images, ALL, [1.0], white=True)
    other = images.features * np.repeat([1.0, 30.0], 10) + np.repeat([0.0, 100.0], 10)
    [same] = heads_of(replace(images, features=other), ALL, [1.0], white=True)
    assert same(other) == pytest.approx(head(images.features), abs=2e-2)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("penalty", [10.0, 0.01])
def test_a_class_without_images_is_possible(classes, penalty):
    features, labels = clouds(n=600, classes=classes)
    images = one_network(features[:60], labels[:60], classes=classes + 1)
    [head] = heads_of(images, ALL, [penalty], white=True)
    assert head.weight.shape == (classes + 1, 20)
    logits = head(features[60:])
    assert (logits.argmax(axis=1) == classes).mean() < 0.05
    assert (logits[:, classes] > logits[:, :classes].min(axis=1)).all()


@pytest.mark.parametrize("each", [1, 2, 3])
def test_few_images_give_a_head_but_no_choice(each):
    features, labels = clouds(n=3 * each, width=400)
    head, judged = fit_head(one_network(features, labels))
    assert (judged is None) == (each < 3)
    fresh, truth = clouds(n=300, width=400)
    assert losses(head(fresh), truth).mean() < 0.9 * np.log(3)


def test_images_that_are_all_the_same_have_a_head():
    labels = np.arange(30) % 3
    for features in (np.ones((30, 4)), np.eye(3)[labels]):
        head, judged = fit_head(one_network(features, labels))
        assert np.isfinite(head(features)).all()
        assert judged.accuracy == (1.0 if features.shape[1] == 3 else pytest.approx(1 / 3, abs=0.1))


def test_penalty_and_temperature_are_the_best():
    images = replace(two_networks(second=True), columns=NETWORKS[:1])
    (head, judged), own = fit_head(images), NETWORKS[0]
    least, summed = [], 0.0
    for white, (penalty, factor) in zip((True, False), judged.parts, strict=True):
        logits = {each: np.empty((300, 3)) for each in PENALTIES}
        for rows in folds_of(images.labels, images.units):
            others = images.take(np.setdiff1d(np.arange(300), rows))
            for each, found in zip(PENALTIES, heads_of(others, own, PENALTIES, white=white), strict=True):
                logits[each][rows] = found(images.features[rows, own])
        loss = {p: losses(sharpness(each, images.labels) * each, images.labels).mean() for p, each in logits.items()}
        assert penalty == min(loss, key=loss.__getitem__)
        least.append(loss[penalty])
        [found] = heads_of(images, own, [penalty], white=white)
        summed = summed + factor * found.weight
    assert judged.loss < min(least) + 1e-3
    assert head.weight[:, own] == pytest.approx(summed)
    assert not head.weight[:, NETWORKS[1]].any()


@pytest.mark.parametrize("second", [True, False])
def test_two_networks_are_no_worse_than_each(second):
    images = two_networks(second=second)
    alone = [cross_validate(replace(images, columns=[own])) for own in NETWORKS]
    head, both = fit_head(images)
    assert both.loss < min(each.loss for each in alone) - 0.05 * second + 0.01
    assert all(np.array_equal(each.logits, own.logits) for each, own in zip(both.alone, alone, strict=True))
    summed = 0.0
    for part, (penalty, factor) in enumerate(both.parts):
        own = NETWORKS[part // 2]
        [found] = heads_of(images, own, [penalty], white=part % 2 == 0)
        summed = summed + factor * found(images.features[:, own])
    assert head(images.features) == pytest.approx(summed, abs=1e-6)


def test_units_share_a_fold(monkeypatch):
    _, labels = clouds()
    units = np.arange(60) // 6 * 3 + labels
    folds = folds_of(labels, units)
    assert sorted(np.concatenate(folds)) == list(range(60))
    assert all(not set(units[rows]) & set(np.delete(units, rows)) for rows in folds)
    assert folds_of(np.arange(5), np.arange(5)) == []
    learnt = []

    def noting(others, *options, **kind):
        learnt.append(others.units)
        return heads_of(others, *options, **kind)

    monkeypatch.setattr(linear, "heads_of", noting)
    cross_validate(one_network(clouds()[0], labels, units=units))
    assert [set(each) for each in learnt] == [set(np.delete(units, rows)) for rows in folds] * 2


def test_heads_are_fitted_on_one_thread(monkeypatch):
    def threads():
        return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}

    during, before, whitening = [], threads(), linear.whitening
    monkeypatch.setattr(linear, "whitening", lambda *each, **kind: during.append(threads()) or whitening(*each, **kind))
    cross_validate(one_network(*clouds()))
    assert during
    assert all(each == {1} for each in during)
    assert threads() == before


@pytest.mark.parametrize("n", [40, 101, 150, 199, 200, 250])
def test_a_sample_is_as_large_as_it_may_be(n):
    labels = np.arange(n) % 3
    for units in (np.arange(n), np.arange(n) // 2):
        rows = sample(labels, units, 100)
        assert min(n, 100) - 3 <= len(rows) <= 100
        assert np.isin(units, units[rows]).sum() == len(rows)  # whole units
        assert np.ptp(np.bincount(labels[rows])) <= 4


def test_the_temperature_is_the_best_of_all():
    features, labels = clouds(n=3000)
    logits = 5 * features[:, :3]
    tried = np.exp(np.linspace(np.log(1e-3), np.log(10), 400))
    best = min(tried, key=lambda factor: losses(factor * logits, labels).mean())
    assert sharpness(logits, labels) == pytest.approx(best, rel=5e-2)


def test_a_few_images_all_right_prove_no_certainty():
    for n in (3, 300):
        logits, labels = np.tile(np.eye(3), (n // 3, 1)), np.arange(n) % 3
        loss = losses(sharpness(logits, labels) * logits, labels).mean()
        assert loss == pytest.approx(-np.log(1 - 2 / 3 / (n + 1)), rel=1e-2)


def test_a_pool_beats_its_best_part():
    features, labels = clouds(n=300, distance=0.5)
    good = []
    for half in NETWORKS:
        [head] = heads_of(one_network(features, labels), half, [1.0], white=True)
        good.append(head(features[:, half]))
    noise = np.random.default_rng(0).normal(size=(300, 3))
    parts = [sharpness(each, labels) * each for each in (*good, noise)]
    start = np.eye(3)[0]
    weights = weights_of(parts, labels, start=start)

    def total(weights, pull=0.0):
        return (
            losses(np.tensordot(weights, np.stack(parts), axes=1), labels).sum() + pull * ((weights - start) ** 2).sum()
        )

    assert total(weights) < min(losses(each, labels).sum() for each in parts)
    assert (weights[:2] > 0.2).all()
    assert weights[2] < 0.5
    assert 10 * ((weights - start) ** 2).sum() <= total(start) - total(weights)  # none moves for less than it pays
    for step in 0.03 * np.vstack((np.eye(3), -np.eye(3))):
        assert total(weights, linear.PULL) <= total(np.maximum(weights + step, 0), linear.PULL)
    assert weights_of(parts, labels, start=start, pull=1e9) == pytest.approx(start, abs=1e-3)


def two_heads(second, *, seed, n=40):
    """Validation images whose label the first head sees in one half of the features; `second`: what the other half
    holds, "more" of the label, or "noise"."""
    random = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    known = np.eye(3)[labels] + 0.8 * random.normal(size=(n, 3))
    other = (np.eye(3)[labels] if second == "more" else 0) + 0.8 * random.normal(size=(n, 3))
    heads = [Linear(np.pad(2 * np.eye(3), ((0, 0), pad)), np.zeros(3)) for pad in ((0, 3), (3, 0))]
    return one_network(np.hstack([known, other]), labels), heads


def gained_on_fresh_images(second):
    """How much less loss than the first head an ensemble has on fresh images, each of twenty fitted to 40 others."""
    for seed in range(20):
        (images, heads), (fresh, _) = two_heads(second, seed=seed), two_heads(second, seed=100 + seed, n=3000)
        found, _, _ = mixed_head(images, heads)
        first, mixed = (losses(head(fresh.features), fresh.labels).mean() for head in (heads[0], found))
        yield first - mixed


def test_heads_that_are_all_wrong_have_no_share():
    images, heads = two_heads("more", seed=0, n=300)
    wrong = [Linear(-10 * head.weight, head.bias) for head in heads]
    mixed, _, shares = mixed_head(images, wrong)
    assert shares == [0.0, 0.0]
    assert not mixed(images.features).any()


def test_an_ensemble_gains_or_loses_nothing():
    assert min(gained_on_fresh_images("more")) > 0.1
    assert np.mean([*gained_on_fresh_images("noise")]) > -0.01
