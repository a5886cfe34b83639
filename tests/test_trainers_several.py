import dataclasses
import statistics

import pytest
from killed_runs import rows_of

import main
from datasets import DataConfig
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.multirun import seeds_and_folds
from trainers.system import process
from vit import ModelConfig


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


def test_folds_of_a_model_with_slashes_in_its_name_have_a_plain_name(tmp_path, monkeypatch):
    names = []
    monkeypatch.setattr(
        seeds_and_folds, "train_or_resume", lambda config, images: names.append(config.output.run_name) or 1 / 0
    )
    config = dataclasses.replace(folds_of(tmp_path), model=ModelConfig(name="hf:org/name"))
    with pytest.raises(ZeroDivisionError):
        seeds_and_folds.train_all(seeds_and_folds.of_folds(config))
    assert names[0] == "hf_org_name_s0_fold1"
