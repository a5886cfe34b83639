"""A limit on the time of a run: it ends like any other, only sooner."""

import time

from ignite.engine import Engine, Events

from trainers import distributed


class TimeBudget:
    """Ends training once its steps have taken so many seconds, waiting for data included, validation and saving not.

    The seconds live in the engine's state: a resumed run has what the first life left over.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

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
        if distributed.main_process_decides(self.spent):
            engine.terminate()

    @property
    def spent(self) -> bool:
        return self.trainer.state.step_seconds >= self.seconds
