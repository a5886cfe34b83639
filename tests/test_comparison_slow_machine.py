"""`compare --minutes` whose first runs are slower than measured: all runs start over with fewer epochs, at once."""

from __future__ import annotations

import json
import pickle
import re
from contextlib import suppress
from types import SimpleNamespace

import pytest
from fake_sets import class_folders
from ignite.engine import Engine
from small_run import call

from comparison.request import timing
from comparison.training import slow_machine
from comparison.training.slow_machine import SlowMachine, Watch
from trainers.budget.pace import Pace, measure

MEASURED = Pace(step=1.0, steps_per_epoch=10, validation=2.0, decoding=5.0, conclusion=1.0)


def steps_taken(seconds_of, *, steps=40, on_features=False) -> int:
    """How many steps a run takes until it is stopped, or all of them."""
    clock = [0.0]
    trainer = Engine(lambda engine, batch: clock.__setitem__(0, clock[0] + seconds_of(engine.state.iteration)))
    setup = SimpleNamespace(steps_per_epoch=10, total_steps=steps, on_features=on_features)
    Watch(SimpleNamespace(trainer=trainer, setup=setup), pace=MEASURED, clock=lambda: clock[0])
    with suppress(SlowMachine):
        trainer.run(range(10), max_epochs=steps // 10)
    return trainer.state.iteration


@pytest.mark.parametrize(
    ("seconds_of", "steps"),
    [
        (lambda step: 1.0, 40),
        (lambda step: 1.5 if step <= 10 else 1.0, 40),  # it reads its images in the first epoch
        (lambda step: 60.0 if step == 1 else 1.0, 40),  # the first step is slower everywhere
        (lambda step: 3.0, 6),
        (lambda step: 0.5, 40),
    ],
    ids=["as measured", "reading", "first step", "three times as slow", "quicker"],
)
def test_a_run_is_stopped_at_its_start_where_it_is_much_slower_than_measured(seconds_of, steps):
    assert steps_taken(seconds_of) == steps


def test_a_run_that_is_half_done_or_trains_on_features_is_not_stopped():
    assert steps_taken(lambda step: 3.0, steps=10) == 10
    assert steps_taken(lambda step: 3.0, on_features=True) == 40


def test_what_a_run_elsewhere_raises_comes_back_as_it_was():
    assert pickle.loads(pickle.dumps(SlowMachine(2.5))).ratio == 2.5


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_all_runs_start_over_with_equal_and_fewer_epochs(tmp_path, capsys, monkeypatch, jobs):
    """Two of six runs took the three minutes that all six were to take."""

    def much_too_quick(setup) -> Pace:
        found = measure(setup, seconds=0.2)
        return Pace(found.step / 30, found.steps_per_epoch, found.validation / 30, 0.0, 0.0)

    monkeypatch.setattr(timing, "measure", much_too_quick)
    monkeypatch.setattr("trainers.budget.pace.PICTURES_AND_FILES", 0.1)
    for module in (timing, slow_machine):
        monkeypatch.setattr(module, "REPORT", 2.0)
    data = class_folders(tmp_path / "pets", {f"{split}/{name}": 30 for split in ("train", "val") for name in "ab"})
    words = "--arms vit_nano_8 vit_nano_8,pool=mean --minutes 1 --tune-lr off --seeds 2 --image-size 16 --batch-size 8"
    words += f" --workers 0 --device cpu --tb scalars --threads 1 --jobs {jobs}"
    code, out, err = call(capsys, "compare", "--data", data, *words.split(), "--output-dir", tmp_path / "runs")
    assert code == 0, err
    said = re.search(r"times as slow as measured: all runs start over with ([\d.]+) epochs in place of ([\d.]+)", out)
    assert float(said[1]) < float(said[2]) / 2
    configs = [json.loads(path.read_text()) for path in (tmp_path / "runs").rglob("config.json")]
    epochs = {config["train"]["epochs"] for config in configs}
    assert len(epochs) == 1
    assert epochs.pop() <= float(said[1])
    assert len(configs) in (2, 4)  # a seed may have been left out
