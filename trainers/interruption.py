"""Ctrl-C and SIGTERM: finish the step, then leave by an exception that nothing on the way swallows."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

from ignite.engine import Engine, Events

from trainers.errors import Interrupted


class SignalFlag:
    """While entered, the first signal raises a flag, and a second one stops the process at once.

    The engines look at the flag after each of their iterations, when weights, sums and counters agree.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, *, processes: int = 1, agree: Callable[[int], int] = int) -> None:
        """`agree` makes a signal that one of several processes received everybody's."""
        self.received: int | None = None
        self.processes, self.agree = processes, agree

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
        """Look at the flag after every iteration of these engines. Attach last: all other work of a step is done.

        Several processes agree first, which takes a message: they look less often, and only in the trainer (the first
        engine), whose iterations all of them have in common.
        """
        if self.processes > 1:
            engines[0].add_event_handler(Events.ITERATION_COMPLETED(every=10) | Events.EPOCH_COMPLETED, self.check)
            return
        for engine in engines:
            engine.add_event_handler(Events.ITERATION_COMPLETED, self.check)

    def check(self) -> None:
        received = self.agree(self.received or 0)
        if received:
            raise Interrupted(received)
