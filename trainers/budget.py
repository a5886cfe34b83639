"""A limit on the time of a run: it ends like any other, only sooner."""

import time
from collections.abc import Callable

from ignite.engine import Engine, Events


class TimeBudget:
    """Ends training once its steps have taken so many seconds, waiting for data included, validation and saving not.

    The seconds live in the engine's state: a resumed run has what the first life left over.
    """

    def __init__(self, seconds: float, *, agree: Callable[[bool], bool] = bool) -> None:
        """`agree` makes one decision out of those of several processes."""
        self.seconds, self.agree = seconds, agree

    def attach(self, trainer: Engine) -> None:
        self.trainer = trainer
        trainer.state_dict_user_keys.append("step_seconds")
        trainer.state.step_seconds = 0.0
        trainer.add_event_handler(Events.GET_BATCH_STARTED, self.start)
        trainer.add_event_handler(Events.ITERATION_COMPLETED, self.check)

    def start(self) -> None:
        self.started = time.perf_counter()

    def check(self, engine: Engine) -> None:
        engine.state.step_seconds += time.perf_counter() - self.started
        if self.agree(self.spent):
            engine.terminate()

    @property
    def spent(self) -> bool:
        return self.trainer.state.step_seconds >= self.seconds
