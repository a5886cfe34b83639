"""Training from Python: a module, Datasets and handlers of one's own, with checkpoint, resume and TensorBoard."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pandas as pd
import pytest
import torch
from ignite.engine import Events
from ignite.handlers import EarlyStopping
from killed_runs import ROOT, Crash, assert_same_content, crash_after, run_content
from own_objects import Noisy, net, options, splits, tensors
from small_images import image_folder
from torch import nn
from torch.utils.data import DataLoader, random_split
from torchvision.datasets import ImageFolder
from torchvision.transforms import ToTensor

import vit_train
from common.errors import OptionError, WeightsError
from datasets import DataConfig, DataError, build_dataloaders
from trainers.auto_resume import train_or_resume
from trainers.config import RunConfig
from trainers.resume import resume
from trainers.run import train
from trainers.storage.checkpoint_file import best_of, load, read_checkpoint
from trainers.storage.run_folder import RunFolder, read_json
from trainers.storage.run_result import RunResult, read_result
from vit import ImageSpec


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    return train(options(folder, epochs=8, tb="standard"), model=net(), dataloaders=splits())


def test_own_module_and_datasets_train(trained):
    assert trained.run_dir.parts[-2:] == ("noisy", "r")
    assert trained.val["accuracy"] > 0.8
    assert (trained.run_dir / "eval" / "test_predictions.csv").read_text().count("\n") == 19
    net().load_state_dict(read_checkpoint(best_of(trained.run_dir))["model"])
    chosen = read_json(trained.run_dir / "config.json")["train"]  # not the options of ViTs
    assert (chosen["label_smoothing"], chosen["weight_decay"], chosen["amp"]) == (0.0, 0.01, "off")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return run_content(train(options(folder, save_every=2), model=net(), dataloaders=splits()).run_dir)


@pytest.mark.parametrize("workers", [0, 2])
def test_stopped_run_of_own_datasets_goes_on_exactly(tmp_path, whole, workers):
    with pytest.raises(Crash):
        train(options(tmp_path / "cut", save_every=2), model=net(), dataloaders=splits(), handlers=[crash_after(9)])
    loaders = {split: DataLoader(dataset, num_workers=workers) for split, dataset in splits().items()}
    resumed = resume(tmp_path / "cut" / "noisy" / "r", model=net(), dataloaders=loaders)
    assert_same_content(whole, run_content(resumed.run_dir))


def test_program_started_again_takes_up_its_run(tmp_path, whole):
    config = options(tmp_path, save_every=2).changed(output={"auto_resume": True})
    with pytest.raises(Crash):
        train_or_resume(config, model=net(), dataloaders=splits(), handlers=[crash_after(9)])
    resumed = train_or_resume(config, model=net(), dataloaders=splits())
    assert resumed.run_dir == tmp_path / "noisy" / "r"
    assert_same_content(whole, run_content(resumed.run_dir))


def test_named_model_or_own_module_takes_images(tmp_path):
    spec = ImageSpec(image_size=8, mean=(0.0,), std=(1.0,), in_channels=1)
    micro = {"name": "vit_micro_2", "image_size": 8, "in_channels": 1}
    result = train(options(tmp_path / "named", model=micro), dataloaders=splits(), spec=spec)
    _model, saved, names = load(result.run_dir)
    assert (saved, names) == (spec, ("0", "1", "2"))
    bundle = build_dataloaders(DataConfig(source="digits", labels_per_class=5, workers=0), spec)
    wide = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    assert train(options(tmp_path / "bundle"), model=wide, dataloaders=bundle, spec=spec).val["accuracy"] > 0.2


def test_what_only_the_program_can_make_again_is_said(trained, tmp_path):
    with pytest.raises(WeightsError, match="own:Sequential was defined in your own program"):
        load(trained.run_dir)
    with pytest.raises(OptionError, match="freeze a module of your own by requires_grad_"):
        train(options(tmp_path, model={"trainable": "head"}), model=net(), dataloaders=splits())


def test_more_labels_than_names_are_refused(tmp_path):
    train_set = Noisy(tensors(12, 0))
    train_set.classes = ["dark", "light"]
    with pytest.raises(DataError, match="the train Dataset names 2 classes, and there is a label 2"):
        train(options(tmp_path), model=net(), dataloaders={"train": train_set, "val": tensors(6, 0)})


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


def narrow(*, num_classes):
    """Has batch norms as ResNet-18 has, and not its checkpoints of 135 MB."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, num_classes),
    )  # fmt: skip


def test_the_page_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs" / "from_python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 8
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("trainers.reporting.pictures.draw_best", lambda *_, **__: None)  # which takes most of the time
    monkeypatch.setattr("torchvision.models.resnet18", narrow)
    exec("\n".join(blocks), {"__name__": "page"})
    out = capsys.readouterr().out
    assert "4 steps" in out
    (metrics,) = (tmp_path / "runs").glob("*/my_schedule/metrics.csv")
    assert pd.read_csv(metrics)["lr"].iloc[-1] == pytest.approx(0.00775)  # three quarters of the way up
    assert {path.name for path in (tmp_path / "runs").glob("*/[!.]*")} == {"mine", "watched", "my_schedule"}


@pytest.mark.slow
def test_type_checker_accepts_page_and_front_door(tmp_path):
    page = (ROOT / "docs" / "from_python.md").read_text()
    program = re.search(r"\$ cat digits.py\n(.*?)\n    \$ ", page, re.DOTALL)[1]
    (tmp_path / "digits.py").write_text(textwrap.dedent(program))
    names = ", ".join(sorted({*vit_train.__all__}))
    (tmp_path / "door.py").write_text(f"from vit_train import {names}\n\nprint(train(RunConfig()), {names})\n")
    words = ["--strict", "--follow-imports=silent", "--ignore-missing-imports", "--cache-dir", tmp_path / "cache"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words, tmp_path / "digits.py", tmp_path / "door.py"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
