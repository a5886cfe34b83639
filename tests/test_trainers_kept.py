"""The epoch that a run keeps."""

import pytest
from small_run import few_digits

from common.errors import OptionError
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.run import train
from trainers.storage.checkpoint_file import best_of, read_checkpoint
from vit.config import ModelConfig


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
