"""`compare --minutes` on a machine that is slower than measured: all arms lose the same, and the end is in time."""

from __future__ import annotations

import heapq
import json
import re
from functools import partial
from types import SimpleNamespace

import pytest
from fake_sets import class_folders
from small_run import call
from test_comparison_progress import pace, true_seconds

from comparison.request import timing
from comparison.request.plan import ComparisonPlan
from comparison.request.protocol import left_out
from comparison.request.timing import REPORT, epochs_within
from comparison.training import slow_machine
from comparison.training.deadline import ComparisonDeadline
from comparison.training.progress import Progress
from trainers.budget.pace import Pace, measure
from trainers.config import RunConfig
from trainers.system import heartbeat

STEPS = (0.1, 0.2, 0.3)


class Pretended(ComparisonPlan):
    """Three arms under one condition, three rates and three seeds: 15 runs, two side by side."""

    def __init__(self, minutes: float) -> None:
        self.request = SimpleNamespace(seeds=3, minutes=minutes, labels=(None,))
        self.until, self.tuned, self.written = 60 * minutes, True, 0
        self.seeds, self.all_rates = range(3), (1e-4, 1e-3, 1e-2)
        self.grid = self.all_rates
        config = SimpleNamespace(train=SimpleNamespace(lr=None))
        self.arms = [SimpleNamespace(resolved=RunConfig(), config=config) for _ in STEPS]
        self.paces, self.sharing = [pace(step) for step in STEPS], SimpleNamespace(jobs=2)
        self.train_images, self.epochs, self.folder = [900], [10.0], None
        self.epochs = epochs_within(self, self.paces, (self.until - REPORT) * 2)

    def write_settled(self, folder) -> None:
        self.written += 1


def course_of(plan: Pretended, slowness: float) -> tuple[float, list[tuple[int, int, float]]]:
    """When the last run ended, and (arm, seed, rate) of each."""
    clock, cells, done = [0.0], [(0, arm) for arm in range(3)], []
    progress = Progress(plan, cells, clock=lambda: clock[0])
    deadline = ComparisonDeadline(plan, progress, until=plan.until, clock=lambda: clock[0])
    tuning = iter([(arm, 0, lr) for lr in plan.order_of_rates for arm in range(3)])
    others = iter([(arm, seed, 1e-3) for seed in (1, 2) for arm in range(3)])

    def begun():
        for tasks in (tuning, others):
            for arm, seed, lr in tasks:
                if seed in plan.seeds and lr in plan.grid:
                    yield arm, seed, lr

    waiting, running = begun(), []
    while True:
        while len(running) < 2 and (task := next(waiting, None)) is not None:
            arm, seed, lr = task
            progress.start(str(task), (0, arm))
            deadline.begun.add((seed, lr))
            takes = slowness * true_seconds(plan, (0, arm))
            heapq.heappush(running, (clock[0] + takes, str(task), task, takes))
        if not running:
            return clock[0] + REPORT, done
        clock[0], key, task, takes = heapq.heappop(running)
        done.append(task)
        progress.end(key, takes)
        deadline.keep()


@pytest.mark.parametrize("slowness", [0.5, 1.0])
def test_nothing_is_left_out_on_a_machine_as_quick_as_measured(slowness, capsys):
    plan = Pretended(10)
    end, done = course_of(plan, slowness)
    assert end <= 1.12 * plan.until
    assert (len(done), plan.written, left_out(plan)) == (15, 0, "")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("slowness", [1.3, 1.5, 2.0, 2.5])
def test_a_comparison_ends_in_time_and_all_arms_lose_the_same(slowness, capsys):
    """`about 4 min for 15 runs` took eleven; train adapts to the load, compare did not."""
    plan = Pretended(10)
    end, done = course_of(plan, slowness)
    assert end <= 1.2 * plan.until
    assert len(done) < 15
    of_arms = [{(seed, lr) for arm, seed, lr in done if arm == number} for number in range(3)]
    assert of_arms[0] == of_arms[1] == of_arms[2]
    assert plan.written >= 1
    assert f"the machine is slower than measured: without {left_out(plan)}" in capsys.readouterr().out


def test_when_half_of_the_time_is_over_it_is_not_waited_for_every_arm():
    """Two of six runs took all of the time that six were to take, and a second seed was begun before the third arm."""
    plan, clock = Pretended(10), [0.0]
    progress = SimpleNamespace(left=lambda: 1e6, expected=SimpleNamespace(ratios={(0, 0): 3.0}))
    deadline = ComparisonDeadline(plan, progress, until=plan.until, clock=lambda: clock[0])
    deadline.begun = {(0, lr) for lr in plan.grid}
    deadline.keep()
    assert len(plan.seeds) == 3
    clock[0] = plan.until / 2
    deadline.keep()
    assert len(plan.seeds) == 1


def test_rates_and_seeds_are_left_out_in_turn_and_one_of_each_stays():
    plan = Pretended(10)
    progress = SimpleNamespace(left=lambda: 1e6, expected=SimpleNamespace(ratios={(0, arm): 1 for arm in range(3)}))
    deadline = ComparisonDeadline(plan, progress, until=0.0)
    deadline.begun = {(0, 1e-3)}
    kept = []
    while deadline.leave_out():
        kept.append((plan.grid, len(plan.seeds)))
    assert kept == [((1e-3, 1e-2), 3), ((1e-3, 1e-2), 2), ((1e-3,), 2), ((1e-3,), 1)]
    assert left_out(plan) == "the learning rates 0.0001 and 0.01 and seeds 1 and 2"


def test_what_has_begun_is_not_left_out():
    plan = Pretended(10)
    deadline = ComparisonDeadline(plan, SimpleNamespace(), until=0.0)
    deadline.begun = {(0, lr) for lr in plan.grid} | {(1, 1e-3), (2, 1e-3)}
    assert not deadline.leave_out()


@pytest.mark.slow
def test_a_comparison_that_turns_out_slower_says_what_it_leaves_out_and_ends_with_a_report(
    tmp_path, capsys, monkeypatch
):
    def ten_times_too_quick(setup) -> Pace:
        found = measure(setup, seconds=0.2)
        return Pace(found.step / 10, found.steps_per_epoch, found.validation / 10, 0.0, 0.0)

    monkeypatch.setattr(timing, "measure", ten_times_too_quick)
    monkeypatch.setattr("trainers.budget.pace.PICTURES_AND_FILES", 0.1)  # of ten runs in half a minute
    monkeypatch.setattr(timing, "REPORT", 2.0)
    monkeypatch.setattr(slow_machine, "SLOWER", 1e9)
    monkeypatch.setattr(heartbeat, "heard", partial(heartbeat.heard, every=0.2))
    data = class_folders(tmp_path / "pets", {f"{split}/{name}": 30 for split in ("train", "val") for name in "ab"})
    words = "--arms vit_nano_8 vit_nano_8,pool=mean --minutes 0.5 --tune-lr on --image-size 16 --batch-size 8"
    words += " --workers 0 --device cpu --tb scalars --threads 1 --jobs 1"
    code, out, err = call(capsys, "compare", "--data", data, *words.split(), "--output-dir", tmp_path / "runs")
    assert code == 0, err
    assert "the machine is slower than measured: without the learning rate" in out
    assert re.search(r"^ +epoch 1, step \d+ of \d+.* \(\d+ s\)$", out, re.MULTILINE)  # no silence
    folder = tmp_path / "runs" / "pets" / "compare"
    settled = json.loads((folder / "compare.json").read_text())
    assert settled["status"] == "finished"
    assert "all arms went without the learning rate" in (folder / "report.html").read_text()
    seeds = [
        {path.parent.name for path in folder.glob(f"{arm}/all/*/config.json")} for arm in ("pool_cls", "pool_mean")
    ]
    assert seeds[0] == seeds[1]
