"""The loss by which a plan keeps one of two runs, and the epoch that a run keeps without luck."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import log_softmax, softmax
from small_run import META, few_digits

from common.errors import OptionError
from trainers.budget.named import calibrated_loss
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.run import train
from trainers.storage.checkpoint_file import best_of, read_checkpoint
from vit.config import ModelConfig

NAMES = ["10", "2", "9"]
"""Of classes, in an order that is not that of their text."""


def run_of(folder, logits, labels) -> SimpleNamespace:
    (folder / "eval").mkdir(parents=True)
    said = [" ".join(map(str, of_image)) for of_image in softmax(logits, axis=1)]
    rows = [f"{n}.png,{NAMES[label]},2,{said[n]}" for n, label in enumerate(labels)]
    (folder / "eval" / "val_predictions.csv").write_text("path,label,predicted,probabilities\n" + "\n".join(rows))
    (folder / "meta.json").write_text(json.dumps(META | {"class_names": NAMES}))
    return SimpleNamespace(run_dir=folder)


def test_being_too_sure_is_no_disadvantage_for_a_temperature_mends_it(tmp_path):
    random = np.random.default_rng(0)
    labels = np.sort(random.integers(0, 3, 300))
    logits = 1.5 * np.eye(3)[labels] + random.normal(size=(300, 3))
    plain, sure = (calibrated_loss(run_of(tmp_path / str(sureness), sureness * logits, labels)) for sureness in (1, 4))
    assert plain == pytest.approx(sure, abs=1e-3)
    grid = [-log_softmax(factor * logits, axis=1)[range(300), labels].mean() for factor in np.arange(0.2, 5, 0.01)]
    assert plain == pytest.approx(min(grid), abs=1e-3)


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
