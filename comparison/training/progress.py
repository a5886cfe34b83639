"""Progress of a comparison, and the time that the rest takes: from the paces measured, and from the runs that have
ended."""

import heapq
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import mean

from comparison.request.plan import ComparisonPlan
from comparison.request.timing import seconds_of_run
from trainers.reporting import console

Cell = tuple[int, int]
"""Places of a condition and of an arm in the plan."""
OPERATIONS_A_SECOND, START = 2e10, 2.0
"""Rough speed, and seconds to start, of a run whose pace was not measured; the runs that end correct it."""
FOLLOWS = 0.5
"""Share by which each run that ends moves the load to where it was then: one alone may have had bad luck."""
AT_LEAST = 0.1
"""Share of its expected seconds that a run is still given, however long it has taken."""


class Expected:
    """Seconds of a run of each cell: before any has ended as the measured pace has it, then in proportion to what its
    own runs took, else those of its arm, else any; and as much longer as the latest runs were slower than expected."""

    def __init__(self, plan: ComparisonPlan) -> None:
        self.plan, self.load = plan, 1.0
        self.ratios: dict[Cell, float] = {}
        """Ratio of the time that the runs of a cell took to what was measured, at a load of 1."""

    def at_first(self, cell: Cell, *, first: bool) -> float:
        """Return the seconds expected before any run has ended; the `first` of a cell may leave features to the
        others."""
        place, number = cell
        if self.plan.paces is None:
            return START + self.plan.work(self.plan.arms[number], place) / OPERATIONS_A_SECOND
        return seconds_of_run(self.plan, self.plan.paces, cell, first=first)

    def note(self, cell: Cell, seconds: float, *, first: bool) -> None:
        ratio = seconds / self.at_first(cell, first=first)
        if cell in self.ratios:
            self.load *= (ratio / self.ratios[cell] / self.load) ** FOLLOWS
        self.ratios[cell] = ratio / self.load

    def seconds(self, cell: Cell, *, first: bool = False) -> float:
        of_arm = [ratio for (_, number), ratio in self.ratios.items() if number == cell[1]]
        ratio = self.ratios.get(cell) or mean(of_arm or self.ratios.values() or [1.0])
        return self.at_first(cell, first=first) * ratio * self.load


class Progress:
    """Count of the runs that have ended, and how long the rest takes."""

    def __init__(
        self, plan: ComparisonPlan, cells: Sequence[Cell], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.plan, self.cells, self.clock, self.began = plan, cells, clock, clock()
        self.expected = Expected(plan)
        self.running: dict[str, tuple[Cell, float, bool]] = {}
        self.begun: Counter[Cell] = Counter()
        self.done = 0

    @property
    def seconds(self) -> float:
        return self.clock() - self.began

    def start(self, key: str, cell: Cell) -> None:
        self.running[key] = (cell, self.clock(), not self.begun[cell])
        self.begun[cell] += 1

    def end(self, key: str, seconds: float | None) -> None:
        """A run has ended; `seconds` None: it was there, or diverged."""
        cell, _, first = self.running.pop(key)
        self.done += 1
        if seconds is not None:
            self.expected.note(cell, seconds, first=first)

    def left(self) -> float:
        """Seconds until the last run of the plan ends."""
        now, running = self.clock(), []
        for cell, began, first in self.running.values():
            whole = self.expected.seconds(cell, first=first)
            running.append(max(whole - (now - began), AT_LEAST * whole))
        waiting = []
        for cell in self.cells:
            runs = self.plan.runs_of(self.plan.arms[cell[1]])
            waiting += [self.expected.seconds(cell)] * (runs - self.begun[cell])
        return makespan(running, waiting, self.plan.sharing.jobs)

    def __str__(self) -> str:
        return f"{self.done} of {self.plan.number_of_runs} runs done, at work: {', '.join([*self.running])}"

    def left_in_words(self) -> str:
        """Say how long the rest takes; empty where that is not known, or nothing is left."""
        known = self.expected.ratios and self.done < self.plan.number_of_runs
        return console.duration(self.left()) if known else ""


def makespan(running: Iterable[float], waiting: Iterable[float], jobs: int) -> float:
    """Seconds until all have ended: each that waits begins when one of the `jobs` ends."""
    ends = sorted(running)
    ends += [0.0] * (jobs - len(ends))
    heapq.heapify(ends)
    for seconds in waiting:
        heapq.heapreplace(ends, ends[0] + seconds)
    return max(ends)
