"""Ctrl-C and SIGTERM: finish the step, then leave by an exception that nothing on the way swallows."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

from ignite.engine import Engine, Events

from trainers.errors import Interrupted


class SignalFlag:
    """While entered, the first signal raises a flag, and a second one stops the process at once.

    The engines look at the flag after each of their iterations, when weights, sums and counters agree.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.received: int | None = None

    def __enter__(self) -> SignalFlag:
        self._main = threading.current_thread() is threading.main_thread()  # only there may handlers be set
        if self._main:
            self._previous = {signum: signal.signal(signum, self._raise) for signum in self.SIGNALS}
        return self

    def __exit__(self, *exception: object) -> None:
        if self._main:
            for signum, handler in self._previous.items():
                signal.signal(signum, handler)

    def _raise(self, signum: int, _frame: FrameType | None) -> None:
        if self.received is not None:
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
        self.received = signum

    def attach(self, *engines: Engine) -> None:
        """Look at the flag after every iteration of these engines. Attach last: all other work of a step is done."""
        for engine in engines:
            engine.add_event_handler(Events.ITERATION_COMPLETED, self.check)

    def check(self) -> None:
        if self.received is not None:
            raise Interrupted(self.received)
