"""Finished runs: how they are read, grouped and named, and which are refused."""

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from small_comparison import finished_run
from small_run import digits_run

from common.errors import CheckpointError, DataError
from comparison.compare import compare_runs
from comparison.report import write_report
from comparison.results import compared, rows_of
from comparison.runs import arm_names, cautions, folder_names, group_into_arms, read_run, require_same_data, slugs
from trainers.config import OutputConfig
from trainers.engine.engines import Scores, write_predictions
from trainers.engine.predictions import predictions_from
from trainers.run import train
from trainers.storage.data_folder import MARKER
from trainers.storage.run_folder import RunFolder
from trainers.storage.run_result import predictions_of
from vit.config import Network

LABELS = [0, 1, 2, 0, 1, 2]
RIGHT = [True, True, False, True, False, False]


def run_in(folder, **options):
    return finished_run(folder, **({"labels": LABELS, "correct": RIGHT} | options))


def test_read_run_sorts_by_path_and_keeps_class_order(tmp_path):
    names = ["f.png", "a.png", "c.png", "b.png", "e.png", "d.png"]
    run = read_run(run_in(tmp_path / "run", classes=("zebra", "ant", "bee"), paths=names, seed=3))
    assert run.class_names == ("zebra", "ant", "bee")
    assert run.predictions["path"].tolist() == sorted(names)
    assert run.predictions["label"].tolist() == [1, 0, 2, 2, 1, 0]
    assert run.predictions["right"].tolist() == [True, True, False, False, False, True]
    assert run.predictions["confidence"].tolist() == [0.6] * 6
    assert run.predictions["of_label"].tolist() == [0.6, 0.6, 0.2, 0.2, 0.2, 0.6]
    assert (run.seed, run.history[-1]["val_accuracy"], run.history[0]["lr"]) == (3, 0.4, None)


def change(path, old, new):
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda run: change(run / "summary.json", "finished", "interrupted"), "main.py resume"),
        (lambda run: (run / "summary.json").unlink(), "summary.json"),
        (lambda run: (run / "meta.json").unlink(), "meta.json"),
        (lambda run: (run / "metrics.csv").unlink(), "metrics.csv"),
        (lambda run: (run / "eval" / "test_predictions.csv").unlink(), "compare --data"),
        (lambda run: (run / "summary.json").write_text("{"), "summary.json is damaged"),
        (lambda run: change(run / "meta.json", "class_names", "names"), "meta.json is damaged"),
        (lambda run: change(run / "meta.json", '"bee"', "7"), "meta.json is damaged"),
        (lambda run: change(run / "config.json", '"lr": 0.001', '"lr": null'), "config.json is damaged"),
        (lambda run: change(run / "eval" / "test_predictions.csv", "bee,", "wasp,"), "'wasp'"),
        (lambda run: change(run / "eval" / "test_predictions.csv", "0.6", ""), "3 probabilities"),
    ],
)
def test_read_run_names_what_a_run_lacks(tmp_path, damage, said):
    folder = run_in(tmp_path / "run")
    damage(folder)
    with pytest.raises((DataError, CheckpointError, FileNotFoundError), match=said):
        read_run(folder)


def test_predictions_of_a_large_split_read_alike(tmp_path):
    folder = run_in(tmp_path / "run")
    small, (paths, labels, _, probabilities, names) = read_run(folder), predictions_of(RunFolder(folder), "test")
    logits = torch.from_numpy(np.log(probabilities)).float()
    scores = Scores({}, predictions_from(logits, torch.from_numpy(labels), whole=False))
    images = SimpleNamespace(path=paths.__getitem__)
    assert write_predictions(folder / "eval", "test", scores, images, names).suffix == ".npz"
    large = read_run(folder)
    pd.testing.assert_frame_equal(large.predictions, small.predictions, atol=1e-6)
    path = folder / "eval" / "test_predictions.npz"
    with np.load(path) as file:
        columns = dict(file)
    for name, values in {"labels": columns["labels"] + 99, "paths": columns["paths"][1:], "classes": labels}.items():
        np.savez(path, **columns | {name: values})
        with pytest.raises(DataError, match="is damaged"):
            read_run(folder)
    path.write_bytes(b"no zip")
    with pytest.raises(DataError, match="is damaged"):
        read_run(folder)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"classes": ("ant", "bee", "dog")}, "1 only in A, first 'cat'; 1 only in B, first 'dog'"),
        ({"classes": ("bee", "ant", "cat")}, "order"),
        ({"labels": LABELS[:5], "correct": RIGHT[:5]}, "1 only in A, first 'cat/0005.png'"),
        ({"train_images": 8}, "2 only in B, first 'train/6.png'"),
    ],
)
def test_runs_on_other_data_are_refused_by_difference(tmp_path, change, expected):
    first, other = read_run(run_in(tmp_path / "a")), read_run(run_in(tmp_path / "b", **change))
    with pytest.raises(DataError) as caught:
        require_same_data([first, first, other])
    assert all(part in str(caught.value) for part in (str(first.folder), str(other.folder), expected))


def test_image_of_another_content_or_label_is_named(tmp_path):
    first, folder = read_run(run_in(tmp_path / "a")), run_in(tmp_path / "b")
    change(folder / "split.csv", "hant/0003.png", "other")
    change(folder / "split.csv", "bee/0004.png,bee", "bee/0004.png,ant")
    with pytest.raises(DataError, match="content, first 'ant/0003.png'; 1 image changed label"):
        require_same_data([first, read_run(folder)])


def test_hashes_of_paths_say_nothing_of_contents(tmp_path):
    first, folder = read_run(run_in(tmp_path / "a")), run_in(tmp_path / "b")
    change(folder / "split.csv", "content_hash", "path_hash")
    change(folder / "split.csv", "hant/0003.png", "other")
    require_same_data([first, read_run(folder)])


def test_compare_runs_finds_the_folder_of_the_runs(tmp_path, monkeypatch):
    home, folders = tmp_path / "here" / "runs" / "photos", []
    runs = [run_in(home / "plain", source="photos"), run_in(home / "deep" / "er", source="photos", options={"lr": 0.1})]
    (tmp_path / "here" / "photos").mkdir()
    (home / MARKER).write_text(str(tmp_path / "here" / "photos"))
    monkeypatch.setattr("comparison.compare.show", lambda comparison: folders.append(comparison.folder.resolve()))
    for place in (tmp_path, home / "deep"):
        monkeypatch.chdir(place)
        names = [os.path.relpath(run, place) for run in reversed(runs)]
        compare_runs(names, OutputConfig())
        compare_runs(names, OutputConfig(), elsewhere=True)
    elsewhere = [tmp_path / "runs/photos", home / "deep/runs/photos"]
    assert folders == [folder / "compare" for place in elsewhere for folder in (home, place)]


def test_runs_on_given_and_cleaned_labels_compare(tmp_path, monkeypatch):
    names = []
    for name, count in (("given", 6), ("cleaned", 5)):
        table = str(tmp_path / f"{name}.csv")
        names.append(str(run_in(tmp_path / name, source=table, train_images=count)))
    shown = []
    monkeypatch.setattr("comparison.compare.show", shown.append)
    compare_runs(names, OutputConfig(output_dir=tmp_path / "runs"))
    assert shown[0].arms == ["given", "cleaned"]
    (different,) = shown[0].warnings
    assert "6 train images in A, 5 in B" in different
    other = run_in(tmp_path / "other", source="c.csv", labels=LABELS[:5], correct=RIGHT[:5])
    with pytest.raises(DataError, match="6 test images in A, 5 in B"):
        compare_runs([*names, str(other)], OutputConfig(output_dir=tmp_path / "runs"))


def test_runs_are_grouped_by_configuration_and_seed(tmp_path):
    incidental = [{"workers": seed, "device": f"x{seed}", "source": "."} for seed in range(3)]
    runs = [
        read_run(run_in(tmp_path / f"{lr}_s{seed}", seed=seed, options={"lr": lr} | incidental[seed]))
        for lr in (0.1, 0.2)
        for seed in (2, 0, 1)
    ]
    arms = group_into_arms(runs)
    names = ["0.1", "0.2"]
    assert [(run.arm, run.seed) for run in arms] == [(name, seed) for name in names for seed in range(3)]
    assert list(cautions(arms)) == []


def test_arms_of_different_seeds_are_refused(tmp_path):
    runs = [
        read_run(run_in(tmp_path / f"{lr}_{seed}", seed=seed, options={"lr": lr}))
        for lr, seed in ((0.1, 0), (0.1, 1), (0.2, 1))
    ]
    with pytest.raises(DataError, match=r"0.1_0: \[0, 1\]; .*0.2_1: \[1\]"):
        group_into_arms(runs)


def test_one_configuration_is_refused_a_run_twice_not(tmp_path):
    runs = [read_run(run_in(tmp_path / str(seed), seed=seed)) for seed in (0, 1)]
    with pytest.raises(DataError, match="one model"):
        group_into_arms(runs)
    assert [run.arm for run in group_into_arms([runs[0], runs[0]])] == ["0", "0 (2)"]


@pytest.mark.parametrize(("folders", "names"), [
    ("runs/photos/resnet18_s0 runs/photos/ensemble_s0_2", "resnet18_s0 ensemble_s0_2"),
    ("runs/photos/compare/from_scratch/all/s0 runs/photos/compare/pretrained/all/s0", "from_scratch pretrained"),
    ("runs/a/x runs/b/y c/x", "runs/a/x runs/b/y c/x"), ("runs/a runs/a/b", "a b"), ("x x", "x x"),
])  # fmt: skip
def test_finished_runs_are_called_by_their_folders(folders, names):
    assert folder_names([Path(folder) for folder in folders.split()]) == names.split()


def config(name, *, lr=0.1, **model):
    base = {"name": name, "weights": "none", "trainable": "all", "image_size": 32}
    return {"model": base | model, "data": {"source": "digits", "batch_size": 8}, "train": {"lr": lr}}


OWN = {"weights": "IMAGENET1K_V1"}
MIXTURES = [[vars(Network("a", 64)), vars(Network("b", 32, weights=run))] for run in ("runs/x", "runs/y")]


@pytest.mark.parametrize(
    ("configs", "names"),
    [
        (
            [config("vit_tiny_16"), config("vit_b_16", **OWN, trainable="head", lr=0.2)],
            ["vit_tiny_16 from scratch", "vit_b_16 pretrained, head only"],
        ),
        (
            [config("a", weights="b", trainable=part) for part in ("last:2", "lora:8", "norms", "all")],
            [f"a pretrained{part}" for part in (", last 2 blocks", ", LoRA of rank 8", ", norms and head", "")],
        ),
        (
            [config("vit_b_16", **OWN), config("vit_b_16", weights="/a/b.pth", mean=[0])],
            ["vit_b_16 pretrained weights=IMAGENET1K_V1", "vit_b_16 pretrained weights=/a/b.pth"],
        ),
        (
            [config("a", image_size=size, lr=lr) for size, lr in ((8, 1), (8, 2), (16, 2))],
            [f"a from scratch image_size={size} lr={lr}" for size, lr in ((8, 1), (8, 2), (16, 2))],
        ),
        ([config("hf:a/b", weights=None), config("hf:a/c", weights=None)], ["hf:a/b pretrained", "hf:a/c pretrained"]),
        (
            [config("ensemble", weights=None, networks=each) for each in MIXTURES],
            [f"a@64 + b@32 trained pretrained weights=runs/{run}" for run in "xy"],
        ),
        ([config("a", mean=mean) for mean in (0, 1)], [f"a from scratch mean={mean}" for mean in (0, 1)]),
        ([config("a"), config("a", pool="mean")], ["a from scratch pool=-", "a from scratch pool=mean"]),
        ([config("a"), config("a")], ["a from scratch"] * 2),
    ],
)
def test_arm_names_tell_arms_apart(configs, names):
    assert arm_names(configs) == names


@pytest.mark.parametrize(
    ("names", "folders"),
    [
        (["a from scratch", "b pretrained, head only"], ["a_from_scratch", "b_pretrained_head_only"]),
        (["a from scratch", "a pretrained"], ["from_scratch", "pretrained"]),
        (["a pretrained", "a pretrained pool=mean"], ["a_pretrained", "pool_mean"]),
        ([f"a weights=/{'a/path/' * 9}{name}.pth" for name in "ab"], None),
    ],
)
def test_slugs_are_short_and_different(names, folders):
    assert len(set(slugs(names))) == 2
    assert folders in (None, slugs(names))


def test_a_file_name_that_is_no_unicode_is_read(tmp_path):
    folder = run_in(tmp_path / "run")
    for name in ("split.csv", "eval/test_predictions.csv"):
        path = folder / name
        path.write_bytes(path.read_bytes().replace(b"ant/0000.png", b"ant/\xff.png"))
    run = read_run(folder)
    assert "ant/\udcff.png" in run.predictions["path"].tolist()
    require_same_data([run, read_run(folder)])


def test_comparison_has_the_numbers_that_runs_logged(tmp_path):
    configs = [
        digits_run(tmp_path, data={"labels_per_class": 4}, output={"run_name": f"lr{lr}"}, lr=lr)
        for lr in (0.001, 0.01)
    ]
    runs = [read_run(train(config).run_dir) for config in configs]
    require_same_data(runs)
    comparison = compared("digits", group_into_arms(runs), folder=tmp_path / "compare")
    assert comparison.arms == ["lr0.001", "lr0.01"]
    for row, run in zip(rows_of(comparison.table), runs, strict=True):
        logged = run.summary["test"]
        assert row.accuracy == pytest.approx(logged["accuracy"], abs=1e-9)
        assert row.macro_f1 == pytest.approx(logged["macro_f1"], abs=1e-9)
        assert row.ece == pytest.approx(logged["ece"], abs=1e-6)  # the file has 7 digits
    write_report(comparison)
    assert "are not shown" not in (tmp_path / "compare" / "report.html").read_text(encoding="utf-8")
