"""The time left of a comparison: right within a factor of two as soon as each arm has had a run, whatever the load."""

from __future__ import annotations

import heapq
from types import SimpleNamespace

import pytest

from comparison.training.progress import Progress
from trainers.budget.pace import Pace
from trainers.config import RunConfig


def pace(step: float) -> Pace:
    return Pace(step=step, steps_per_epoch=10, validation=step, decoding=5 * step, conclusion=step)


def plan_of(steps, *, images=(100, 900), runs=5, jobs=2, epochs=(40, 10), measured=True):
    """A comparison of arms whose steps were measured to take so many seconds."""
    arms = [SimpleNamespace(resolved=RunConfig(), number=number) for number in range(len(steps))]
    return SimpleNamespace(
        arms=arms,
        train_images=list(images),
        epochs=list(epochs),
        paces=[pace(step) for step in steps] if measured else None,
        runs_of=lambda arm: runs,
        number_of_runs=runs * len(steps) * len(images),
        work=lambda arm, place: 1e12 * steps[arm.number] * epochs[place] * images[place] / 1000,
        sharing=SimpleNamespace(jobs=jobs),
    )


def course_of(plan, seconds_of):
    """(left as said, left in truth, arms seen) after each run; `seconds_of(cell, began)` is what a run takes."""
    clock = [0.0]
    cells = [(place, arm) for place in range(len(plan.train_images)) for arm in range(len(plan.arms))]
    progress = Progress(plan, cells, clock=lambda: clock[0])
    waiting = iter([(cell, f"{cell} {run}") for run in range(plan.runs_of(None)) for cell in cells])
    running, said, seen = [], [], set()
    while True:
        while len(running) < plan.sharing.jobs and (task := next(waiting, None)) is not None:
            cell, key = task
            progress.start(key, cell)
            heapq.heappush(running, (clock[0] + seconds_of(cell, clock[0]), key, cell, clock[0]))
        if not running:
            break
        end, key, cell, began = heapq.heappop(running)
        clock[0] = end
        progress.end(key, end - began)
        seen.add(cell[1])
        said.append((progress.left(), end, len(seen)))
    return [(left, clock[0] - now, arms) for left, now, arms in said]


def true_seconds(plan, cell):
    place, arm = cell
    share = plan.train_images[place] / max(plan.train_images)
    return 8 + 0.1 * (arm + 1) * 10 * plan.epochs[place] * share


@pytest.mark.parametrize("jobs", [1, 2, 3])
@pytest.mark.parametrize("measured", [True, False])
@pytest.mark.parametrize("slower", [1.0, 3.0], ids=["as measured", "a slow machine"])
def test_the_time_left_is_right_within_a_factor_of_two_once_each_arm_has_had_a_run(jobs, measured, slower):
    """`about 29 min left`, then 14, 12, 6, 3 and 2, while five minutes remained."""
    plan = plan_of((0.1, 0.2, 0.3), jobs=jobs, measured=measured)
    course = course_of(plan, lambda cell, began: slower * true_seconds(plan, cell))
    judged = [(said, true) for said, true, arms in course if arms == 3 and true > 5]
    assert len(judged) > 20
    assert all(true / 2 <= said <= 2 * true for said, true in judged)
