"""Plan the time of a comparison: what runs take, and when each ends.

In so many minutes every run that trains has the same share, in which it takes as many passes over the images as it can;
a fitted head takes what it takes. Where the passes would be few, learning rates are given up first, then seeds, then
models that nobody named (which may leave time for seeds and rates), then passes. Less than one pass is refused.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from common.errors import OptionError
from common.text import pluralise
from comparison.plan import Cell, ComparisonPlan, PlannedArm
from trainers.budget.planned_run import rounded
from trainers.multirun.runs import Planned
from trainers.options import defaults

REPORT = 6.0
"""Seconds for the tables, figures and pages at the end."""
ENOUGH = 0.5
"""Share of a model's usual passes from which on time goes to seeds and learning rates, too."""
HEAD = 2.0
"""Seconds in which a head is fitted to features that are there."""


# What runs take


def with_seconds(plan: ComparisonPlan) -> ComparisonPlan:
    """Return the plan with the seconds of each run; None without measurements."""
    if any(arm.pace is None for arm in plan.arms):
        return replace(plan, seconds=None)
    held_out = {split: plan.split.size(split) for split in ("val", "test")}
    begun: set[Cell] = set()
    seconds = []
    for cell in plan.order:
        arm = plan.arms[cell[1]]
        sizes = {"train": plan.train_images[cell[0]], **held_out}
        seconds.append(seconds_of_run(arm, plan.passes(cell), sizes, is_first=cell not in begun))
        begun.add(cell)
    return replace(plan, seconds=tuple(seconds))


def seconds_of_run(arm: PlannedArm, epochs: float, sizes: Mapping[str, int], *, is_first: bool) -> float:
    """Return the seconds of a run on so many images.

    The first run of a model computes the features that others read."""
    assert arm.pace is not None, "the arm has been measured"
    pace = arm.pace._replace(sizes=sizes)
    head = {"fit": HEAD, "probe": HEAD + pace.scored("train") * is_first}.get(arm.start_head, 0.0)
    saved = 0.0 if is_first or not arm.keeps_features else pace.first_reading
    return pace.seconds(epochs) + head - saved


def makespan(seconds: Sequence[float], jobs: int, busy: Sequence[float] = ()) -> float:
    """Return when runs of so many seconds have ended.

    Each starts as soon as one of the jobs is free. `busy`: the seconds that runs which have started take yet."""
    ends = [*sorted(busy, reverse=True)[: jobs - 1], *[0.0] * jobs][:jobs]
    heapq.heapify(ends)
    for each in seconds:
        heapq.heapreplace(ends, ends[0] + each)
    return max(ends)


def whole_time(plan: ComparisonPlan) -> float:
    """Return the seconds that all runs take; 0: not measured."""
    return makespan(plan.seconds or (), plan.sharing.jobs)


# What so many minutes hold


def within(plan: ComparisonPlan, seconds: float) -> ComparisonPlan:
    """Return the plan that fills so many seconds.

    Raises OptionError: they are too few for a pass of each model."""
    *more, least = (with_share(candidate, seconds) for candidate in candidates(plan))
    found = next((each for each in more if has_enough(each)), least)
    spent = 60 * (plan.request.minutes or 0) - seconds
    slowest = min(found.trained, key=found.passes, default=None)
    if slowest is not None and found.passes(slowest) < 1:
        needed = whole_time(with_passes(found, lambda _: 1.0)) + spent
        raise OptionError(
            f"--minutes {plan.request.minutes:g} is {found.passes(slowest):.2g} of a pass over the images for"
            f" {found.arms[slowest[1]].name}: give {math.ceil(1.1 * needed / 60)} or more, or fewer models or labels"
        )
    for_all = whole_time(with_passes(plan, lambda cell: enough(plan, cell))) + spent
    return replace(found, given_up=tuple(given_up(plan, found)), minutes_for_all=math.ceil(1.1 * for_all / 60))


def candidates(plan: ComparisonPlan) -> Iterator[ComparisonPlan]:
    """Yield all that was asked for, then less and less of it."""
    for arms in range(len(plan.arms), len(plan.arms) - plan.request.optional - 1, -1):
        fewer = plan.with_first(arms)
        if fewer.grid and plan.request.tune_lr == "auto":
            yield fewer
            fewer = replace(fewer, grid=(), why_not_tuned=f"--minutes {plan.request.minutes:g} leaves no time for it")
        for seeds in range(plan.number_of_seeds, 0, -1):
            yield replace(fewer, number_of_seeds=seeds)


def given_up(plan: ComparisonPlan, found: ComparisonPlan) -> Iterator[str]:
    """Yield what the time does not hold."""
    if plan.grid and not found.grid:
        yield "the choice of learning rates"
    if missing := plan.number_of_seeds - found.number_of_seeds:
        yield f"{missing} of {pluralise(plan.number_of_seeds, 'seed')}"
    yield from (arm.name for arm in plan.arms[len(found.arms) :])


def has_enough(plan: ComparisonPlan) -> bool:
    return all(plan.passes(cell) >= enough(plan, cell) for cell in plan.trained)


def enough(plan: ComparisonPlan, cell: Cell) -> float:
    """Return the passes in which a model learns most of what it can."""
    longest = defaults.lookup(plan.arms[cell[1]].resolved).max_epochs
    return ENOUGH * min(longest, plan.usual_epochs[cell[0]])


def with_passes(plan: ComparisonPlan, passes: Callable[[Cell], float]) -> ComparisonPlan:
    """Return the plan in which models that train take so many passes."""
    trained = {*plan.trained}
    epochs = [
        tuple(passes((place, arm)) if (place, arm) in trained else 1.0 for arm in range(len(plan.arms)))
        for place in range(len(plan.epochs))
    ]
    return with_seconds(replace(plan, epochs=tuple(epochs)))


def with_share(plan: ComparisonPlan, seconds: float) -> ComparisonPlan:
    """Return the plan that takes so many seconds, in equal time for models that train.

    Label budgets share the time as their usual passes would."""
    order, trained, usual = plan.order, {*plan.trained}, plan.usual_epochs
    fixed = measured(with_passes(plan, lambda _: 0.0))
    whole = measured(with_passes(plan, lambda cell: usual[cell[0]]))
    longest: dict[int, float] = {}
    for cell, most in zip(order, whole, strict=True):
        if cell in trained:
            longest[cell[0]] = max(most, longest.get(cell[0], 0.0))

    def durations(share: float) -> list[float]:
        return [
            share * longest[cell[0]] / max(longest.values()) if cell in trained else least
            for cell, least in zip(order, fixed, strict=True)
        ]

    low, high = 0.0, seconds
    for _ in range(30):  # to a millionth of the time
        share = (low + high) / 2
        is_in_time = makespan(durations(share), plan.sharing.jobs) <= seconds
        low, high = (share, high) if is_in_time else (low, share)
    found = durations(low)
    passes = {
        cell: usual[cell[0]] * (each - least) / (most - least)
        for cell, each, least, most in zip(order, found, fixed, whole, strict=True)
        if cell in trained
    }
    timed = with_passes(plan, lambda cell: rounded(passes[cell]))
    return replace(timed, seconds=tuple(found))


def measured(plan: ComparisonPlan) -> tuple[float, ...]:
    """Return the seconds of each run."""
    assert plan.seconds is not None, "a plan of minutes has been measured"
    return plan.seconds


class Clock:
    """Gives each run that starts its end, so that all end in time.

    `spare`: time that those before it left over is for those that follow."""

    def __init__(self, jobs: int, until: float, *, spare: bool = True) -> None:
        self.jobs, self.until, self.most = jobs, until, math.inf if spare else 1.0
        self.waiting: dict[str, float] = {}
        self.later: Sequence[float] = ()
        self.running: dict[str, float] = {}

    def expect(self, runs: Mapping[str, float], later: Sequence[float]) -> None:
        """Take the seconds of the next runs by name, and those of later ones."""
        self.waiting, self.later = dict(runs), later

    def begin(self, run: Planned) -> Planned:
        """Return a run with its end."""
        now, seconds = time.monotonic(), self.waiting.pop(run.name)
        busy = [max(0.0, end - now) for end in self.running.values()]
        whole = makespan([seconds, *self.waiting.values(), *self.later], self.jobs, busy)
        scale = min(self.most, max(0.0, self.until - now) / whole)
        self.running[run.name] = end = now + seconds * scale
        return replace(run, until=min(end, self.until))

    def end(self, name: str) -> None:
        self.running.pop(name, None)

    @property
    def left(self) -> float:
        """Seconds until all runs have ended."""
        now = time.monotonic()
        whole = makespan([*self.waiting.values(), *self.later], self.jobs, [end - now for end in self.running.values()])
        return max(0.0, min(self.until - now, self.most * whole)) if whole > 0 else 0.0
