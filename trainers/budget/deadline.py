"""`--minutes` while it runs: the end of a planned run, set once from the pace that the run itself has shown."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from ignite.engine import Engine, Events

from trainers.budget.pace import Pace
from trainers.engine.optim import COOLDOWN
from trainers.reporting import console
from trainers.run_engines import Run
from trainers.setup import schedule
from trainers.storage.run_folder import write_run_config

LATE = 0.06
"""Stop early if the projected end overshoots the deadline by more than this fraction of the run's time."""


@dataclass(frozen=True)
class Deadline:
    """Time when a run shall be over, by `clock`, and the pace that its plan was made from."""

    until: float
    pace: Pace
    clock: Callable[[], float] = time.monotonic
    most: float = math.inf
    """Epochs that the run takes at most, however much time there is."""


class DeadlineHandler:
    """Moves the end of a run to its deadline, before the learning rate depends on where the end is.

    That is, with a cooldown, until its fall begins; with the other schedules, while it warms up. The end is then
    written into config.json, so the run is one that was told its epochs from the start. Of a run that is resumed later
    than that only a machine that has become slower ends the steps early.
    """

    def __init__(self, run: Run, deadline: Deadline) -> None:
        self.run, self.deadline, self.pace = run, deadline, deadline.pace
        self.planned, self.per_epoch = run.setup.total_steps, run.setup.steps_per_epoch
        self.warmup_steps = run.setup.warmup_steps
        self.cooldown = run.setup.config.train.schedule == "cooldown"
        self.fitted, self.slowness = False, 1.0
        self.since: tuple[float, int] | None = None
        run.trainer.add_event_handler(Events.STARTED, self.start)
        run.trainer.add_event_handler(Events.ITERATION_STARTED, self.begin)
        run.trainer.add_event_handler(Events.ITERATION_COMPLETED, self.check)

    def start(self, engine: Engine) -> None:
        """Find out whether the rate depends on the end already: of a run that is resumed."""
        done = engine.state.iteration
        self.fitted = done >= ((1 - COOLDOWN) * self.planned if self.cooldown else max(1, self.warmup_steps))
        if self.cooldown and not self.fitted:
            self.run.rate = schedule(self.run.setup, shape="constant")

    def begin(self, engine: Engine) -> None:
        """Count from the first step, and anew from the second epoch, when the images have been read."""
        done = engine.state.iteration - 1
        if self.since is None or done == self.per_epoch:
            self.since = (self.deadline.clock(), done)

    def check(self, engine: Engine) -> None:
        step, now = engine.state.iteration, self.deadline.clock()
        if self.fitted:
            self.stop_if_late(engine, now)
            return
        self.run.expected_steps = total = self.steps_in_time(step, now)
        latest = min((1 - COOLDOWN) * min(total, 1.4 * self.planned), self.planned - 1)  # after its end it is too late
        if self.cooldown and step >= latest:
            self.fix(max(total, math.ceil(step / (1 - COOLDOWN)), self.warmup_steps + 1))
        elif not self.cooldown and step == self.warmup_steps:
            self.fix(max(total, step + 1))

    def steps_in_time(self, step: int, now: float) -> int:
        """All steps of the run, at the pace so far, if it is to end in time."""
        assert self.since is not None
        pace, (began, before) = self.pace, self.since
        expected = (step - before) * pace.step + (step // self.per_epoch - before // self.per_epoch) * pace.validation
        unread = max(0.0, 1 - step / self.per_epoch) * pace.decoding
        if before == 0:
            expected += pace.decoding - unread
        self.slowness = (now - began) / expected
        left = (self.deadline.until - now) / self.slowness - unread - pace.ending
        total = step + int(max(0.0, left) / pace.epoch * self.per_epoch)
        return int(min(total, self.deadline.most * self.per_epoch))

    def fix(self, total: int) -> None:
        run, self.fitted = self.run, True
        whole, rest = divmod(total, self.per_epoch)
        epochs = whole + bool(rest) if whole >= 40 else total / self.per_epoch
        run.lengthen(run.setup.config.changed(train={"epochs": epochs}))
        write_run_config(run.run_dir, run.setup.config)
        if abs(total - self.planned) > 0.03 * self.planned:
            planned = f"{self.planned / self.per_epoch:.4g} were planned"
            console.say(f"{epochs:.4g} epochs fit at the pace so far; {planned}", label="plan")

    def stop_if_late(self, engine: Engine, now: float) -> None:
        assert self.since is not None
        over = now + self.slowness * self.pace.ending - self.deadline.until
        if over > LATE * (self.deadline.until - self.since[0]) and engine.state.iteration < self.run.setup.total_steps:
            done = engine.state.iteration / self.per_epoch
            self.run.stopped = f"the machine has become slower: stopped after {done:.1f} epochs, to end in time"
            engine.terminate()
