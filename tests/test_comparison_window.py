"""The window on a comparison: short names that differ at their beginning, and the columns of HPARAMS."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from small_comparison import arm_of
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from comparison.analysis.runs import Arm, Condition
from comparison.reporting.events import write_events
from comparison.reporting.window import METRICS, SHOWN, finish_window, open_window, run_links, window_of
from trainers.config import OutputConfig
from trainers.reporting.tensorboard import RunLoggers, finish_hparams, start_hparams

ARMS = ("vit_micro_2 from scratch", "vit_micro_2 pretrained")


@pytest.fixture
def compared(tmp_path) -> tuple[Path, OutputConfig, list[Condition]]:
    """Two arms with two runs each, with events as runs write them, and a verdict."""
    folder = tmp_path / "runs" / "pets" / "compare"
    arms = [arm_of(folder, name, np.ones((2, 4), bool), [0, 1, 2, 0]) for name in ARMS]
    for arm in arms:
        for run in arm.runs:
            values = {"weights": arm.name, "seed": run.seed, "lr": 0.1 + run.seed, "pool": "cls"}
            with RunLoggers(run.run_dir / "tb") as loggers:
                start_hparams(loggers, values, name=run.run_dir.name)
                finish_hparams(loggers, {"seconds": 2.0, "test_accuracy": 0.5 + run.seed / 4}, 1)
    condition = Condition(None, tuple(Arm(arm.name, arm.runs) for arm in arms))
    write_events(folder / "verdict", "a tie", [], [SimpleNamespace(condition=condition)])
    return folder, OutputConfig(output_dir=tmp_path / "runs"), [condition]


def rows_of(window: Path) -> set[str]:
    """What TensorBoard's sidebar lists: every folder with events, links followed."""
    found = os.walk(window, followlinks=True)
    return {os.path.relpath(root, window) for root, _, files in found if any("tfevents" in name for name in files)}


def test_names_begin_with_what_differs_and_tell_all_apart_in_their_first_letters():
    runs = {(arm, labels, seed): Path(f"r{arm}{labels}{seed}") for arm in (0, 1) for labels in "25" for seed in (0, 1)}
    names = list(run_links(ARMS, runs))
    assert names[:2] == ["scratch 2 s0 train", "scratch 2 s0 val"]
    assert len({name[:10].split()[0] for name in names}) == 2  # the arm, of the first ten letters
    assert len(names) == len(set(names)) == 16
    assert all("/" not in name and len(name) <= 30 for name in names)


def test_labels_are_named_only_where_they_differ():
    assert [*run_links(ARMS, {(1, "all", 3): Path("r")})] == ["pretrained s3 train", "pretrained s3 val"]


def test_the_window_has_a_row_for_every_run_and_every_mean_and_one_for_the_verdict(compared):
    window = finish_window(*compared)
    assert window == window_of(*compared[:2]) == compared[1].output_dir / "tensorboard" / "pets" / "compare"
    runs = {f"{arm} s{s} {split}" for arm in ("scratch", "pretrained") for s in (0, 1) for split in ("train", "val")}
    assert rows_of(window) == runs | {"scratch mean of 2", "pretrained mean of 2", "verdict"}
    beside = rows_of(compared[0].parent)
    assert not any("tensorboard" in row for row in beside)  # on runs/<data> nothing is shown twice


def test_links_come_before_their_runs_and_are_right_after_a_move(compared, tmp_path):
    folder, output, _ = compared
    later = folder / "later" / "tb"
    window = open_window(folder, output, {"later s0 val": later / "val"})
    assert rows_of(window) == set()
    with RunLoggers(later):
        pass
    assert rows_of(window) == {"later s0 val"}
    shutil.move(output.output_dir, tmp_path / "moved")
    assert rows_of(tmp_path / "moved" / "tensorboard" / "pets" / "compare") == {"later s0 val"}


def test_where_the_system_makes_no_links_tensorboard_is_pointed_at_the_comparison(compared, monkeypatch):
    def refuse(*_, **__):
        raise OSError("a required privilege is not held by the client")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    assert finish_window(*compared) == compared[0]
    assert open_window(*compared[:2], {"x": compared[0]}) == compared[0]
    assert not [*(compared[1].output_dir / "tensorboard").rglob("*compare*")]


def test_hparams_shows_the_options_that_tell_runs_apart_and_the_results_first(compared):
    window = finish_window(*compared)
    content = EventAccumulator(str(window / "verdict")).Reload().PluginTagToContent("hparams")
    experiment = HParamsPluginData.FromString(content["_hparams_/experiment"]).experiment
    columns = {info.name: info for info in experiment.hparam_infos}
    assert set(columns) == {"weights", "seed", "lr", "pool"}
    assert {name for name, info in columns.items() if info.differs} == {"weights", "seed", "lr"} <= set(SHOWN)
    assert [value.string_value for value in columns["weights"].domain_discrete.values] == sorted(map(str, ARMS))
    interval = columns["lr"].domain_interval
    assert (interval.min_value, interval.max_value) == (0.1, 1.1)
    assert [info.name.tag for info in experiment.metric_infos] == list(METRICS)
    assert [info.display_name for info in experiment.metric_infos][:3] == ["test accuracy", "seconds", "images seen"]
