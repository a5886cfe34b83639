"""A line now and then where a command would be silent and no terminal shows a bar: what it is at work on, since when.

A thread of its own prints them, for the long silences lie in calls that come back when all is done.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

EVERY = 9.0
"""Seconds of silence that are broken."""
EVERY_OF_A_RUN = 30.0
"""Shortest silence of one run, whose epochs have lines of their own."""
SHARE = 0.05
"""Shortest silence, as a fraction of the time that one piece of work has taken so far: hours get no line a minute."""


@dataclass
class Work:
    """Work that the command is doing, and when it last said something."""

    what: Callable[[], object] = str
    since: float = field(default_factory=time.monotonic)
    heard: float = field(default_factory=time.monotonic)

    def silent_for_long(self, now: float, every: float) -> bool:
        return now - self.heard >= max(every, SHARE * (now - self.since))


_work = Work()


def at_work_on(what: str | Callable[[], object]) -> None:
    """Set what a line says from now on: words, or a function that gives them at the time."""
    global _work
    _work = Work((lambda: what) if isinstance(what, str) else what, heard=_work.heard)


@contextmanager
def during(what: str) -> Iterator[None]:
    """Let a line say this while the block runs, and afterwards again what it said before."""
    global _work
    before = _work
    at_work_on(what)
    try:
        yield
    finally:
        _work = Work(before.what, before.since, _work.heard)


def line_was_said() -> None:
    _work.heard = time.monotonic()


@contextmanager
def heard(say: Callable[[str], object], *, every: float = EVERY) -> Iterator[None]:
    """Inside, no silence is much longer than `every` seconds, unless a terminal watches: it has bars."""
    if sys.stdout.isatty():
        yield
        return
    over = threading.Event()

    def beat() -> None:
        while not over.wait(every / 10):
            work, now = _work, time.monotonic()
            if work.silent_for_long(now, every) and (words := str(work.what())):
                say(f"{words} ({now - work.since:.0f} s)")
                work.heard = now

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    line_was_said()
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
