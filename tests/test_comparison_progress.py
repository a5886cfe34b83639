"""The time left of a comparison: right within a factor of two as soon as each arm has had a run."""

from __future__ import annotations

import heapq
from types import SimpleNamespace

import pytest

from comparison.train_arms import Progress

CELLS = [(place, arm) for place in range(2) for arm in range(3)]
RUNS = 5


def true_seconds(cell) -> float:
    place, arm = cell
    return 8 + (arm + 1) * (4, 9)[place]


def course(jobs: int, slower: float):
    """(left as printed, left in truth, arms seen) after each run."""
    work = {cell: 1e12 * (cell[1] + 1) * (4, 9)[cell[0]] for cell in CELLS}
    plan = SimpleNamespace(
        all_work=RUNS * sum(work.values()), number_of_runs=RUNS * len(CELLS), work=work.__getitem__, until=None,
        sharing=SimpleNamespace(jobs=jobs),
    )  # fmt: skip
    progress, now, seen, said = Progress(plan), 0.0, set(), []
    waiting, running = [cell for _ in range(RUNS) for cell in CELLS], []
    while waiting or running:
        while waiting and len(running) < jobs:
            cell = waiting.pop(0)
            heapq.heappush(running, (now + slower * true_seconds(cell), now, cell))
        now, began, cell = heapq.heappop(running)
        task = SimpleNamespace(cell=cell, key="compare/arm/all/s0")
        progress.end(task, (SimpleNamespace(val={"accuracy": 0.5}), True, now - began))
        seen.add(cell[1])
        said.append((progress.left(), now, len(seen)))
    return [(left, now - then, arms) for left, then, arms in said]


@pytest.mark.parametrize(("jobs", "slower"), [(1, 3.0), (3, 1.0)])
def test_the_time_left_is_right_within_a_factor_of_two_once_each_arm_has_had_a_run(jobs, slower):
    judged = [(said, true) for said, true, arms in course(jobs, slower) if arms == 3 and true > slower * 35]
    assert len(judged) > 15
    assert all(true / 2 <= said <= 2 * true for said, true in judged)


def test_a_line_says_which_run_ended_its_score_and_that_another_diverged(capsys):
    plan = SimpleNamespace(
        all_work=3.0, number_of_runs=3, work=lambda _: 1.0, until=None, sharing=SimpleNamespace(jobs=1)
    )
    progress, result = Progress(plan), SimpleNamespace(val={"accuracy": 0.5})
    for name, done in (("s0", (result, True, 60.0)), ("s1", (None, True, 1.0)), ("s2", (result, False, 0.0))):
        progress.end(SimpleNamespace(cell=(0, 0), key=f"compare/pretrained/10/{name}"), done)
    _, first, second, third = capsys.readouterr().out.splitlines()
    assert {"1/3", "50.0%", "pretrained/10/s0"} <= {*first.split()}
    assert "diverged" in second
    assert "done" in third
