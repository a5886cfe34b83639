"""Progress of a comparison, and the time that the rest takes, at the pace of the runs that have ended."""

import time
from collections.abc import Callable, Sequence

from comparison.request.plan import ComparisonPlan
from comparison.request.timing import seconds_of_run
from trainers.reporting import console

Cell = tuple[int, int]
"""Places of a condition and of an arm in the plan."""


class Progress:
    """Count of the runs that have ended, and how long the rest takes."""

    def __init__(
        self, plan: ComparisonPlan, cells: Sequence[Cell], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.plan, self.clock = plan, clock
        self.waiting = sum(plan.runs_of(plan.arms[cell[1]]) * self.expected(cell) for cell in cells)
        """Seconds, or operations, that were expected of the runs that have not ended."""
        self.running: dict[str, tuple[Cell, float]] = {}
        self.done, self.trained, self.seconds = 0, 0.0, 0.0

    def expected(self, cell: Cell) -> float:
        """Return what a run of a cell was measured to take, or the operations that it needs."""
        if self.plan.paces is None:
            return self.plan.work(self.plan.arms[cell[1]], cell[0])
        return seconds_of_run(self.plan, self.plan.paces, cell, first=False)

    def start(self, key: str, cell: Cell) -> None:
        self.running[key] = (cell, self.clock())

    def end(self, key: str, seconds: float | None) -> None:
        """Count a run that has ended; `seconds` None: it was there, or diverged."""
        cell, _ = self.running.pop(key)
        self.done += 1
        self.waiting -= self.expected(cell)
        if seconds is not None:
            self.trained += self.expected(cell)
            self.seconds += seconds

    def left(self) -> float:
        """Estimate the seconds until the last run ends; 0 before the first one has."""
        if not self.trained:
            return 0.0
        now, pace, not_begun, running = self.clock(), self.seconds / self.trained, self.waiting, [0.0]
        for cell, began in self.running.values():
            not_begun -= self.expected(cell)
            running.append(max(0.0, pace * self.expected(cell) - (now - began)))
        return max(*running, (pace * not_begun + sum(running)) / self.plan.sharing.jobs)

    def __str__(self) -> str:
        return f"{self.done} of {self.plan.number_of_runs} runs done, at work: {', '.join([*self.running])}"

    def left_in_words(self) -> str:
        """Say how long the rest takes; empty where that is not known, or nothing is left."""
        return console.duration(left) if (left := self.left()) and self.done < self.plan.number_of_runs else ""
