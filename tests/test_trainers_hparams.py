"""The HPARAMS tab: a row for each run, with its own metrics. TensorBoard averages runs whose rows have one name."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_sets import class_folders
from small_run import few_digits
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

import main
from trainers import run_start
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.reporting.tensorboard import RunLoggers, row_name, start_hparams
from trainers.run import train


def rows_shown(folder: Path) -> dict[str, list[float]]:
    """The rows that TensorBoard started on this folder shows: of each name the test accuracies of its runs."""
    rows: dict[str, list[float]] = {}
    for file in sorted(folder.rglob("tb/val/events.out.tfevents.*")):
        events = EventAccumulator(str(file)).Reload()
        content = events.PluginTagToContent("hparams")["_hparams_/session_start_info"]
        name = HParamsPluginData.FromString(content).session_start_info.group_name
        rows.setdefault(name, []).append(events.Scalars("hparam/test_accuracy")[-1].value)
    return rows


def test_a_row_is_called_by_the_path_below_the_log_folder_arm_first():
    folder = Path("runs/digits")
    assert row_name(folder / "vit_micro_2_s0", folder) == "vit_micro_2_s0 · runs/digits"
    assert row_name(folder / "compare/from_scratch/10/s0", folder) == "from_scratch/10/s0 · runs/digits/compare"
    assert row_name(Path("/moved/away/r"), folder) == "r · /moved/away"


def test_numbers_are_numbers_in_a_row_whole_ones_too(tmp_path):
    """Ten epochs came before two."""
    with RunLoggers(tmp_path) as loggers:
        start_hparams(loggers, {"epochs": 2, "lr": 0.5, "compile": True, "model": "m", "none": None}, name="r")
    (file,) = tmp_path.glob("val/events.out.tfevents.*")
    content = EventAccumulator(str(file)).Reload().PluginTagToContent("hparams")["_hparams_/session_start_info"]
    shown = HParamsPluginData.FromString(content).session_start_info.hparams
    values = {name: getattr(value, str(value.WhichOneof("kind"))) for name, value in shown.items()}
    assert values == {"epochs": 2.0, "lr": 0.5, "compile": "True", "model": "m", "none": "None"}
    assert {type(values[name]) for name in ("epochs", "lr")} == {float}


def test_runs_of_one_second_have_rows_of_their_own_with_their_own_accuracy(tmp_path, monkeypatch):
    """The bare command showed 9 rows for 12 runs, one of them the mean of scratch and pretrained."""
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    monkeypatch.setattr(run_start, "datetime", SimpleNamespace(now=lambda zone: now))
    accuracies = []
    for name in ("compare/from_scratch/10/s0", "compare/pretrained/10/s0"):
        config = RunConfig(
            data=few_digits(labels_per_class=2),
            train=TrainConfig(epochs=1, seed=len(accuracies), device="cpu"),
            output=OutputConfig(output_dir=tmp_path, run_name=name, tb="scalars"),
        )
        accuracies.append(train(config).test["accuracy"])
    assert len(set(accuracies)) == 2  # else a mean would not show
    folder = tmp_path / "digits" / "compare"
    shown = rows_shown(folder)
    assert [name.partition(" ")[0] for name in shown] == ["from_scratch/10/s0", "pretrained/10/s0"]
    assert [*shown.values()] == [[pytest.approx(accuracy)] for accuracy in accuracies]


@pytest.mark.slow
def test_a_comparison_has_as_many_rows_as_runs_each_with_its_own_accuracy(tmp_path):
    data = class_folders(tmp_path / "pets", {f"{split}/{name}": 8 for split in ("train", "val") for name in "ab"})
    words = (
        f"compare --data {data} --arms vit_nano_8 vit_nano_8,pool=mean --labels-per-class 4 all --seeds 2 --tune-lr off"
    )
    words += " --epochs 1 --image-size 16 --workers 0 --device cpu --tb scalars --jobs 2"
    assert main.main([*words.split(), "--output-dir", str(tmp_path / "runs")]) == 0
    folder = tmp_path / "runs" / "pets" / "compare"
    runs = {path.parent for path in folder.rglob("config.json")}
    assert len(runs) == 8
    accuracies = {
        f"{run.relative_to(folder)} · {folder}": json.loads((run / "summary.json").read_text())["test"]["accuracy"]
        for run in runs
    }
    shown = rows_shown(folder)
    assert {name: pytest.approx(values) for name, values in shown.items()} == {n: [a] for n, a in accuracies.items()}
