"""Signals: one place for the whole command, from its first line to its report. Imports nothing heavy."""

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from common.errors import Interrupted
from datasets.processes import STOPPING

SENT_AGAIN = ("SIGHUP", "SIGXCPU")
"""A terminal that closes sends the first twice, a limit on processor time the second every second: no impatience."""

ONE_REQUEST = 1.0
"""Seconds within which signals are one request: `timeout` and schedulers tell the process, then all of its group."""


class Signals:
    """The first signal raises Interrupted, in steps when they are done; a later one stops the process at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.since = 0.0
        self.heeding = self.waiting = False
        self.sent_again: tuple[str, ...] = SENT_AGAIN

    @contextmanager
    def heeded(self, signums: Sequence[signal.Signals] = STOPPING) -> Iterator[None]:
        """Inside, signals are heeded. The innermost commands ask for it too, as they are also called from Python."""
        if self.heeding or threading.current_thread() is not threading.main_thread():  # only that one may set handlers
            yield
            return
        before = {signum: signal.getsignal(signum) for signum in signums}
        if hasattr(signal, "SIGHUP") and before.get(signal.SIGHUP) == signal.SIG_IGN:
            del before[signal.SIGHUP]  # started by nohup, to outlive its terminal
        self.heeding = True
        try:
            for signum in before:
                signal.signal(signum, self._receive)
            yield
            self.check()
        except Exception as error:
            if self.received is not None and not hasattr(error, "exit_code"):  # made of it by a library on the way
                raise Interrupted(self.received) from error
            raise
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler or signal.SIG_DFL)  # None: one that Python did not set
            self.received, self.heeding = None, False

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Inside, a signal waits until someone checks, when weights, sums and counters agree; at most to the end."""
        self.waiting = True
        try:
            yield
        finally:
            self.waiting = False
        self.check()

    @contextmanager
    def hinting(self, hint: str) -> Iterator[None]:
        """Inside, this is how to go on."""
        try:
            yield
        except Interrupted as stop:
            stop.hint = hint
            raise

    @contextmanager
    def left_to_the_system(self) -> Iterator[None]:
        """Inside, a signal ends the process: for a call into C that waits, where no handler would run."""
        ours = [signum for signum in STOPPING if signal.getsignal(signum) == self._receive]
        for signum in ours:
            signal.signal(signum, signal.SIG_DFL)
        try:
            yield
        finally:
            for signum in ours:
                signal.signal(signum, self._receive)

    def check(self) -> None:
        if self.received is not None:
            raise Interrupted(self.received)

    def _receive(self, signum: int, _frame: FrameType | None) -> None:
        if self.received is None:
            self.received, self.since = signum, time.monotonic()
            if not self.waiting:
                self.check()
        elif signal.Signals(signum).name not in self.sent_again and time.monotonic() - self.since > ONE_REQUEST:
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)


signals = Signals()
