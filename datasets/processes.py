"""Rules between the processes of one command: signals are the parent's business, and no child outlives it."""

import ctypes
import math
import multiprocessing.queues
import os
import re
import signal
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from datasets import cgroups

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGXCPU")
STOPPING = tuple(signal.Signals[name] for name in _NAMES if name in signal.Signals.__members__)
"""Signals that ask a command to stop: a person, a terminal that closes, a scheduler, a limit. Windows has the first
two."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def processes_here() -> int:
    """Count the processes of one command here, as torchrun and runs side by side say."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def cpu_count() -> int:
    """Return this process's share of the processors of the machine or container."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(count, cpu_quota()) // processes_here())


def cpu_quota() -> int:
    """Return the whole processors that a container's or a job's quota allows; very many without one."""
    return max(1, math.ceil(min(cgroups.processors(), 2**16)))


def available_memory() -> int:
    """Return this process's share of the memory of the machine or container that is free."""
    return int(min(_available(), cgroups.free_memory())) // processes_here()


def _available() -> int:
    with suppress(OSError):
        if found := re.search(r"^MemAvailable:\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE):
            return 1024 * int(found[1])
    return 4 * 2**30  # Windows and macOS: the standard library does not say


def begin_loader(worker: int = 0) -> None:
    """Prepare a process that does nothing but read images for another one."""
    leave_signals_to_parent()
    ignore_odd_pictures()
    multiprocessing.queues.Queue._on_queue_feeder_error = hand_over_error  # type: ignore[attr-defined]


def hand_over_error(queue: Any, error: Exception, lost: Any) -> None:
    """Send an error in place of a batch that could not be sent.

    The main process would wait for it for ever.

    Where /dev/shm is full, a thread of multiprocessing prints the error and continues."""
    from torch._utils import ExceptionWrapper

    if isinstance(lost, tuple) and not isinstance(lost[-1], ExceptionWrapper):
        raised = ExceptionWrapper((type(error), error, error.__traceback__), "in DataLoader worker process")
        queue.put((lost[0], raised))
    else:
        os._exit(1)


def ignore_odd_pictures() -> None:
    """Hide Pillow's warnings of odd EXIF, palettes and sizes in this process: what matters is raised. Once for all, as
    changing filters is not safe with threads."""
    warnings.filterwarnings("ignore", module=r"PIL\.")


def leave_signals_to_parent() -> None:
    """Ignore signals in a child process: the main process finishes its step, saves and ends it.

    Sent to a whole process group or job, a signal would kill it in mid-batch, and the run with it.
    """
    for signum in STOPPING:
        signal.signal(signum, signal.SIG_IGN)
    # The thread of multiprocessing that hands over batches would print that the main process broke off.
    sys.excepthook = lambda *_: None
    end_with_parent(signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)


def end_with_parent(signum: int) -> None:
    """Receive a signal when the parent ends, whatever ends it; does nothing outside of Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signum)
