"""Time that the rest of a run takes, at the pace of its latest epochs."""

import math
import time
from collections import deque
from collections.abc import Callable

from ignite.engine import Engine, Events

EPOCHS = 4
"""Latest epochs whose pace counts, with all that lies between their steps: validation, pictures, checkpoints."""


class TimeLeft:
    """Seconds to the last step; the first epoch, in which images are read, counts only until there is another."""

    def __init__(
        self,
        trainer: Engine,
        *,
        last_step: Callable[[], int],
        most: Callable[[], float] = lambda: math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`last_step`: the one that the run is expected to end with; `most`: seconds that it takes at most."""
        self.trainer, self.last_step, self.most, self.clock = trainer, last_step, most, clock
        self.starts: deque[tuple[float, int]] = deque(maxlen=EPOCHS + 1)
        trainer.add_event_handler(Events.EPOCH_STARTED, self.start_epoch)

    def start_epoch(self, engine: Engine) -> None:
        self.starts.append((self.clock(), engine.state.iteration))

    @property
    def seconds(self) -> float | None:
        """Seconds that are left; None before the first step of this process."""
        step = self.trainer.state.iteration
        starts = [start for start in self.starts if start[1] < step]
        if not starts:
            return None
        since, before = starts[min(1, len(starts) - 1)]
        pace = (self.clock() - since) / (step - before)
        return max(0.0, min(pace * (self.last_step() - step), self.most()))

    def __str__(self) -> str:
        """Text such as `, 1:20 left`; empty where nothing is left, or nobody knows."""
        seconds = self.seconds
        return f", {on_a_clock(seconds)} left" if seconds else ""


def on_a_clock(seconds: float) -> str:
    """Minutes and seconds, such as 1:20, or with hours 1:02:05."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
