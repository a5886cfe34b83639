"""The loss by which a plan keeps one of two runs, and the epoch that a run keeps without luck."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import log_softmax, softmax
from small_run import few_digits

from common.errors import OptionError
from trainers.budget.plan import calibrated_loss
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.run import train
from trainers.storage.checkpoint_file import best_of, read_checkpoint
from trainers.storage.run_result import RunResult
from vit.config import ModelConfig

NAMES = ["10", "2", "9"]
"""Of classes, in an order that is not that of their text."""


def run_of(folder, probabilities, labels, group="") -> RunResult:
    (folder / "eval").mkdir(parents=True)
    said = [" ".join(map(str, of_image)) for of_image in probabilities]
    rows = [f"{n}.png,{NAMES[label]},2,{said[n]}" for n, label in enumerate(labels)]
    (folder / "eval" / "val_predictions.csv").write_text("path,label,predicted,probabilities\n" + "\n".join(rows))
    split = [f"{n}.png,{NAMES[label]},val,{group}" for n, label in enumerate(labels)]
    (folder / "meta.json").write_text(json.dumps({"class_names": NAMES}))
    (folder / "split.csv").write_text("path,label,split,group\n" + "\n".join(split))
    return SimpleNamespace(run_dir=folder)  # type: ignore[return-value]


def two_runs(folder, *, images, strengths, sureness=(1.0, 1.0), group=""):
    labels = np.random.default_rng(images).integers(0, 3, images)
    for seed, (strength, sure) in enumerate(zip(strengths, sureness, strict=True)):
        noise = np.random.default_rng((seed, images)).normal(size=(images, 3))
        logits = sure * (strength * np.eye(3)[labels] + noise)
        yield run_of(folder / str(seed), softmax(logits, axis=1), labels, group)


def test_being_too_sure_is_no_disadvantage_for_a_temperature_mends_it(tmp_path):
    plain, _ = two_runs(tmp_path / "plain", images=300, strengths=(1.5, 1.5))
    sure, _ = two_runs(tmp_path / "sure", images=300, strengths=(1.5, 1.5), sureness=(4.0, 1.0))
    losses = [calibrated_loss(run) for run in (plain, sure)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)
    logits = np.log([[float(word) for word in line.split(",")[3].split()] for line in lines(plain)])
    labels = [NAMES.index(line.split(",")[1]) for line in lines(plain)]
    grid = [-log_softmax(factor * logits, axis=1)[range(300), labels].mean() for factor in np.arange(0.2, 5, 0.01)]
    assert losses[0] == pytest.approx(min(grid), abs=1e-3)


def lines(run):
    return (run.run_dir / "eval" / "val_predictions.csv").read_text().splitlines()[1:]


def test_of_large_files_of_predictions_the_losses_are_read(tmp_path):
    (tmp_path / "eval").mkdir()
    np.savez(tmp_path / "eval" / "val_predictions.npz", paths=np.array(["a", "b"]), losses=np.array([1.0, 3.0]))
    assert calibrated_loss(SimpleNamespace(run_dir=tmp_path)) == 2.0


def test_the_last_epoch_is_kept_whatever_it_scores(tmp_path):
    result = train(
        RunConfig(
            ModelConfig(name="vit_micro_2"),
            few_digits(labels_per_class=20),
            TrainConfig(epochs=3, lr=0.5, schedule="constant", device="cpu", select="last", seed=5),
            OutputConfig(output_dir=tmp_path, tb="scalars"),
        )
    )
    assert (result.best_epoch, result.val["loss"]) == (3, pytest.approx(result.epochs[-1]["val_loss"]))
    assert result.val["loss"] > min(row["val_loss"] for row in result.epochs[1:])
    assert read_checkpoint(best_of(result.run_dir))["epoch"] == 3


def test_the_last_epoch_cannot_be_waited_for():
    with pytest.raises(OptionError, match="leave out --patience"):
        TrainConfig(select="last", patience=2)
