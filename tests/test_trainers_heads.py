"""Heads that are fitted at once: against scikit-learn and brute force, and the laws of choosing and mixing them."""

import shutil
from dataclasses import replace
from functools import partial, partialmethod
from pathlib import Path

import numpy as np
import pytest
from scipy.special import log_softmax
from sklearn.covariance import ledoit_wolf
from sklearn.linear_model import LogisticRegression, Ridge
from threadpoolctl import threadpool_info

from trainers import features as feature_files
from trainers.engine.temperature import losses, sharpness
from trainers.heads import choice, inner_products, kept
from trainers.heads.choice import QUICK, Images, cheapest_of_the_best, choose, fit_and_ask, fitted, judge, prepared
from trainers.heads.fit import FEW, best_head, mixed_head
from trainers.heads.linear import Linear, basis_of, discriminant, logistic, ridge, scale
from trainers.heads.pool import weights_of
from trainers.heads.validation import folds_of, out_of_fold


def clouds(n=60, width=20, classes=3, *, seed=0, distance=1.0):
    """Features (n, width) of classes that overlap, and labels."""
    random = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    return distance * random.normal(size=(classes, width))[labels] + random.normal(size=(n, width)), labels


@pytest.mark.parametrize("width", [20, 200])
def test_ridge_is_that_of_scikit_learn(width):
    features, labels = clouds(width=width)
    head = ridge(features, labels, 3, penalty=2.0)
    expected = Ridge(alpha=2.0).fit(features, np.eye(3)[labels])
    assert head.weight == pytest.approx(expected.coef_)
    assert head(features) == pytest.approx(expected.predict(features))


@pytest.mark.parametrize("classes", [2, 3])
def test_logistic_regression_is_that_of_scikit_learn(classes):
    features, labels = clouds(classes=classes)
    head = logistic(features, labels, classes, penalty=0.5)
    expected = LogisticRegression(C=2.0, max_iter=200, tol=1e-3).fit(features, labels)
    assert log_softmax(head(features), axis=1) == pytest.approx(expected.predict_log_proba(features), abs=1e-6)


@pytest.mark.parametrize("width", [20, 200])
def test_discriminant_analysis_shrinks_as_ledoit_and_wolf_do(width):
    features, labels = clouds(width=width)
    means = np.stack([features[labels == label].mean(axis=0) for label in range(3)])
    covariance, _ = ledoit_wolf(features - means[labels], assume_centered=True)
    weight = np.linalg.solve(covariance, means.T).T
    head = discriminant(features, labels, 3, dimensions=width)
    assert head.weight == pytest.approx(weight, rel=1e-5, abs=1e-8)
    assert head.bias == pytest.approx(-0.5 * (weight * means).sum(axis=1), rel=1e-5)


@pytest.mark.parametrize("name", ["ridge 1", "discriminant analysis", "logistic 0.1"])
def test_heads_are_the_same_in_as_many_dimensions_as_there_are_images(name):
    features, labels = clouds(width=200, n=40)
    images = Images(features, labels, np.arange(40), 3, [slice(0, 200)])
    turned = fitted(images, [0], name)
    assert basis_of(features) is not None
    scaling = scale(features, images.columns)
    x = scaling(features)
    fits = {
        "ridge 1": lambda: ridge(x, labels, 3, penalty=1.0),
        "logistic 0.1": lambda: logistic(x, labels, 3, penalty=0.1),
        "discriminant analysis": lambda: discriminant(x, labels, 3, dimensions=200),
    }
    near = 2e-2 if name == "logistic 0.1" else 1e-6  # which goes on until it is nearly there
    assert log_softmax(turned(features), axis=1) == pytest.approx(log_softmax(fits[name]()(x), axis=1), abs=near)


@pytest.mark.parametrize("width", [30, 200])
@pytest.mark.parametrize("missing", [False, True])
def test_heads_by_inner_products_answer_as_those_by_features(width, missing):
    features, labels = clouds(width=width, classes=4)
    learn, ask = np.arange(60)[np.arange(60) % 3 > 0], np.arange(60)[np.arange(60) % 3 == 0]
    learn = learn[labels[learn] != 2] if missing else learn
    gram, x = features @ features.T, features[learn]
    for penalty in (0.1, 10.0):
        expected = ridge(x, labels[learn], 4, penalty=penalty)(features[ask])
        assert inner_products.ridge(gram, labels, 4, learn, ask, penalty=penalty) == pytest.approx(expected, abs=1e-8)
    for copies in (1, 2):  # of all images: their scatter is then of lower rank than there are images
        rows = np.tile(learn, copies)
        expected = discriminant(features[rows], labels[rows], 4, dimensions=width)(features[ask])
        found = inner_products.discriminant(gram, labels, 4, rows, ask, dimensions=width)
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_networks_side_by_side_have_the_sum_of_their_inner_products():
    images = two_networks(second=True)
    for networks in ([0], [1], [1, 0]):
        features, _, levels = images.of(networks)
        x = scale(features, levels)(features)
        assert images.gram(networks) == pytest.approx(x @ x.T, abs=1e-9)


def test_each_level_of_a_network_is_on_a_scale_of_its_own():
    images = two_networks(second=True)
    finer = replace(images, levels=(slice(0, 4), slice(4, 10), slice(10, 20)))
    for networks in ([1, 0], [0]):
        features, columns, levels = finer.of(networks)
        assert (features == images.of(networks)[0]).all()
        assert columns == images.of(networks)[1]
        x = scale(features, levels)(features)
        assert [x[:, level].var(axis=0).sum() for level in levels] == pytest.approx([1.0] * (len(networks) + 1))
        assert finer.gram(networks) == pytest.approx(x @ x.T, abs=1e-9)


def test_more_features_than_images_are_judged_as_by_their_features(monkeypatch):
    features, labels = clouds(n=90, width=120)
    images = Images(features, labels, np.arange(90), 3, [slice(0, 100), slice(100, 120)])
    folds = folds_of(labels, images.units)
    by_products = [judge(images, networks, QUICK, folds) for networks in ([0], [1], [0, 1])]
    monkeypatch.setattr(Images, "gram", None)  # not asked for where features are few
    judge(images, [1], ["logistic 0.1"], folds)
    judge(Images(features[:, :40], labels, images.units, 3, [slice(0, 40)]), [0], QUICK, folds)
    for found, networks in zip(by_products, ([0], [1], [0, 1]), strict=True):
        ready = prepared(images, networks)
        for each in found:
            logits = out_of_fold(partial(fit_and_ask, ready.heads[each.head], images, ready.values), folds)
            assert each.logits == pytest.approx(sharpness(logits, labels) * logits, rel=1e-4, abs=1e-5)


def test_a_class_without_images_is_never_said():
    features, labels = clouds()
    for head in (logistic(features, labels, 4, penalty=1.0), discriminant(features, labels, 4, dimensions=20)):
        assert head.weight.shape == (4, 20)
    assert (logistic(features, labels, 4, penalty=1.0)(features).argmax(axis=1) < 3).all()


def test_every_network_has_one_voice_and_the_way_back_is_exact():
    features = np.concatenate([clouds(width=5)[0], 100 + 7 * clouds(width=30, seed=1)[0]], axis=1)
    columns = [slice(0, 5), slice(5, 35)]
    scaling = scale(features, columns)
    for column in columns:
        assert scaling(features)[:, column].var(axis=0).sum() == pytest.approx(1)
    head = Linear(np.random.default_rng(0).normal(size=(3, 35)), np.arange(3.0))
    assert scaling.undone(head)(features) == pytest.approx(head(scaling(features)))


def test_the_temperature_is_the_best_of_all():
    features, labels = clouds(n=3000)
    logits = 5 * features[:, :3]
    tried = np.exp(np.linspace(np.log(1e-3), np.log(10), 4000))
    best = min(tried, key=lambda factor: losses(factor * logits, labels).mean())
    assert sharpness(logits, labels) == pytest.approx(best, rel=5e-2)


def test_a_few_images_that_are_all_right_prove_no_certainty():
    sure = [losses(sharpness(np.eye(3), np.arange(3)) * np.eye(3), np.arange(3)).mean()]
    many = np.tile(np.eye(3), (100, 1))
    sure.append(losses(sharpness(many, np.arange(300) % 3) * many, np.arange(300) % 3).mean())
    assert sure == pytest.approx([-np.log(1 - 2 / 3 / 4), -np.log(1 - 2 / 3 / 301)], rel=1e-2)


def test_few_images_take_all_networks():
    assert sorted(choose(two_networks(second=False, n=60), [1.0, 1.0]).taken.networks) == [0, 1]


def test_units_share_a_fold_and_no_head_sees_what_it_is_asked_about():
    _, labels = clouds()
    units = np.arange(60) // 6 * 3 + labels
    folds = folds_of(labels, units)
    assert sorted(np.concatenate(folds)) == list(range(60))
    assert all(not set(units[rows]) & set(np.delete(units, rows)) for rows in folds)

    def counting(learn, ask):
        assert not set(units[learn]) & set(units[ask])
        return np.full((len(ask), 3), len(learn))

    learnt = out_of_fold(counting, folds)[:, 0]
    assert all((learnt[rows] == 60 - len(rows)).all() for rows in folds)
    assert folds_of(np.arange(5), np.arange(5)) == []


def test_a_pool_is_no_worse_than_its_best_part_and_leaves_out_noise():
    features, labels = clouds(n=300, distance=0.5)
    good = [
        ridge(features[:, half], labels, 3, penalty=1.0)(features[:, half]) for half in (slice(0, 10), slice(10, 20))
    ]
    noise = np.random.default_rng(0).normal(size=(300, 3))
    parts = [sharpness(each, labels) * each for each in (*good, noise)]
    start = np.eye(3)[0]
    weights = weights_of(parts, labels, start=start)
    mixed = losses(np.tensordot(weights, np.stack(parts), axes=1), labels).mean()
    assert mixed < min(losses(each, labels).mean() for each in parts)
    assert (weights[:2] > 0.2).all()
    assert weights[2] < 0.5
    gained = losses(parts[0], labels).sum() - losses(np.tensordot(weights, np.stack(parts), axes=1), labels).sum()
    assert 10 * ((weights - start) ** 2).sum() <= gained  # no weight moves for less than it pays
    assert weights_of(parts, labels, start=start, pull=1e9) == pytest.approx(start, abs=1e-3)


def two_networks(*, second, n=300):
    """The first network sees one half of what tells the classes apart, the second the other half or nothing."""
    features, labels = clouds(n=n, width=20, distance=0.6)
    other = features[:, 10:] if second else np.random.default_rng(1).normal(size=(n, 10))
    features = np.concatenate([features[:, :10], other], axis=1)
    return Images(features, labels, np.arange(n), 3, [slice(0, 10), slice(10, 20)])


def test_networks_that_see_different_things_stand_side_by_side_and_others_do_not():
    assert sorted(choose(two_networks(second=True), [1.0, 1.0]).taken.networks) == [0, 1]
    assert choose(two_networks(second=False), [1.0, 1.0]).taken.networks == (0,)
    assert choose(Images(np.eye(3), np.arange(3), np.arange(3), 3, [slice(0, 3)]), [1.0]) is None


@pytest.mark.parametrize(("each", "chosen"), [(1, False), (2, False), (3, True), (5, True)])
def test_with_one_or_two_images_a_class_nothing_is_chosen_and_the_head_is_a_ridge_regression_that_is_not_unsure(
    each, chosen
):
    features, labels = clouds(n=3 * each, width=400)
    images = Images(features, labels, np.arange(len(labels)), 3, [slice(0, 200), slice(200, 400)])
    assert (choose(images, [1.0, 1.0]) is not None) == chosen
    head, alone, (line, *_) = best_head(images, [0, 1], ["a", "b"])
    assert ("too few images to choose a head by" in line) == (not chosen)
    if not chosen:
        plain = fitted(images, [0, 1], "ridge 1")
        assert head.weight == pytest.approx(FEW * plain.weight)
        assert alone is None
        fresh, truth = clouds(n=300, width=400)
        assert losses(head(fresh), truth).mean() < 0.8 * losses(plain(fresh), truth).mean()


@pytest.mark.parametrize("n", [300, 30])  # 30: so few that as many networks as can be are taken
def test_only_networks_that_are_in_time_together_are_taken(n):
    images = two_networks(second=True, n=n)
    assert sorted(choose(images, [1.0, 1.0]).taken.networks) == [0, 1]
    assert choose(images, [1.0, 1.0], lambda networks: 0 not in networks).taken.networks == (1,)


def test_of_what_cannot_be_told_apart_the_cheapest_is_taken():
    judged = choose(two_networks(second=True), [1.0, 1.0]).judged
    alone = [each for each in judged if each.networks == (0,)]
    prices = {(0,): 1.0}
    best = min(alone, key=lambda each: each.loss)
    assert cheapest_of_the_best(alone, prices, np.arange(300)) is best


def test_a_choice_is_the_same_every_time_and_so_is_its_sample():
    images = two_networks(second=True)
    first, second = (choose(images, [1.0, 1.0]).taken for _ in range(2))
    assert (first.networks, first.head) == (second.networks, second.head)
    assert np.array_equal(first.losses, second.losses)
    some = images.some(100)
    assert np.ptp(np.bincount(some.labels)) <= 1
    assert len(some.labels) == 100


@pytest.mark.parametrize(("n", "most"), [(101, 100), (150, 100), (199, 100), (200, 100), (250, 100), (40, 100)])
def test_a_sample_has_as_many_images_as_it_may_have(n, most):
    images = two_networks(second=True, n=n)
    for units in (np.arange(n), np.arange(n) // 2):
        some = replace(images, units=units).some(most)
        assert min(n, most) - 3 <= len(some.labels) <= most
        assert {*units[np.isin(units, some.units)]} == {*some.units}
        assert np.isin(units, some.units).sum() == len(some.labels)  # whole units
        assert np.ptp(np.bincount(some.labels)) <= 4


@pytest.mark.parametrize("networks", [[0], [0, 1]])
def test_the_head_that_is_fitted_to_all_images_is_of_the_kind_that_was_judged(monkeypatch, networks):
    """Where logistic regression could be judged on a sample and not fitted to all images, another took its weight."""
    images = two_networks(second=True)
    monkeypatch.setattr(Images, "some", partialmethod(Images.some, most=100))
    monkeypatch.setattr(choice, "MOST_WORK", 100 * 20 * 3)  # of the sample
    between = best_head(images, networks, ["a", "b"])
    monkeypatch.setattr(choice, "MOST_WORK", 0)
    none = best_head(images, networks, ["a", "b"])
    assert np.array_equal(between.head.weight, none.head.weight)
    assert between.lines == none.lines


def two_heads(second, *, seed, n=40):
    """Validation images whose label the first head sees in one half of the features; `second`: what the other half
    holds, "more" of the label, or "noise"."""
    random = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    seen = np.eye(3)[labels] + 0.8 * random.normal(size=(n, 3))
    other = (np.eye(3)[labels] if second == "more" else 0) + 0.8 * random.normal(size=(n, 3))
    heads = [Linear(np.pad(2 * np.eye(3), ((0, 0), pad)), np.zeros(3)) for pad in ((0, 3), (3, 0))]
    return Images(np.hstack([seen, other]), labels, np.arange(n), 3, (slice(0, 3), slice(3, 6))), heads


def gained_on_fresh_images(second):
    """How much less loss than the first head a mixture has on fresh images, each of twenty fitted to 40 others."""
    for seed in range(20):
        (images, heads), (fresh, _) = two_heads(second, seed=seed), two_heads(second, seed=100 + seed, n=3000)
        found, (line,) = mixed_head(images, heads, ["first", "second"])
        assert "fitted to 40 validation images" in line
        first, mixed = (losses(head(fresh.features), fresh.labels).mean() for head in (heads[0], found))
        yield first - mixed


def test_a_mixture_gains_where_a_head_knows_more_and_does_not_lose_by_its_fit_where_it_knows_nothing():
    assert min(gained_on_fresh_images("more")) > 0.1
    assert np.mean([*gained_on_fresh_images("noise")]) > -0.01


@pytest.fixture
def keep(tmp_path, monkeypatch):
    """Keeps tensors in a folder of features."""
    monkeypatch.setattr(feature_files, "folder_of", lambda setup: tmp_path / "features")
    (tmp_path / "features").mkdir()
    return partial(feature_files.kept, None)


def beside_a_trained_network(images, width=7):
    """The same images as a mixture sees them, in which a trained network stands before the two, and says nothing."""
    features = np.concatenate([np.zeros((len(images.labels), width)), images.features], axis=1)
    columns = [slice(0, width), *(slice(each.start + width, each.stop + width) for each in images.columns)]
    return replace(images, features=features, columns=columns)


def test_a_mixture_takes_the_head_that_its_frozen_networks_have_already(keep):
    images = two_networks(second=True)
    first = kept.fitted_once(best_head, images, [0, 1], ["a", "b"], keep=keep)
    assert first.alone is not None

    def not_again(*_):
        raise AssertionError("fitted twice")

    later = kept.fitted_once(not_again, beside_a_trained_network(images), [1, 2], ["a", "b"], keep=keep)
    assert later.lines == first.lines
    for before, now in ((first.head, later.head), (first.alone, later.alone)):
        assert not now.weight[:, :7].any()
        assert np.array_equal(now.weight[:, 7:], before.weight)
        assert np.array_equal(now.bias, before.bias)


@pytest.mark.parametrize("changed", ["features", "labels", "names", "version", "damaged", "no folder"])
def test_another_head_is_fitted_where_anything_it_depends_on_has_changed(keep, tmp_path, monkeypatch, changed):
    images, names, calls = two_networks(second=True), ["a", "b"], []
    if changed == "no folder":
        (tmp_path / "features").rmdir()

    def counted(*words):
        calls.append(words)
        return best_head(*words)

    first = kept.fitted_once(counted, images, [0, 1], names, keep=keep)
    if changed == "features":
        images = replace(images, features=images.features + np.eye(*images.features.shape))
    elif changed == "labels":
        images = replace(images, labels=np.roll(images.labels, 1))
    elif changed == "names":
        names = ["a", "c"]
    elif changed == "version":
        monkeypatch.setattr(kept, "RULES", "of another version")
    elif changed == "damaged":
        [file] = (tmp_path / "features").iterdir()
        file.write_bytes(file.read_bytes()[:-40])
    again = kept.fitted_once(counted, images, [0, 1], names, keep=keep)
    assert len(calls) == 2
    assert (changed in ("features", "labels")) != np.array_equal(first.head.weight, again.head.weight)


@pytest.mark.parametrize("name", ["choice", "fit", "inner_products", "linear", "pool", "validation"])
def test_any_change_to_how_heads_are_fitted_makes_kept_ones_those_of_another_version(tmp_path, name):
    """Constants of some files were forgotten, and heads of older rules were taken."""
    folder = Path(kept.__file__).parent
    shutil.copytree(folder, tmp_path / "heads")
    assert kept.rules_in(tmp_path / "heads") == kept.rules_in(folder) == kept.RULES
    with (tmp_path / "heads" / f"{name}.py").open("a") as file:
        file.write("# changed")
    assert kept.rules_in(tmp_path / "heads") != kept.RULES


def test_heads_are_chosen_and_fitted_on_one_thread_and_give_the_others_back(monkeypatch):
    def threads():
        return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}

    seen, before = [], threads()
    monkeypatch.setattr(choice, "judge", lambda *words: seen.append(threads()) or judge(*words))
    choose(two_networks(second=True), [1.0, 2.0])
    assert seen
    assert all(each == {1} for each in seen)
    assert threads() == before


def test_six_images_on_which_a_trained_network_is_lucky_leave_the_frozen_ones_most_of_the_mixture():
    labels = np.arange(6) % 3
    right = np.eye(3)[labels]
    images = Images(np.hstack([right, 2 * right]), labels, np.arange(6), 3, [slice(0, 3), slice(3, 6)])
    frozen, lucky = (Linear(np.eye(3, 6, first), np.zeros(3)) for first in (0, 3))
    _, (line,) = mixed_head(images, [frozen, lucky], ["frozen", "lucky"])
    assert int(line.split("mixture of ")[1].split("%")[0]) > 50
