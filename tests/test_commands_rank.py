"""`rank`: backbones judged frozen, the same for whatever door they come through."""

from __future__ import annotations

import shlex
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hub_backbones import saved_backbone
from scipy.special import expit
from scipy.stats import binomtest
from sklearn.linear_model import RidgeClassifierCV
from sklearn.neighbors import KNeighborsClassifier
from small_run import call, few_digits, labelled_photos, make_run

from commands.arguments import parse
from commands.compare import Options, parse_arm
from commands.rank import arm_of, local_backbones
from common.shell import PROGRAM
from common.tables import read_rows
from comparison import ranking
from comparison.ranking import ALL, NEAREST, RIDGE, RankedBackbone, draws, nearest, score_backbone
from datasets.bundle import image_set
from datasets.config import DataConfig
from trainers import features
from trainers.budget.local_weights import probes
from trainers.budget.ridge import PENALTIES
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.features import features_of
from vit.config import ModelConfig


def base_of(folder: Path, data: DataConfig) -> RunConfig:
    return RunConfig(data=data, train=TrainConfig(device="cpu", amp="off"), output=OutputConfig(output_dir=folder))


def rank(capsys, data: Path, folder: Path, *argv) -> tuple[int, str, str]:
    return call(capsys, "rank", data, "--output-dir", folder, "--device", "cpu", "--workers", 0, *argv)


def test_a_ranking_judges_what_can_be_had_and_keeps_the_features(capsys, tmp_path, monkeypatch) -> None:
    data, run = labelled_photos(tmp_path / "photos", n=14), make_run(tmp_path / "made" / "r", pool="mean")
    models = ("--models", "fashion_mnist", run, "vit_nano_8,weights=gone.pth")
    code, out, err = rank(capsys, data, tmp_path / "runs", *models)
    assert (code, err) == (3, "")
    assert "vit_nano_8 (gone.pth): left out; gone.pth: no such weights file" in out
    command = shlex.split(out.rpartition("next")[2].partition(f"{PROGRAM} ")[2])
    assert command[:3] == ["compare", "--data", str(data)]
    options = parse(Options, command[1:], prog="compare")
    assert sorted(options.arms) == sorted(["vit_nano_8,weights=fashion_mnist", f"vit_micro_4,weights={run},pool=mean"])
    assert all(parse_arm(arm, RunConfig()).model.weights for arm in options.arms)
    folder = tmp_path / "runs" / "photos"
    rows = read_rows(folder / "ranking.csv", ["labels"])
    assert [row["labels"] for row in rows[:4]] == ["1", "1", "5", "5"]
    assert all(float(row["low"]) <= float(row["accuracy"]) <= float(row["high"]) for row in rows)
    assert (folder / "ranking.png").read_bytes().startswith(b"\x89PNG")
    assert len(list((folder / "features").glob("*.safetensors"))) == 4  # train and val; never test
    monkeypatch.setattr(features, "compute_features", None)
    code, out, _ = rank(capsys, data, tmp_path / "runs", "--shots", 2, *models[:-1])
    assert code == 0
    assert {row["labels"] for row in read_rows(folder / "ranking.csv", ["labels"])} == {"2", ALL}


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["--shots", 99], 2, "--shots 99: class bee has 8 training images; at most --shots 8"),
        (["--shots", 0], 2, "shots=(0,) must be at least 1"),
        (["--models", "vit_nano_9"], 2, "did you mean vit_nano_8?"),
        (["--models", "vit_nano_8,weights=gone.pth"], 3, "none of these models can be had"),
    ],
)
def test_a_mistake_gets_one_line(capsys, tmp_path, argv, code, message) -> None:
    models = [] if "--models" in argv else ["--models", "fashion_mnist"]
    found, _, err = rank(capsys, labelled_photos(tmp_path / "photos", n=12), tmp_path / "runs", *models, *argv)
    assert (found, err.count("\n")) == (code, 1)
    assert message in err


def test_both_classifiers_judge_as_scikit_learn(tmp_path, monkeypatch) -> None:
    base = base_of(tmp_path, few_digits(labels_per_class=12))
    ((_, setup),) = probes(base, [ModelConfig(name="vit_nano_8", weights="fashion_mnist")])
    monkeypatch.setattr(ranking, "DRAWS", 2)
    right = score_backbone(setup, [3])
    splits = ("train", "val")
    x = torch.cat([features_of(setup, split) for split in splits]).double().numpy()
    y = np.concatenate([image_set(setup.data.dataloaders[split]).labels for split in splits])
    images = setup.data.dataset_sizes["train"]
    for number, rows in enumerate(draws(y[:images], 3)):
        assert np.bincount(y[rows]).tolist() == [3] * 10
        others = np.setdiff1d(np.arange(len(y)), rows)
        seen = x[rows]
        penalties = np.array(PENALTIES) * np.square(seen - seen.mean(axis=0)).sum() / min(seen.shape)
        for classifier, model in (
            (RIDGE, RidgeClassifierCV(penalties)),
            (NEAREST, KNeighborsClassifier(1, metric="cosine")),
        ):
            expected = model.fit(seen, y[rows]).predict(x[others]) == y[others]
            assert np.array_equal(right[classifier, "3"][number, others], expected)
            assert np.isnan(right[classifier, "3"][number, rows]).all()
    nearest = KNeighborsClassifier(1, metric="cosine").fit(x[:images], y[:images])
    assert np.array_equal(right[NEAREST, ALL][0, images:], nearest.predict(x[images:]) == y[images:])
    alone = KNeighborsClassifier(1, metric="cosine").fit(x[1:images], y[1:images])
    assert right[NEAREST, ALL][0, 0] == (alone.predict(x[:1]) == y[0]).item()


def test_an_interval_covers_images_and_draws() -> None:
    right = np.random.default_rng(0).random((1, 80)) < 0.7
    row = RankedBackbone("a", 1, 1.0, {(RIDGE, ALL): right.astype(float), (RIDGE, "1"): np.repeat(right, 20, 0) * 1.0})
    wilson = binomtest(int(right.sum()), 80).proportion_ci(method="wilson")
    assert row.accuracy(RIDGE, ALL) == pytest.approx((wilson.low, right.mean(), wilson.high))
    low, _mean, high = row.accuracy(RIDGE, "1")  # twenty equal draws are one
    assert (high - low) / 2 == pytest.approx(1.959964 * np.std(right, ddof=1) / 80**0.5)
    rng, covered = np.random.default_rng(1), 0
    truth = expit(rng.normal(0.8, 1.25**0.5, 100_000)).mean()
    for _ in range(300):  # images and draws that differ in how hard they are
        logits = rng.normal(0.8, 1, (1, 60)) + rng.normal(0, 0.5, (20, 1))
        found = RankedBackbone("a", 1, 1.0, {(RIDGE, "1"): (rng.logistic(size=logits.shape) < logits) * 1.0})
        low, _, high = found.accuracy(RIDGE, "1")
        covered += low <= truth <= high
    assert 0.92 <= covered / 300 <= 0.98


def test_what_a_person_names_becomes_an_arm(tmp_path) -> None:
    assert arm_of("tiny_imagenet") == "vit_stem_16,weights=tiny_imagenet"
    assert arm_of("vit_b_16,image_size=96") == "vit_b_16,image_size=96"
    run = make_run(tmp_path / "r", image_size=16)
    assert arm_of(str(run)) == f"vit_micro_4,weights={run},image_size=16"


def test_the_networks_that_plans_take_stand_side_by_side_after_each_alone() -> None:
    *alone, together = local_backbones(RunConfig()).items()
    assert not any(config.model.networks for _, config in alone)
    assert together[0] == together[1].model.in_words
    assert "vit_stem_16@64" in map(str, together[1].model.networks)


@pytest.mark.slow
@pytest.mark.parametrize("door", ["embedded", "torchvision", "packaged", "timm", "hf", "run"])
def test_the_features_are_those_of_the_library(door, tmp_path) -> None:
    if door in ("packaged", "timm"):
        pytest.importorskip("timm", reason="requirements-extras.txt is not installed")
    if door == "hf":
        saved_backbone("dinov2", tmp_path / "hub")
    names = {
        "embedded": "fashion_mnist",
        "torchvision": "vit_b_16,weights=none,image_size=32",
        "packaged": "efficientnet_lite0,weights=none,image_size=64",
        "timm": "timm:test_vit,weights=none",
        "hf": f"hf:{tmp_path / 'hub'}",
        "run": str(make_run(tmp_path / "r")),
    }
    word = arm_of(names[door])
    base = base_of(tmp_path / "runs", few_digits(labels_per_class=2))
    arms = {word: parse_arm(word, base)}
    ((_, setup),) = probes(base, [config.model for config in arms.values()])
    images = torch.cat([batch for batch, _ in setup.data.dataloaders["val"]])
    model = setup.model.eval()
    with torch.no_grad():
        if door in ("packaged", "timm"):
            expected = model.forward_head(model.forward_features(images), pre_logits=True)
        elif door == "hf":
            output = model.model.base_model(pixel_values=images).last_hidden_state
            expected = torch.cat([output[:, 0], output[:, 1:].mean(dim=1)], dim=1)
        elif door == "torchvision":
            tokens = torch.cat([model.class_token.expand(len(images), -1, -1), model._process_input(images)], dim=1)
            expected = model.encoder(tokens)[:, 0]
        else:
            expected = model.forward_features(images)[:, 0]
    torch.testing.assert_close(features_of(setup, "val"), expected, atol=1e-5, rtol=1e-5)
    (row,) = ranking.rank_backbones(arms, [1])
    assert row.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert 0 <= row.accuracy(RIDGE, ALL)[1] <= 1


def test_nearest_images_are_those_of_brute_force_and_need_no_table_of_all_pairs() -> None:
    generator = np.random.default_rng(0)
    features = torch.from_numpy(generator.normal(size=(5000, 8)).astype(np.float32))
    features /= features.norm(dim=1, keepdim=True)
    units, drawn = np.arange(5000) // 2, [np.arange(4500), generator.choice(4500, 50, replace=False)]
    tracemalloc.start()
    found = nearest(features, units, drawn)
    assert tracemalloc.get_traced_memory()[1] < 5000 * 4500  # an eighth of the angles and what compares the units
    tracemalloc.stop()
    for rows, chosen in zip(drawn, found, strict=True):
        for image in range(0, 5000, 97):
            others = rows[units[rows] != units[image]]
            angles = features[others] @ features[image]
            assert features[chosen[image]] @ features[image] == pytest.approx(angles.max().item(), abs=1e-6)
            assert chosen[image] in others
