"""Commands that train several runs: each is a run like any other, a table sums them up, and `latest` is the best."""

from __future__ import annotations

import os
import statistics
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_sets import class_folders
from killed_runs import rows_of
from small_run import META, call

import main
from datasets import DataConfig
from trainers.budget import plan
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.multirun import seeds_and_folds
from trainers.storage.run_folder import RunFolder, write_json
from trainers.storage.run_result import best_of_several, read_result
from trainers.system import process

OPTIONS = "--epochs 1 --device cpu --workers 0 --tb scalars"
SMALL = ["--model", "vit_micro_2", "--image-size", "8", *OPTIONS.split()]


@pytest.fixture
def pets(tmp_path):
    return class_folders(tmp_path / "pets", {"a": 12, "b": 12})


def result(val: float, loss: float) -> SimpleNamespace:
    return SimpleNamespace(val={"accuracy": val, "loss": loss})


def empty_run(folder: Path, *, started: int) -> Path:
    folder.mkdir(parents=True)
    for name in ("config.json", "summary.json"):
        write_json(folder / name, {})
    write_json(folder / "meta.json", META | {"started": f"2026-11-28T05:00:0{started}.000000+00:00"})
    return folder


def test_ties_go_to_the_lower_loss_and_then_to_the_first():
    runs = [result(0.5, 0.9), result(0.7, 0.8), result(0.7, 0.6), result(0.7, 0.6)]
    assert best_of_several(runs, select="accuracy") is runs[2]
    assert best_of_several(runs, select="loss") is runs[2]


@pytest.mark.parametrize("name", ["a", "exp/first", "a/b/c", "compare/x/all/s0", "a/b/c/d/e/f"])
def test_latest_finds_a_run_of_any_name(tmp_path, name):
    run, older = empty_run(tmp_path / "pets" / name, started=2), tmp_path / "pets" / "older"
    empty_run(older, started=1)
    empty_run(tmp_path / "pets" / ".aside", started=3)
    empty_run(tmp_path / "tuning" / "pets" / "compare" / "x" / "all" / "s0_lr1", started=4)  # it only tried a rate
    assert RunFolder.find("latest", tmp_path).path == run
    called_tuning = empty_run(tmp_path / "tuning" / "r", started=5)
    assert RunFolder.find("latest", tmp_path).path == called_tuning


def test_latest_is_the_same_run_in_a_copy_whose_files_have_other_times(tmp_path):
    for number, name in enumerate("bca", 1):
        empty_run(tmp_path / "runs" / "pets" / name, started=number)
    for kept in ("a", "b"):
        for number, path in enumerate(sorted(tmp_path.rglob("*.json"), reverse=True)):
            os.utime(path, (number, number))
        assert RunFolder.find("latest", tmp_path / "runs").path.name == kept
        RunFolder(tmp_path / "runs" / "pets" / "b").keep()


@pytest.mark.parametrize("kept", ["probe", "all"])
def test_latest_opens_the_run_that_a_plan_keeps(tmp_path, capsys, monkeypatch, pets, kept):
    """It kept A, and evaluate, export and resume opened B."""

    def same_scores_twice(budget, config, start, **more):
        options = {name: config.changed(train={"epochs": 1}, output={"run_name": name}) for name in ("probe", "all")}
        return {name: start(each, ()) for name, each in options.items()}[kept]

    monkeypatch.setattr(plan, "best_in", same_scores_twice)
    words = ["train", "--data", pets, *(word for word in SMALL if word not in ("--epochs", "1"))]
    code, out, err = call(capsys, *words, "--minutes", 1, "--output-dir", tmp_path / "runs")
    assert code == 0, err
    assert RunFolder.find("latest", tmp_path / "runs").path == tmp_path / "runs" / "pets" / kept
    code, out, err = call(capsys, "evaluate", "latest", "--output-dir", tmp_path / "runs")
    assert code == 0, err
    assert out.startswith(f"{tmp_path / 'runs' / 'pets' / kept}: ")


def test_of_several_seeds_latest_is_the_best_and_of_folds_which_share_no_validation_images_the_first(
    tmp_path, capsys, pets
):
    for words in (["--val-fraction", 0.5, "--seeds", 3], ["--folds", 3]):
        code, out, err = call(capsys, "train", "--data", pets, *SMALL, *words, "--output-dir", tmp_path / "runs")
        assert code == 0, err
        latest = RunFolder.find("latest", tmp_path / "runs").path
        assert f"latest  {latest}" in out
        if "--seeds" in words:
            results = [read_result(RunFolder(tmp_path / "runs" / "pets" / f"vit_micro_2_s{seed}")) for seed in range(3)]
            assert latest == best_of_several(results, select="accuracy").run_dir
    assert latest.name.endswith("_fold1")


def test_of_a_comparison_latest_is_the_best_seed_of_the_best_arm_on_validation(tmp_path, capsys):
    data = class_folders(tmp_path / "pets", {f"{split}/{name}": 8 for split in ("train", "val") for name in "ab"})
    words = ["compare", "--data", data, "--arms", "vit_nano_8", "vit_nano_8,pool=mean", "--labels-per-class", 4, "all"]
    words += ["--seeds", 2, "--tune-lr", "off", "--image-size", 16, *OPTIONS.split()]
    code, out, err = call(capsys, *words, "--output-dir", tmp_path / "runs")
    assert code == 0, err
    folder = tmp_path / "runs" / "pets" / "compare"
    latest = RunFolder.find("latest", tmp_path / "runs").path
    assert f"latest  {latest}" in out
    arms = [
        [read_result(RunFolder(folder / arm / "all" / f"s{seed}")) for seed in (0, 1)]
        for arm in ("pool_cls", "pool_mean")
    ]
    scores = [[(run.val["accuracy"], -run.val["loss"], run.run_dir) for run in runs] for runs in arms]
    means = [tuple(sum(column) / 2 for column in list(zip(*rows, strict=True))[:2]) for rows in scores]
    assert latest == max(scores[means.index(max(means))])[2]


def train_one_epoch(*words):
    return ["train", *words, "--epochs", "1", "--device", "cpu", "--tb", "scalars"]


def test_every_fold_is_a_run_and_the_table_sums_them_up(tmp_path, capsys, monkeypatch):
    given_back = []
    monkeypatch.setattr(process, "give_back_freed_memory", lambda: given_back.append(1))
    argv = train_one_epoch("--data", "digits", "--folds", "3", "--labels-per-class", "10")
    assert main.main([*argv, "--output-dir", str(tmp_path), "--run-name", "cv"]) == 0
    assert len(given_back) == 3  # no fold shows the memory of the one before
    runs = [tmp_path / "digits" / f"cv_fold{fold}" for fold in (1, 2, 3)]
    assert all((run / "summary.json").is_file() for run in runs)
    validated = [row["path"] for run in runs for row in rows_of(run / "split.csv") if row["split"] == "val"]
    assert len(validated) == len(set(validated)) == 1797 - 360
    table = rows_of(tmp_path / "digits" / "cv_folds.csv")
    assert [row["fold"] for row in table] == ["1", "2", "3", "mean", "standard deviation"]
    scores = [float(row["val_accuracy"]) for row in table]
    assert scores[3] == pytest.approx(statistics.mean(scores[:3]), rel=1e-12)
    assert scores[4] == statistics.stdev(scores[:3])
    assert "3 folds" in capsys.readouterr().out


def folds_of(tmp_path, **output):
    return RunConfig(
        data=DataConfig(folds=2, labels_per_class=3),
        train=TrainConfig(epochs=1, device="cpu"),
        output=OutputConfig(output_dir=tmp_path, tb="scalars", **output),
    )


def test_folds_without_a_name_are_found_again_by_auto_resume(tmp_path):
    first, again = (
        seeds_and_folds.train_all(seeds_and_folds.of_folds(folds_of(tmp_path, auto_resume=True))) for _ in range(2)
    )
    assert [result.run_dir for result in again] == [result.run_dir for result in first]
    assert first[0].run_dir.name.endswith("_s0_fold1")
