"""`compare --minutes`: fewer epochs for all runs where the first ones show that the machine is slower than measured.

Only as long as they have hardly begun: they start over, for all runs of a comparison see equally many images. Later,
`comparison/training/deadline.py` leaves runs out.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from ignite.engine import Engine, Events

from comparison.request.plan import ComparisonPlan
from comparison.request.timing import REPORT, epochs_within
from trainers.budget.pace import Pace
from trainers.reporting import console
from trainers.run_engines import Run
from trainers.run_start import discard

SLOWER = 1.4
"""Slowness, in times of what was measured, that is worth a new start; less is caught up by what is left out."""
STEPS, SECONDS = 5, 6.0
"""A run is judged after so many steps and seconds."""
BEGUN = 0.5
"""Fraction of its steps after which a run is not stopped any more."""
RESTARTS = 2


class SlowMachine(Exception):
    """A run takes so many times as long as it was measured to take."""

    def __init__(self, ratio: float) -> None:
        super().__init__(ratio)
        self.ratio = ratio


class Watch:
    """Holds the first steps of a run against the measured pace. Raises SlowMachine in its trainer."""

    def __init__(self, run: Run, *, pace: Pace, clock: Callable[[], float] = time.perf_counter) -> None:
        self.pace, self.clock, self.per_epoch = pace, clock, run.setup.steps_per_epoch
        self.last = int(BEGUN * run.setup.total_steps)
        self.since: tuple[float, int] | None = None
        self.judged = run.setup.on_features
        run.trainer.add_event_handler(Events.ITERATION_COMPLETED, self.check)

    def check(self, engine: Engine) -> None:
        step = engine.state.iteration
        if self.since is None:  # the first step is slower than the others
            self.since = (self.clock(), step)
        seconds, steps = self.clock() - self.since[0], step - self.since[1]
        if self.judged or steps < STEPS or seconds < SECONDS:
            return
        self.judged = True
        first_epoch = min(step, self.per_epoch) - self.since[1]  # in which images are read
        expected = steps * self.pace.step + max(0, first_epoch) / self.per_epoch * self.pace.decoding
        expected += (step - 1) // self.per_epoch * self.pace.validation
        if seconds > SLOWER * expected and step <= self.last:
            raise SlowMachine(seconds / expected)


def start_over(plan: ComparisonPlan, ratio: float, begun: Iterable[Path]) -> None:
    """Fit the epochs anew to the time that is left, at a pace so many times as slow, without the runs that have begun.
    In this order: a comparison that is stopped meanwhile goes on with runs of equal epochs."""
    assert plan.until is not None
    assert plan.paces is not None
    for folder in begun:
        if folder.is_dir():
            discard(folder)
    before, plan.paces = plan.epochs, [slower(pace, ratio) for pace in plan.paces]
    plan.epochs = epochs_within(plan, plan.paces, (plan.until - time.monotonic() - REPORT) * plan.sharing.jobs)
    plan.write_settled(plan.folder)
    now, planned = (" and ".join(f"{epochs:g}" for epochs in every) for every in (plan.epochs, before))
    what = f"all runs start over with {now} epochs in place of {planned}"
    console.say(f"the machine is {ratio:.1f} times as slow as measured: {what}", label="plan")


def slower(pace: Pace, ratio: float) -> Pace:
    times = {name: ratio * getattr(pace, name) for name in ("step", "validation", "decoding", "conclusion")}
    return replace(pace, **times)
