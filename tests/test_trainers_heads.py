"""The linear head that is fitted at once, against scikit-learn, and the head that begins as a probe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from ignite.engine import Events
from killed_runs import Crash, assert_same_content, crash_after, run_content
from scipy.special import softmax
from sklearn.covariance import ledoit_wolf
from sklearn.linear_model import LogisticRegression
from small_images import image_folder
from small_run import digits_run
from threadpoolctl import threadpool_info

from common.errors import OptionError
from datasets.config import DataConfig
from trainers.calibration import losses, sharpness
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.features import compute_features
from trainers.heads import fit, linear
from trainers.heads.fit import begin_as_probe, mixed_head, not_augmented
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
from trainers.resume import resume
from trainers.run import train
from trainers.setup import prepare
from trainers.storage.checkpoint_file import best_of, read_checkpoint
from trainers.storage.run_folder import read_json
from vit.config import ModelConfig
from vit.factory import build_model

ALL, NETWORKS = slice(None), (slice(0, 10), slice(10, 20))


def clouds(n=60, width=20, classes=3, *, seed=0, distance=1.0):
    """Features (n, width) of classes that overlap, and labels."""
    random = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    return distance * random.normal(size=(classes, width))[labels] + random.normal(size=(n, width)), labels


def one_network(features, labels, units, classes):
    return Images(features, labels, units, classes, [ALL], np.zeros(features.shape[1], int))


def two_networks(*, second):
    """The first network sees one half of what tells the classes apart, the second the other half or nothing."""
    features, labels = clouds(n=300, width=20, distance=0.6)
    other = features[:, 10:] if second else np.random.default_rng(1).normal(size=(300, 10))
    features = np.concatenate([features[:, :10], other], axis=1)
    return Images(features, labels, np.arange(300), 3, NETWORKS, np.arange(20) // 10)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("white", [True, False])
def test_a_head_is_the_logistic_regression_of_scikit_learn_in_which_all_classes_count_alike(classes, white):
    features, labels = clouds(n=150, classes=classes)
    features, labels = (each[np.flatnonzero((labels > 0) | (np.arange(150) < 60))] for each in (features, labels))
    images = one_network(features, labels, np.arange(len(labels)), classes)
    [head] = heads_of(images, ALL, [0.5 / len(labels)], white=white)
    scaled = (features - features.mean(axis=0)) / np.sqrt(features.var(axis=0).sum())
    within = scaled - np.stack([scaled[labels == label].mean(axis=0) for label in range(classes)])[labels]
    values, vectors = np.linalg.eigh(ledoit_wolf(within, assume_centered=True)[0])
    x = scaled @ vectors / np.sqrt(values if white else values.mean())
    model = LogisticRegression(C=2.0, class_weight="balanced", max_iter=500, tol=1e-6)
    assert softmax(head(features), axis=1) == pytest.approx(model.fit(x, labels).predict_proba(x), abs=1e-2)


@pytest.mark.parametrize("width", [20, 200])
def test_what_all_classes_have_in_common_does_not_hide_what_tells_them_apart(width):
    features, labels = clouds(n=90, width=width, distance=0.5)
    common = np.random.default_rng(2).normal(size=(90, 1)) * np.random.default_rng(3).normal(size=(1, width))
    judged = cross_validate(one_network(features + 10 * common, labels, np.arange(90), 3))
    without = cross_validate(one_network(features, labels, np.arange(90), 3))
    assert judged.accuracy > without.accuracy - 0.1 > 0.4


def test_every_level_has_one_voice_and_logits_are_of_features_as_they_come():
    images = two_networks(second=True)
    [head] = heads_of(images, ALL, [1.0], white=True)
    other = images.features * np.repeat([1.0, 30.0], 10) + np.repeat([0.0, 100.0], 10)
    [same] = heads_of(replace(images, features=other), ALL, [1.0], white=True)
    assert same(other) == pytest.approx(head(images.features), abs=2e-2)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("penalty", [10.0, 0.01])
def test_a_class_without_images_is_not_said_of_others_and_yet_possible(classes, penalty):
    features, labels = clouds(n=600, classes=classes)
    learn = np.arange(60)
    [head] = heads_of(one_network(features[:60], labels[:60], learn, classes + 1), ALL, [penalty], white=True)
    assert head.weight.shape == (classes + 1, 20)
    logits = head(features[60:])
    assert (logits.argmax(axis=1) == classes).mean() < 0.05
    assert (logits[:, classes] > logits[:, :classes].min(axis=1)).all()


@pytest.mark.parametrize("each", [1, 2, 3, 5])
def test_with_one_or_two_images_a_class_there_is_a_head_and_nothing_is_chosen(each):
    features, labels = clouds(n=3 * each, width=400)
    head, judged = fit_head(one_network(features, labels, np.arange(len(labels)), 3))
    assert (judged is None) == (each < 3)
    fresh, truth = clouds(n=300, width=400)
    assert losses(head(fresh), truth).mean() < 0.9 * np.log(3)


def test_images_that_are_all_the_same_have_a_head_too():
    labels = np.arange(30) % 3
    for features in (np.ones((30, 4)), np.eye(3)[labels]):
        head, judged = fit_head(one_network(features, labels, np.arange(30), 3))
        assert np.isfinite(head(features)).all()
        assert judged.accuracy == (1.0 if features.shape[1] == 3 else pytest.approx(1 / 3, abs=0.1))


def test_the_penalty_and_the_temperature_are_the_best_of_those_tried():
    images = replace(two_networks(second=True), columns=NETWORKS[:1])
    judged, own = cross_validate(images), NETWORKS[0]
    head, again = fit_head(images)
    assert np.array_equal(judged.logits, again.logits)  # the same every time
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


def test_several_networks_have_one_head_that_is_better_than_each_of_theirs_and_no_worse_by_one_that_sees_nothing():
    for second in (True, False):
        images = two_networks(second=second)
        alone = [cross_validate(replace(images, columns=[own])) for own in NETWORKS]
        both = cross_validate(images)
        assert both.loss < min(each.loss for each in alone) - 0.05 * second + 0.01
        assert all(np.array_equal(each.logits, own.logits) for each, own in zip(both.alone, alone, strict=True))
        head, _ = fit_head(images)
        summed = 0.0
        for part, (penalty, factor) in enumerate(both.parts):
            own = NETWORKS[part // 2]
            [found] = heads_of(images, own, [penalty], white=part % 2 == 0)
            summed = summed + factor * found(images.features[:, own])
        assert head(images.features) == pytest.approx(summed, abs=1e-6)


def test_units_share_a_fold_and_no_head_sees_what_it_is_asked_about(monkeypatch):
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
    cross_validate(one_network(clouds()[0], labels, units, 3))
    assert [set(each) for each in learnt] == [set(np.delete(units, rows)) for rows in folds] * 2


def test_heads_are_fitted_on_one_thread_and_give_the_others_back(monkeypatch):
    def threads():
        return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}

    seen, before, whitening = [], threads(), linear.whitening
    monkeypatch.setattr(linear, "whitening", lambda *words, **kind: seen.append(threads()) or whitening(*words, **kind))
    cross_validate(two_networks(second=True))
    assert seen
    assert all(each == {1} for each in seen)
    assert threads() == before


@pytest.mark.parametrize(("n", "most"), [(101, 100), (150, 100), (199, 100), (200, 100), (250, 100), (40, 100)])
def test_a_sample_has_as_many_images_as_it_may_have(n, most):
    labels = np.arange(n) % 3
    for units in (np.arange(n), np.arange(n) // 2):
        rows = sample(labels, units, most)
        assert min(n, most) - 3 <= len(rows) <= most
        assert np.isin(units, units[rows]).sum() == len(rows)  # whole units
        assert np.ptp(np.bincount(labels[rows])) <= 4


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


def test_a_pool_is_no_worse_than_its_best_part_and_leaves_out_noise():
    features, labels = clouds(n=300, distance=0.5)
    good = []
    for half in NETWORKS:
        [head] = heads_of(one_network(features, labels, np.arange(300), 3), half, [1.0], white=True)
        good.append(head(features[:, half]))
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


def two_heads(second, *, seed, n=40):
    """Validation images whose label the first head sees in one half of the features; `second`: what the other half
    holds, "more" of the label, or "noise"."""
    random = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    seen = np.eye(3)[labels] + 0.8 * random.normal(size=(n, 3))
    other = (np.eye(3)[labels] if second == "more" else 0) + 0.8 * random.normal(size=(n, 3))
    heads = [Linear(np.pad(2 * np.eye(3), ((0, 0), pad)), np.zeros(3)) for pad in ((0, 3), (3, 0))]
    return one_network(np.hstack([seen, other]), labels, np.arange(n), 3), heads


def gained_on_fresh_images(second):
    """How much less loss than the first head an ensemble has on fresh images, each of twenty fitted to 40 others."""
    for seed in range(20):
        (images, heads), (fresh, _) = two_heads(second, seed=seed), two_heads(second, seed=100 + seed, n=3000)
        found, _, _ = mixed_head(images, heads)
        first, mixed = (losses(head(fresh.features), fresh.labels).mean() for head in (heads[0], found))
        yield first - mixed


def test_an_ensemble_gains_where_a_head_knows_more_and_does_not_lose_by_its_fit_where_it_knows_nothing():
    assert min(gained_on_fresh_images("more")) > 0.1
    assert np.mean([*gained_on_fresh_images("noise")]) > -0.01


def run_config(folder, *, trainable="all", **options) -> RunConfig:
    model = {"name": "vit_nano_8", "weights": "fashion_mnist", "trainable": trainable}
    data = {"labels_per_class": 7, "batch_size": 32}
    return digits_run(folder, model=model, data=data, output={"run_name": "r"}, **{"start_head": "probe"} | options)


def test_the_first_look_of_a_run_is_the_probes_and_a_stopped_run_goes_on_exactly(tmp_path, capsys):
    whole = train(run_config(tmp_path / "whole"))
    assert "begins as a linear probe: right on" in capsys.readouterr().out
    assert whole.epochs[0]["val_accuracy"] > 0.5  # a zero head has 0.1
    assert read_json(whole.run_dir / "config.json")["train"]["start_head"] == "probe"
    with pytest.raises(Crash):
        train(run_config(tmp_path / "stopped", save_every=1), handlers=[crash_after(2)])
    resumed = resume(tmp_path / "stopped" / "digits" / "r")
    assert_same_content(
        {**run_content(whole.run_dir), "tensorboard": None}, {**run_content(resumed.run_dir), "tensorboard": None}
    )


def test_training_that_spoils_a_fitted_head_is_not_kept_even_by_a_run_that_was_stopped(tmp_path):
    spoilt = {"lr": 1.0, "epochs": 2}
    kept = train(run_config(tmp_path / "whole", **spoilt))
    assert kept.best_epoch == 0
    assert kept.val["accuracy"] == kept.epochs[0]["val_accuracy"] > max(row["val_accuracy"] for row in kept.epochs[1:])
    head = train(run_config(tmp_path / "head", trainable="head", lr=1e-9))
    assert kept.test["accuracy"] == pytest.approx(head.test["accuracy"], abs=0.01)
    with pytest.raises(Crash):
        train(run_config(tmp_path / "stopped", save_every=1, **spoilt), handlers=[crash_after(2)])
    resumed = resume(tmp_path / "stopped" / "digits" / "r")
    assert (resumed.best_epoch, resumed.test) == (0, kept.test)
    assert train(run_config(tmp_path / "last", select="last", **spoilt)).test == kept.test


def better_between(trainer):
    """Let the first epoch look better than the head that the run began with, and the second one worse."""
    losses = iter((0.5, 0.4, 0.6))
    trainer.state.run.evaluator.add_event_handler(
        Events.COMPLETED, lambda engine: engine.state.metrics.update(loss=next(losses))
    )


def test_the_head_is_kept_where_the_last_epoch_is_worse_whatever_was_between(tmp_path):
    options = {"epochs": 2, "select": "last"}
    between = train(run_config(tmp_path / "between", **options), handlers=[better_between])
    assert between.best_epoch == read_checkpoint(best_of(between.run_dir))["epoch"] == 0
    head = train(run_config(tmp_path / "head", trainable="head", lr=1e-9))
    assert between.test["accuracy"] == pytest.approx(head.test["accuracy"], abs=0.01)


def test_the_last_epoch_takes_the_place_of_the_head_at_the_end_alone_and_no_epoch_follows(tmp_path):
    options = {"epochs": 12, "select": "last", "save_every": 1, "lr": 3e-3}
    whole = train(run_config(tmp_path / "whole", **options))
    assert whole.best_epoch == read_checkpoint(best_of(whole.run_dir))["epoch"] == 12
    with pytest.raises(Crash):
        train(run_config(tmp_path / "stopped", **options), handlers=[crash_after(5)])
    stopped = tmp_path / "stopped" / "digits" / "r"
    assert read_checkpoint(best_of(stopped))["epoch"] == 0
    assert resume(stopped).test == whole.test
    assert read_checkpoint(best_of(stopped))["epoch"] == 12
    with pytest.raises(OptionError, match="--weights"):
        resume(stopped, epochs=13)


def test_the_head_is_the_one_that_is_fitted_to_the_features(tmp_path):
    setup = prepare(run_config(tmp_path))
    loader = not_augmented(setup)
    features = compute_features(setup.network, loader, setup.device, amp_dtype=setup.amp_dtype).float().numpy()
    head, judged = fit_head(Images(features, loader.dataset.labels, np.arange(70), 10, [slice(None)], np.zeros(128)))
    said = begin_as_probe(setup)
    with torch.no_grad():
        assert setup.network.head(torch.from_numpy(features)).numpy() == pytest.approx(head(features), abs=1e-2)
    assert f"right on {judged.accuracy:.1%} of the training images" in said


@pytest.mark.parametrize(("lr", "share"), [(1e-4, 1.0), (1e-3, 0.1), (3e-3, 0.1)])
def test_training_at_a_high_rate_begins_with_a_tenth_of_the_head_whose_scores_are_the_first(tmp_path, lr, share):
    """From the whole head ViTs memorised: of 1,200 animals 67.7 % right after four passes, in place of 72.3 %."""
    norms = {}

    def note(trainer):
        head = trainer.state.run.setup.network.head
        trainer.add_event_handler(Events.EPOCH_STARTED, lambda: norms.update(then=head.weight.norm().item()))

    found = train(run_config(tmp_path, lr=lr, epochs=0.3), handlers=[note])
    setup = prepare(run_config(tmp_path))
    begin_as_probe(setup)
    whole = setup.network.head.weight.norm().item()
    assert norms["then"] == pytest.approx(share * whole, rel=1e-3)
    assert found.epochs[0]["val_accuracy"] > 0.5


def test_only_the_head_of_the_model_changes(tmp_path):
    setup = prepare(run_config(tmp_path, trainable="lora:2"))
    before = {name: tensor.clone() for name, tensor in setup.model.state_dict().items()}
    begin_as_probe(setup)
    after = setup.model.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"head.weight", "head.bias"}


def test_the_head_of_very_many_images_is_fitted_to_a_part_of_each_class(tmp_path, monkeypatch):
    setup = prepare(run_config(tmp_path))
    monkeypatch.setattr(fit, "MOST_TO_BEGIN_WITH", 30)
    assert sorted(not_augmented(setup).dataset.labels.tolist()) == sorted([*range(10)] * 3)


@pytest.mark.parametrize(("options", "stays"), [({}, True), ({"start_head": "plain"}, False)])
def test_batch_norms_keep_the_statistics_that_a_fitted_head_knows(tmp_path, options, stays):
    torch.manual_seed(0)
    state = build_model("resnet18", num_classes=2, weights="none").state_dict()
    torch.save(state, tmp_path / "resnet18.pth")
    found = train(
        RunConfig(
            model=ModelConfig(name="resnet18", weights=str(tmp_path / "resnet18.pth"), image_size=32),
            data=DataConfig(source=str(image_folder(tmp_path / "images")), workers=0, batch_size=4),
            train=TrainConfig(epochs=1, device="cpu", **options),
            output=OutputConfig(output_dir=tmp_path / "runs", tb="scalars"),
        )
    )
    trained = read_checkpoint(next(found.run_dir.glob("checkpoints/step_*")))["model"]
    same = {name: torch.equal(trained[name], state[name]) for name in state}
    assert {name for name in state if "running" in name and same[name] is not stays} == set()
    assert not same["layer4.0.bn1.weight"]
    assert not same["conv1.weight"]
    assert (found.epochs[0]["val_accuracy"] > 0.5) is stays  # a zero head has half
