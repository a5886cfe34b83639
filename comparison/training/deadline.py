"""`compare --minutes`: what is left out where the machine is slower than measured, so that the comparison ends in time.

All arms lose the same: a learning rate that none has begun to try, or a seed that none has begun. Epochs stay, for the
runs that have ended had them.
"""

import time
from collections.abc import Callable

from comparison.request.plan import ComparisonPlan
from comparison.request.protocol import left_out
from comparison.request.timing import REPORT
from comparison.training.progress import Progress
from trainers.reporting import console

LATE = 0.1
"""Fraction of the given time by which the end may be late; the time left is not known better."""
FEWEST = 2
"""Rates and seeds that are kept as long as there is something else to leave out."""


class ComparisonDeadline:
    """Looks, after each run, at how late the last one would end."""

    def __init__(
        self, plan: ComparisonPlan, progress: Progress, *, until: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`until`: when all is to be over, by `clock`."""
        self.plan, self.progress, self.until, self.clock = plan, progress, until, clock
        self.begun: set[tuple[int, float | None]] = set()
        """Seeds and rates of the runs that have begun."""

    def keep(self) -> None:
        """Leave out what would end too late, as soon as every arm has shown its pace, or half of the time is over."""
        seen = {number for _, number in self.progress.expected.ratios}
        half = 30 * (self.plan.request.minutes or 0)
        if not seen or (len(seen) < len(self.plan.arms) and self.clock() < self.until - half):
            return
        before = left_out(self.plan)
        while self.late() and self.leave_out():
            pass
        if (after := left_out(self.plan)) != before:
            self.plan.write_settled(self.plan.folder)
            console.say(f"the machine is slower than measured: without {after}, to end in time", label="plan")

    def late(self) -> bool:
        minutes = self.plan.request.minutes or 0
        return self.clock() + self.progress.left() + REPORT > self.until + LATE * 60 * minutes

    def leave_out(self) -> bool:
        """Take the last rate, then the last seed, that no run has begun; whether there was one."""
        plan, first = self.plan, self.plan.seeds[0]
        rates = [lr for lr in plan.grid if (first, lr) not in self.begun] if plan.tuned else []
        seeds = [seed for seed in plan.seeds if seed not in {seed for seed, _ in self.begun} and seed != first]
        for fewest in (FEWEST, 1):
            if rates and len(plan.grid) > fewest:
                plan.grid = tuple(lr for lr in plan.grid if lr != max(rates, key=plan.order_of_rates.index))
                return True
            if seeds and len(plan.seeds) > fewest:
                plan.seeds = plan.seeds[:-1]
                return True
        return False
