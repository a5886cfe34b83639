"""Everyday wishes of a program: paths as strings, torchvision's sets, Ignite's handlers, a result to look at."""

from pathlib import Path

import pytest
import torch
from ignite.engine import Events
from ignite.handlers import EarlyStopping
from own_objects import net, options, splits
from small_images import image_folder
from torch import nn
from torch.utils.data import random_split
from torchvision.datasets import ImageFolder
from torchvision.transforms import ToTensor

from datasets.config import DataConfig
from trainers.config import RunConfig
from trainers.resume import resume
from trainers.run import train
from trainers.storage.run_folder import RunFolder, read_json
from trainers.storage.run_result import RunResult, read_result


def test_paths_may_be_strings_everywhere(tmp_path):
    config = options(str(tmp_path / "runs"), epochs=1).changed(data={"root": str(tmp_path / "data")})
    result = train(config, model=net(), dataloaders=splits())
    run = str(result.run_dir)
    assert run == str(tmp_path / "runs" / "noisy" / "r")
    again = resume(run, epochs=2, model=net(), dataloaders=splits())
    assert read_result(RunFolder(Path(run))).val == again.val
    assert RunFolder.find("latest", str(tmp_path / "runs")).path == result.run_dir
    assert DataConfig(source=tmp_path).source == str(tmp_path)


def test_a_random_split_keeps_name_and_classes(tmp_path):
    image_folder(tmp_path / "pets", classes=("ant", "bee"), size=8)
    whole = ImageFolder(str(tmp_path / "pets" / "train"), ToTensor())
    parts = random_split(whole, [8, 4], torch.Generator().manual_seed(0))
    flat = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    result = train(options(tmp_path / "runs", epochs=1), model=flat, dataloaders={"train": parts[0], "val": parts[1]})
    assert result.run_dir.parent.name == "imagefolder"
    predictions = result.predictions("val")
    assert {"p(ant)", "p(bee)"} <= set(predictions)
    assert predictions["label"].tolist() == [whole.classes[whole.targets[row]] for row in parts[1].indices]


def test_ones_own_network_has_no_options_of_vits(tmp_path):
    result = train(options(tmp_path, epochs=1), model=net(), dataloaders=splits())
    chosen = read_json(result.run_dir / "config.json")["train"]
    assert (chosen["label_smoothing"], chosen["weight_decay"], chosen["amp"]) == (0.0, 0.01, "off")


def test_a_handler_reaches_everything_by_one_name(tmp_path):
    """Ignite's own example: EarlyStopping on the evaluator, by the validation loss; its end is said and kept."""
    reached = []

    def attach(trainer):
        run = trainer.state.run
        stopping = EarlyStopping(patience=1, score_function=lambda engine: 0.0, trainer=trainer)
        run.evaluator.add_event_handler(Events.COMPLETED, stopping)
        trainer.add_event_handler(
            Events.EPOCH_COMPLETED,
            lambda: reached.append((run.evaluator.state.metrics["accuracy"], run.history[-1]["val_accuracy"])),
        )
        assert run.trainer is trainer
        assert run.optimizer is run.setup.optimizer
        assert run.setup.data.class_names == ("0", "1", "2")

    result = train(options(tmp_path, epochs=8), model=net(), dataloaders=splits(), handlers=[attach])
    assert reached
    assert all(evaluated == kept for evaluated, kept in reached)
    summary = read_json(result.run_dir / "summary.json")
    assert (summary["status"], summary["planned_epochs"]) == ("finished", 8)
    assert summary["epochs"] < 8
    assert summary["stopped"] == f"a handler of your own ended the run after {summary['epochs']} of 8 epochs"


@pytest.mark.parametrize("event", [Events.ITERATION_STARTED, Events.EPOCH_COMPLETED])
def test_the_history_has_the_rate_of_the_last_step(tmp_path, event):
    used = []

    def attach(trainer):
        optimizer = trainer.state.run.optimizer

        def scale():
            for group in optimizer.param_groups:
                group["lr"] *= 0.9

        trainer.add_event_handler(event, scale)
        trainer.add_event_handler(Events.ITERATION_STARTED, lambda: used.append(optimizer.param_groups[0]["lr"]))

    result = train(options(tmp_path, epochs=2), model=net(), dataloaders=splits(), handlers=[attach])
    assert [row["lr"] for row in result.epochs[1:]] == [used[row["step"] - 1] for row in result.epochs[1:]]


def test_a_result_is_short_in_a_shell_and_is_drawn(tmp_path):
    rows = [{"epoch": 0, "val_loss": 1.1, "val_accuracy": 0.3}, {"epoch": 1, "val_loss": 0.7, "val_accuracy": 0.8}]
    val, test = {"accuracy": 0.8, "loss": 0.7}, {"accuracy": 0.75, "loss": 0.8}
    result = RunResult(tmp_path / "run", 1, val, test, rows, config=RunConfig())
    assert len(repr(result).splitlines()) == 1
    assert result.scores.loc["test", "accuracy"] == 0.75
    loss, _ = result.plot().axes
    assert [line.get_xydata().tolist() for line in loss.lines if line.get_label() == "val"] == [[[0, 1.1], [1, 0.7]]]
