"""Notice that a handler of a program's own sets the learning rate, and whether that has an effect."""

from collections.abc import Callable

from ignite.engine import Engine, Events
from torch.optim import Optimizer


class OwnSchedule:
    """Says once what becomes of a rate that a handler beside the run's own sets.

    Set at the start of a step, where Ignite's schedulers go, it holds in that step; set after one, the run's schedule
    replaces it before the next. `attach_first` comes before the run's own schedule, `attach_last` after it.
    """

    def __init__(self, optimizer: Optimizer, say: Callable[[str], object]) -> None:
        self.optimizer, self.say = optimizer, say
        self.of_run: list[float] | None = None
        """Learning rate of each group, as the run's schedule set it for this step."""
        self.used: list[float] | None = None
        """Learning rate of each group, as the last step used it."""

    def attach_first(self, trainer: Engine) -> None:
        trainer.add_event_handler(Events.ITERATION_STARTED, self.see_what_came_after_a_step)

    def attach_last(self, trainer: Engine) -> None:
        trainer.add_event_handler(Events.ITERATION_STARTED, self.remember)
        trainer.add_event_handler(Events.ITERATION_COMPLETED, self.see_what_was_used)

    def rates(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def remember(self) -> None:
        self.of_run = self.rates()

    def see_what_was_used(self, engine: Engine) -> None:
        self.used = self.rates()
        if self.of_run is not None and self.used != self.of_run:
            own, planned = self.used[0], self.of_run[0]
            self.tell(f"set by a handler of your own: {own:.3g} in step {engine.state.iteration}, not {planned:.3g}")

    def see_what_came_after_a_step(self, engine: Engine) -> None:
        if self.used is not None and self.rates() != self.used:
            step = engine.state.iteration - 1
            self.tell(
                f"a handler of your own set {self.rates()[0]:.3g} after step {step}, without effect:"
                " the run's schedule sets the rate before each step; attach yours to Events.ITERATION_STARTED"
            )

    def tell(self, line: str) -> None:
        self.say(f"learning rate: {line}")
        self.say = lambda line: None
