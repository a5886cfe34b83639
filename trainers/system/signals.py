"""Handle signals of a command, from its first line to its report. Imports nothing heavy."""

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from common.errors import Interrupted
from datasets.processes import STOPPING

ONE_REQUEST = 1.0
"""Seconds within which Ctrl-C counts once: a terminal and torchrun, or `timeout -s INT`, send it twice."""


class Signals:
    """Signal state of a command.

    The first signal raises Interrupted, after the current step; a second Ctrl-C ends the process at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.since = 0.0
        self.waiting = False

    @contextmanager
    def handled(self, signums: Sequence[signal.Signals] = STOPPING) -> Iterator[None]:
        """Handle signals inside the block and nested ones; does nothing outside of the main thread."""
        if self._ours() or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {signum: signal.getsignal(signum) for signum in signums}
        if hasattr(signal, "SIGHUP") and before.get(signal.SIGHUP) == signal.SIG_IGN:
            del before[signal.SIGHUP]  # started by nohup
        try:
            for signum in before:
                signal.signal(signum, self._receive)
            yield
            self.check()
        except Exception as error:
            if self.received is not None and not hasattr(error, "exit_code"):  # a library replaced Interrupted by it
                raise Interrupted(self.received) from error
            raise
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler or signal.SIG_DFL)  # None: a handler not set by Python
            self.received = None

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Defer signals to `check`, or to the end of the block.

        `check` is called when weights, sums and counters agree.
        """
        self.waiting = True
        try:
            yield
        finally:
            self.waiting = False
        self.check()

    @contextmanager
    def hinting(self, hint: str) -> Iterator[None]:
        """Add a hint how to continue to Interrupted."""
        try:
            yield
        except Interrupted as stop:
            stop.hint = hint
            raise

    @contextmanager
    def left_to_the_system(self) -> Iterator[None]:
        """Let a signal end the process, during a call into C that blocks Python's handlers."""
        ours = self._ours()
        for signum in ours:
            signal.signal(signum, signal.SIG_DFL)
        try:
            yield
        finally:
            for signum in ours:
                signal.signal(signum, self._receive)

    def check(self) -> None:
        """Raise Interrupted if a signal was received."""
        if self.received is not None:
            raise Interrupted(self.received)

    def _ours(self) -> list[signal.Signals]:
        return [signum for signum in STOPPING if signal.getsignal(signum) == self._receive]

    def _receive(self, signum: int, _frame: FrameType | None) -> None:
        if self.received is None:
            self.received, self.since = signum, time.monotonic()
            if not self.waiting:
                self.check()
        elif signum == signal.SIGINT and time.monotonic() - self.since > ONE_REQUEST:
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)


signals = Signals()
