"""Training from Python: a module, Datasets and handlers of one's own, with checkpoint, resume and TensorBoard."""

import re
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from killed_runs import ROOT, Crash, assert_same_content, crash_after, run_content
from own_objects import Noisy, net, options, splits, tensors
from torch import nn
from torch.utils.data import DataLoader

import vit_train
from common.errors import OptionError, WeightsError
from datasets import DataConfig, DataError, build_dataloaders
from trainers.auto_resume import train_or_resume
from trainers.resume import resume
from trainers.run import train
from trainers.storage.checkpoint_file import load, read_checkpoint
from trainers.storage.run_folder import RunFolder
from vit import ImageSpec


def test_a_module_and_datasets_of_ones_own_train_like_any_run(tmp_path):
    result = train(options(tmp_path, epochs=8, tb="standard"), model=net(), dataloaders=splits())
    assert result.run_dir == tmp_path / "noisy" / "r"
    assert result.val["accuracy"] > 0.8
    assert (result.run_dir / "eval" / "test_predictions.csv").read_text().count("\n") == 19
    best = net()
    best.load_state_dict(read_checkpoint(RunFolder(result.run_dir).checkpoints("best")[0])["model"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return run_content(train(options(folder, save_every=2), model=net(), dataloaders=splits()).run_dir)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stopped_run_goes_on_exactly_though_the_datasets_draw_at_random(tmp_path, whole, workers):
    with pytest.raises(Crash):
        train(options(tmp_path / "cut", save_every=2), model=net(), dataloaders=splits(), handlers=[crash_after(9)])
    loaders = {split: DataLoader(dataset, num_workers=workers) for split, dataset in splits().items()}
    resumed = resume(tmp_path / "cut" / "noisy" / "r", model=net(), dataloaders=loaders)
    assert_same_content(whole, run_content(resumed.run_dir))


def test_a_program_that_is_started_again_takes_up_its_own_run(tmp_path, whole):
    config = options(tmp_path, save_every=2)
    config = replace(config, output=replace(config.output, auto_resume=True))
    with pytest.raises(Crash):
        train_or_resume(config, model=net(), dataloaders=splits(), handlers=[crash_after(9)])
    resumed = train_or_resume(config, model=net(), dataloaders=splits())
    assert resumed.run_dir == tmp_path / "noisy" / "r"
    assert_same_content(whole, run_content(resumed.run_dir))


def test_a_model_by_name_takes_datasets_and_a_module_takes_a_bundle(tmp_path):
    spec = ImageSpec(image_size=8, mean=(0.0,), std=(1.0,), in_channels=1)
    micro = {"name": "vit_micro_2", "image_size": 8, "in_channels": 1}
    result = train(options(tmp_path / "named", model=micro), dataloaders=splits(), spec=spec)
    _model, saved, names = load(result.run_dir)
    assert (saved, names) == (spec, ("0", "1", "2"))
    bundle = build_dataloaders(DataConfig(source="digits", labels_per_class=5, workers=0), spec)
    wide = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    assert train(options(tmp_path / "bundle"), model=wide, dataloaders=bundle, spec=spec).val["accuracy"] > 0.2


def test_what_only_the_program_can_make_again_is_said(tmp_path):
    result = train(options(tmp_path), model=net(), dataloaders=splits())
    with pytest.raises(WeightsError, match="own:Sequential was defined in your own program"):
        load(result.run_dir)
    with pytest.raises(OptionError, match="freeze a module of your own by requires_grad_"):
        train(options(tmp_path, model={"trainable": "head"}), model=net(), dataloaders=splits())


def test_more_labels_than_the_dataset_has_names_are_refused(tmp_path):
    train_set = Noisy(tensors(12, 0))
    train_set.classes = ["dark", "light"]
    with pytest.raises(DataError, match="the train Dataset names 2 classes, and there is a label 2"):
        train(options(tmp_path), model=net(), dataloaders={"train": train_set, "val": tensors(6, 0)})


def narrow(*, num_classes):
    """Has batch norms as ResNet-18 has, and not its checkpoints of 135 MB."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, num_classes),
    )  # fmt: skip


def test_the_page_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).resolve().parent.parent / "docs" / "from_python.md").read_text(encoding="utf-8")
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
def test_a_type_checker_finds_nothing_in_the_first_program_of_the_page_and_in_the_front_door(tmp_path):
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
