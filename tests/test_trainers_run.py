"""Whole runs, small ones, from options to run directory."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ignite.engine import Events
from killed_runs import rows_of
from small_run import digits_run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from common.errors import DataError, TrainingError
from inference.evaluate import evaluate_run
from trainers import run, run_engines
from trainers.config import OutputConfig, RunConfig, load_config
from trainers.engine import handlers
from trainers.engine.engines import score_split
from trainers.run import train
from trainers.setup import prepare
from trainers.storage.checkpoint_file import best_of, load, read_checkpoint
from trainers.storage.run_folder import RunFolder, read_json


def short_run(folder: Path, *, seed: int = 0, tb: str = "scalars", **train_options) -> RunConfig:
    model, data = {"dropout": 0.1, "stochastic_depth": 0.1}, {"labels_per_class": 30, "batch_size": 32}
    options = {"epochs": 2, "seed": seed, "log_every": 5} | train_options
    return digits_run(folder, model=model, data=data, output={"tb": tb}, **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return train(short_run(tmp_path_factory.mktemp("runs"), tb="standard"))


def test_a_run_learns(finished):
    losses = [row["val_loss"] for row in finished.epochs]
    assert losses[0] == pytest.approx(math.log(10), abs=1e-3)  # a zero head: all classes equally likely
    assert losses[2] < losses[0]  # in two epochs; after one it may still be on its way
    assert finished.test["loss"] < losses[1]


def test_run_directory_is_complete(finished):
    names = {path.relative_to(finished.run_dir).as_posix() for path in finished.run_dir.rglob("*") if path.is_file()}
    expected = {"config.json", "meta.json", "split.csv", "metrics.csv", "summary.json"}
    assert expected | {"eval/val_predictions.csv", "eval/test_predictions.csv"} <= names
    assert len(RunFolder(finished.run_dir).checkpoints("step")) == 1
    assert len(RunFolder(finished.run_dir).checkpoints("best")) == 1
    for part in ("train", "val"):
        assert list((finished.run_dir / "tb" / part).glob("events.*")), part
    assert not [name for name in names if name.endswith(".tmp")]


def test_summary_agrees_with_the_history(finished):
    summary = read_json(finished.run_dir / "summary.json")
    assert summary["status"] == "finished"
    assert summary["epochs"] == 2
    assert summary["images_seen"] == 2 * read_split_count(finished.run_dir, "train")
    best = rows_of(finished.run_dir / "metrics.csv")[summary["best"]["epoch"]]
    assert float(best["val_accuracy"]) == summary["best"]["accuracy"] == finished.val["accuracy"]
    assert summary["test"]["accuracy"] == finished.test["accuracy"]
    assert summary["test"]["n"] == read_split_count(finished.run_dir, "test") == 54


def read_split_count(run_dir: Path, split: str) -> int:
    return sum(row["split"] == split for row in rows_of(run_dir / "split.csv"))


def test_resolved_options_rerun_the_run_bit_for_bit(finished, tmp_path):
    config = load_config(finished.run_dir / "config.json")
    wanted = {"batch_size", "augment", "epochs", "lr", "weight_decay", "warmup_epochs", "amp", "device"}
    resolved = vars(config.data) | vars(config.train)
    assert not {name for name in wanted if resolved[name] in (None, "auto")}
    again = train(replace(config, output=OutputConfig(output_dir=tmp_path, tb="scalars")))
    assert rows_of(again.run_dir / "metrics.csv") == rows_of(finished.run_dir / "metrics.csv")
    first, second = (RunFolder(run.run_dir).checkpoints("best")[0] for run in (finished, again))
    for name, value in read_checkpoint(first)["model"].items():
        assert torch.equal(value, read_checkpoint(second)["model"][name])
    assert (again.run_dir / "split.csv").read_bytes() == (finished.run_dir / "split.csv").read_bytes()


def test_other_seed_has_the_same_split(finished, tmp_path):
    other = train(short_run(tmp_path / "other", seed=1, epochs=1))
    assert other.epochs[1]["val_loss"] != finished.epochs[1]["val_loss"]
    assert (other.run_dir / "split.csv").read_bytes() == (finished.run_dir / "split.csv").read_bytes()


def test_evaluate_gives_the_logged_numbers(finished, tmp_path):
    # Another precision than the run's would show in bf16, and only there.
    for result in (finished, train(short_run(tmp_path, epochs=1, amp="bf16"))):
        for split in ("val", "test"):
            again = evaluate_run(result.folder, split=split)
            assert again.epoch == result.best_epoch
            assert {name: again.metrics[name] for name in again.logged} == again.logged
            assert {"loss", "accuracy"} <= set(again.logged)


@pytest.mark.parametrize(("limit", "first"), [(52, 32), (53, 53)])
def test_untrained_model_sees_a_validation_sample(tmp_path, monkeypatch, limit, first):
    assert (run_engines.UNTRAINED_SEES, run_engines.OF_MORE_THAN) == (1_000, 10_000)
    monkeypatch.setattr(run_engines, "UNTRAINED_SEES", 32)
    monkeypatch.setattr(run_engines, "OF_MORE_THAN", limit)
    seen, attach = [], handlers.attach_validation

    def counting(trainer, evaluator, *loaders, **words):
        evaluator.add_event_handler(Events.STARTED, lambda: seen.append(0))
        evaluator.add_event_handler(
            Events.ITERATION_COMPLETED, lambda engine: seen.append(seen.pop() + len(engine.state.batch[1]))
        )
        attach(trainer, evaluator, *loaders, **words)

    monkeypatch.setattr(handlers, "attach_validation", counting)
    train(short_run(tmp_path, epochs=1))
    assert seen == [first, 53]


def test_tensorboard_shows_the_steps_of_metrics_csv(finished):
    folder, everything = finished.run_dir / "tb", {"scalars": 0}
    train_events, val_events = (EventAccumulator(str(folder / part), everything).Reload() for part in ("train", "val"))
    shared = {"1_learning/loss", "1_learning/accuracy"}
    by_step = {f"5_steps/{name}" for name in ("accuracy", "data_wait", "grad_norm", "images_per_s", "loss", "lr")}
    assert shared | by_step == set(train_events.Tags()["scalars"])
    of_val = {"1_learning/macro_f1", "4_calibration/ece", "10_result/accuracy_val", "10_result/loss_val"}
    of_test = {f"10_result/{name}" for name in ("accuracy_test", "loss_test", "seconds", "images_seen")}
    of_val |= {f"recall/{digit}" for digit in range(10)}
    assert shared | of_val | of_test == set(val_events.Tags()["scalars"])  # of ten classes top-5 says little
    last = finished.epochs[-1]["step"]
    assert [event.step for event in val_events.Scalars("1_learning/loss")] == [0, last // 2, last]
    assert [event.step for event in train_events.Scalars("1_learning/loss")] == [last // 2, last]
    for tag in by_step:
        assert [event.step for event in train_events.Scalars(tag)] == list(range(5, last + 1, 5))
    table = rows_of(finished.run_dir / "metrics.csv")
    for split, shown, of_split in (("val", val_events, table), ("train", train_events, table[1:])):  # row 0: untrained
        for name in ("accuracy", "loss"):
            found = [(event.step, event.value) for event in shown.Scalars(f"1_learning/{name}")]
            rows = [(int(row["step"]), pytest.approx(float(row[f"{split}_{name}"]))) for row in of_split]
            assert found == rows


def test_diverged_run_leaves_no_directory(tmp_path):
    with pytest.raises(TrainingError, match="step"):
        train(short_run(tmp_path, lr=1e30, warmup_epochs=0, clip_norm=0, epochs=1))
    assert not list(tmp_path.glob("digits/[!.]*"))


def test_early_stopping_ends_the_run(tmp_path, capsys):
    result = train(short_run(tmp_path, lr=1e-12, patience=1, epochs=30))
    assert result.epochs[-1]["epoch"] < 10
    assert "stopped early" in capsys.readouterr().out
    assert json.loads((result.run_dir / "summary.json").read_text())["status"] == "finished"


def test_best_epoch_is_validated_once(tmp_path, monkeypatch):
    scored = []

    def counted(model, loader, *options):
        scored.append(loader.dataset.split)
        return score_split(model, loader, *options)

    monkeypatch.setattr(run, "score_split", counted)
    result = train(short_run(tmp_path, ema_decay=0.5))
    assert scored == ["test"]
    model, _spec, _names = load(result.run_dir)
    data = prepare(load_config(result.run_dir / "config.json")).data
    again = score_split(model, data.dataloaders["val"], torch.device("cpu"), None)
    assert again.metrics == result.val
    predicted = [int(row["predicted"]) for row in rows_of(result.run_dir / "eval" / "val_predictions.csv")]
    assert predicted == again.outputs.predicted.tolist()


def test_history_and_predictions_are_data_frames(finished):
    history = finished.history
    assert history["epoch"].tolist() == [row["epoch"] for row in finished.epochs]
    assert history["val_loss"].tolist() == [row["val_loss"] for row in finished.epochs]
    for split, scores in (("val", finished.val), ("test", finished.test)):
        table = finished.predictions(split)
        probabilities = table.filter(regex=r"^p\(")
        assert table["path"].nunique() == len(table) == read_split_count(finished.run_dir, split)
        assert (table["label"] == table["predicted"]).mean() == pytest.approx(scores["accuracy"])
        assert (probabilities.columns[probabilities.to_numpy().argmax(axis=1)] == "p(" + table["predicted"] + ")").all()
        assert probabilities.sum(axis=1).to_numpy() == pytest.approx(1, abs=1e-5)
    with pytest.raises(DataError, match="no predictions of 'mixed'"):
        finished.predictions("mixed")


def test_the_last_epoch_is_kept_whatever_it_scores(tmp_path):
    options = {"epochs": 3, "lr": 0.5, "schedule": "constant", "select": "last", "seed": 5}
    result = train(digits_run(tmp_path, data={"labels_per_class": 20}, **options))
    assert (result.best_epoch, result.val["loss"]) == (3, pytest.approx(result.epochs[-1]["val_loss"]))
    assert result.val["loss"] > min(row["val_loss"] for row in result.epochs[1:])
    assert read_checkpoint(best_of(result.run_dir))["epoch"] == 3
