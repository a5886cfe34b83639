"""`--minutes` while it runs: the end of a planned run is set once, from the pace that the run itself shows."""

import math
import time
from bisect import bisect_right

from ignite.engine import Engine, Events

from trainers.budget.pace import ENDING, drawing, times_in_float32
from trainers.engine.optim import COOLDOWN
from trainers.run import Handler
from trainers.run_engines import Run
from trainers.setup import schedule

LATE, GRACE = 0.03, 5.0
"""Share of the run's time, or seconds, that it may be late: of a short one at most twice that share. Else it stops."""
WHOLE = 40
"""Epochs from which the end is that of an epoch."""


def ending_at(until: float, *, most: float = math.inf) -> Handler:
    """Return what ends a run in time: see `DeadlineHandler`."""
    return lambda trainer: DeadlineHandler(trainer.state.run, until, most=most)


class DeadlineHandler:
    """Moves a run's end to its deadline, before the learning rate depends on it.

    That is, with a cooldown, until its fall begins; with the other schedules, while it warms up. The end is then
    written into config.json, so the run repeats with these epochs. A run that is resumed later than that is ended
    early if the machine has become slower.

    `until`: when the run shall be over, by `time.monotonic`. `most`: epochs that it takes at most, however much time
    there is.
    """

    def __init__(self, run: Run, until: float, *, most: float = math.inf) -> None:
        self.run, self.until, self.most = run, until, most
        self.planned, self.per_epoch = run.setup.total_steps, run.setup.steps_per_epoch
        self.warmup_steps = run.setup.warmup_steps
        self.warm = max(1, self.warmup_steps)
        self.cooldown = run.setup.config.train.schedule == "cooldown"
        self.drawn = run.setup.config.output.tb != "scalars"
        self.exact = times_in_float32(run.setup) if self.drawn else 1.0
        self.fixed = False
        self.began = self.marked = self.validating = time.monotonic()
        self.batch = 0.0
        """Seconds of a batch of the latest validation."""
        self.validation, self.taken, self.steps, self.stepping = 0.0, 0, 0, 0.0
        run.evaluator.add_event_handler(Events.STARTED, self.begin_validation)
        run.evaluator.add_event_handler(Events.COMPLETED, self.end_validation)
        run.trainer.add_event_handler(Events.STARTED, self.start)
        run.trainer.add_event_handler(Events.EPOCH_STARTED, self.begin_epoch)
        run.trainer.add_event_handler(Events.ITERATION_COMPLETED, self.check)

    def start(self, engine: Engine) -> None:
        """Find out whether the rate of a resumed run depends on its end already."""
        done = engine.state.iteration
        self.fixed = done >= ((1 - COOLDOWN) * self.planned if self.cooldown else self.warm)
        engine.state.end_moves = not self.fixed
        if self.cooldown and not self.fixed:
            self.run.rate = schedule(self.run.setup, shape="constant")

    def begin_validation(self) -> None:
        self.validating = time.monotonic()

    def end_validation(self, evaluator: Engine) -> None:
        self.batch = (time.monotonic() - self.validating) / (evaluator.state.epoch_length or 1)

    def begin_epoch(self, engine: Engine) -> None:
        """Measure what follows the steps of an epoch.

        Before the first epoch that is the validation of the untrained model. Steps are counted anew from the second
        epoch on, when images have been read."""
        now = time.monotonic()
        batches = len(self.run.setup.data.dataloaders["val"])
        self.validation = now - self.marked if self.taken else self.batch * batches
        self.marked = now
        if engine.state.iteration == self.per_epoch:
            self.steps, self.stepping = 0, 0.0

    def check(self, engine: Engine) -> None:
        step, now = engine.state.iteration, time.monotonic()
        self.taken += 1
        if self.taken == 2:  # the first started what starts once
            self.steps, self.stepping = 0, 0.0
        self.steps, self.stepping, self.marked = self.steps + 1, self.stepping + now - self.marked, now
        if self.fixed or step >= self.run.setup.total_steps:
            self.stop_if_late(engine, now)
            return
        total = self.steps_in_time(step, now)
        latest = min((1 - COOLDOWN) * total, self.planned - 1)  # after its planned end it is too late
        if self.taken == 1 and step < self.planned - 1 and now + self.validation + self.ending < self.until:
            latest = math.inf  # the first step says little of the others
        if self.cooldown and step >= latest:
            self.fix(max(total, math.ceil(step / (1 - COOLDOWN)), self.warmup_steps + 1))
        elif not self.cooldown and step == self.warm:
            self.fix(max(total, step + 1) if self.taken > 1 else self.planned)
        if self.fixed:
            self.stop_if_late(engine, now)

    @property
    def ending(self) -> float:
        """Return the seconds after the last validation: test scores, pictures, and files."""
        setup = self.run.setup
        images, a_pass = setup.data.dataset_sizes["val"], self.validation / setup.data.dataset_sizes["val"]
        pictures = drawing(self.exact * a_pass, images) if self.drawn else 0.0
        return a_pass * setup.data.dataset_sizes.get("test", 0) + pictures + ENDING

    def steps_in_time(self, step: int, now: float) -> int:
        """Estimate the steps of a run that ends in time at the pace so far.

        A part of an epoch has a whole validation."""
        pace, validated = self.stepping / self.steps, (step - 1) // self.per_epoch

        def seconds(total: int) -> float:
            return (total - step) * pace + self.validation * (math.ceil(total / self.per_epoch) - validated)

        longest = range(step, 1 + max(step, int(min(self.most * self.per_epoch, 1e9))))
        total = step + max(0, bisect_right(longest, self.until - now - self.ending, key=seconds) - 1)
        return total - total % self.per_epoch if total >= WHOLE * self.per_epoch else total

    def fix(self, total: int) -> None:
        """Set the end of the run."""
        run, self.fixed = self.run, True
        run.trainer.state.end_moves = False
        whole, rest = divmod(total, self.per_epoch)
        epochs = whole + bool(rest) if whole >= WHOLE else total / self.per_epoch
        run.lengthen(run.setup.config.changed(train={"epochs": epochs}))
        run.folder.write_config(run.setup.config)

    def stop_if_late(self, engine: Engine, now: float) -> None:
        over = now + self.validation + self.ending - self.until
        whole = self.until - self.began
        allowed = max(LATE * whole, min(GRACE, 2 * LATE * whole))
        if over > allowed and engine.state.iteration < self.run.setup.total_steps:
            done = engine.state.iteration / self.per_epoch
            self.run.stopped = f"the machine has become slower: stopped after {done:.1f} epochs, to end in time"
            engine.terminate()
