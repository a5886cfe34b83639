"""`compare --minutes` rehearsed: plans of 200 to 20,000 images, and their runs, on a clock that a test moves."""

import heapq
from pathlib import Path
from types import SimpleNamespace

import pytest

from common.errors import OptionError
from comparison import timing
from comparison.plan import ComparisonPlan, PlannedArm
from comparison.timing import HEAD, REPORT, Clock, enough, has_enough, within
from trainers.budget.named import suited
from trainers.budget.pace import Cost, Pace
from trainers.config import RunConfig, TrainConfig
from trainers.multirun.runs import Planned
from trainers.multirun.sharing import Sharing
from trainers.options import defaults
from vit.config import ModelConfig

STEP, SCORE, ON_FEATURES = Cost(0.035, 0.0055), Cost(0.01, 0.0012), Cost(0.0, 1.5e-5)
ARMS = [
    ({"name": "vit_stem_16", "weights": "none"}, STEP, SCORE, 0.0004),
    ({"name": "vit_stem_16", "weights": "tiny_imagenet"}, STEP, SCORE, 0.0004),
    ({"name": "efficientnet_lite0", "weights": "x", "trainable": "head"}, ON_FEATURES, ON_FEATURES, 0.0052),
    ({"name": "efficientnet_lite2", "weights": "x", "trainable": "head"}, ON_FEATURES, ON_FEATURES, 0.0065),
    ({"name": "efficientnet_lite0", "weights": "x", "trainable": "last:3"}, Cost(0.037, 0.0139), SCORE, 0.0007),
]
"""The arms of a folder of photographs, with seconds of a step, of a score and of an image's first reading (EPYC)."""
STARTED = 8.0
"""Seconds until the plan is made."""


def planned(images, minutes):
    """Plan so many images for two jobs."""
    sizes = {"train": images * 7 // 10, "val": images * 3 // 20, "test": images * 3 // 20}
    arms = []
    for model, training, scoring, decoding in ARMS:
        config = suited(RunConfig(ModelConfig(**model), train=TrainConfig(seed=0)))
        pace = Pace(training, scoring, decoding, 6.0, 32, sizes)
        arms.append(PlannedArm(f"{config.model}", "", config, config, 1, pace))
    usual = defaults.default_epochs(60_000, 40, train_images=sizes["train"])
    request = SimpleNamespace(labels=(None,), seeds=3, tune_lr="auto", minutes=minutes, optional=3, base=RunConfig())
    plan = ComparisonPlan(
        request=request, opened=None, split=SimpleNamespace(size=sizes.get), arms=tuple(arms),
        train_images=(sizes["train"],), usual_epochs=(usual,), epochs=((usual,) * len(arms),), number_of_seeds=3,
        select="loss", sharing=Sharing(2, None), slurm=None, seen=[], folder=Path(), continued=False, until=None,
        grid=(5e-5, 2e-4, 1e-3),
    )  # fmt: skip
    return within(plan, 60 * minutes - STARTED - REPORT)


class Rehearsal:
    """Runs a plan where everything takes `slower` times as long as measured."""

    def __init__(self, plan, *, slower, monkeypatch):
        self.plan, self.slower, self.now = plan, slower, STARTED
        monkeypatch.setattr(timing.time, "monotonic", lambda: self.now)
        self.clock = Clock(plan.sharing.jobs, 60 * plan.request.minutes - REPORT)
        self.trained, self.known, self.left = [], set(), []

    def run(self):
        """Return the second at which all has ended."""
        at_once = self.plan.number_of_runs - len(self.plan.searched) * (self.plan.number_of_seeds - 1)
        for begin, end in ((0, at_once), (at_once, self.plan.number_of_runs)):
            self.side_by_side(begin, end)
        self.off = [abs(said - (self.now - then)) / max(self.now - then, 15.0) for then, said in self.left[2:]]
        return self.now + REPORT * self.slower

    def side_by_side(self, begin, end):
        seconds, running, free = self.plan.seconds, [], [self.now] * self.plan.sharing.jobs
        self.clock.expect({str(number): seconds[number] for number in range(begin, end)}, seconds[end:])
        for number in range(begin, end):
            begins = heapq.heappop(free)
            self.finish(running, begins)
            self.now = begins
            ends = self.end_of(str(number), self.plan.order[number])
            heapq.heappush(running, (ends, str(number)))
            heapq.heappush(free, ends)
        self.finish(running, max(free))

    def end_of(self, name, cell):
        """A fitted head takes what it takes; all else ends in time, but for what cannot be left out."""
        arm, is_first = self.plan.arms[cell[1]], cell not in self.known
        until = self.clock.begin(Planned(name, RunConfig())).until
        features = arm.pace.first_reading if arm.keeps_features else arm.pace.scored("train")
        least = arm.pace.fixed + HEAD * (arm.start_head in ("fit", "probe"))
        least += is_first * features * (arm.start_head == "probe") - (not is_first) * features * arm.keeps_features
        self.known.add(cell)
        if arm.start_head == "fit":
            return self.now + self.slower * least
        self.trained.append(max(until - self.now, self.slower * least))
        return self.now + self.trained[-1]

    def finish(self, running, until):
        while running and running[0][0] <= until:
            self.now, name = heapq.heappop(running)
            self.clock.end(name)
            self.left.append((self.now, self.clock.left))


@pytest.mark.parametrize("slower", [0.7, 1.0, 2.0])
@pytest.mark.parametrize("minutes", [1, 2, 3, 5, 10, 15, 30])
@pytest.mark.parametrize("images", [200, 2000, 20_000])
def test_comparison_ends_in_its_minutes(images, minutes, slower, monkeypatch):
    """All runs that train have the same time, whatever heads and seeds there are, while the machine keeps its pace."""
    try:
        plan = planned(images, minutes)
    except OptionError:
        assert (images, minutes < 3) == (20_000, True)
        return
    rehearsal = Rehearsal(plan, slower=slower, monkeypatch=monkeypatch)
    assert abs(rehearsal.run() - 60 * minutes) <= max(10, 3 * minutes)
    assert max(rehearsal.off, default=0) <= 1 / 3
    assert max(rehearsal.trained) / min(rehearsal.trained) <= (1.02 if slower == 1 else 1.25)


@pytest.mark.parametrize("images", [200, 2000, 20_000])
def test_more_minutes_hold_more(images):
    """Models come back, then seeds, then learning rates; passes are never fewer than what most can be learnt in."""
    held = []
    for minutes in (3, 5, 10, 15, 30, 120):
        plan = planned(images, minutes)
        held.append((len(plan.arms), bool(plan.grid), plan.number_of_seeds))
        assert has_enough(plan) or held[-1] == (2, False, 1)
        assert all(plan.passes(cell) >= min(1, enough(plan, cell)) for cell in plan.trained)
    assert held == sorted(held)
    assert held[-1] == (5, True, 3)
