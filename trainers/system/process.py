"""The process as a whole: its garbage collector, its memory, its end. Imports nothing heavy."""

import ctypes
import gc
import importlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NoReturn

from datasets.processes import end_with_parent, ignore_odd_pictures
from trainers.system.signals import signals

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # malloc.h

TRAINING = ("train", "resume", "compare")
"""Commands whose steps a quiet machine takes faster with threads that spin."""
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Variables by which OpenMP is told how its threads wait; it reads them once, when torch is imported."""


def settle() -> None:
    """Prepare for one long computation instead of many short requests."""
    gc.set_threshold(50_000)  # imports leave 400,000 objects and no garbage: looking for it would take half a second
    keep_freed_memory()
    end_with_torchrun()
    leave_out_zero_redundancy()
    ignore_odd_pictures()


def choose_waiting(words: Sequence[str]) -> None:
    """Let OpenMP's threads sleep while they wait for each other, unless the environment says how: the number of threads
    and every bit of a result stay.

    They spin by default, and so hold the processor that the one they wait for needs where another process takes its
    part: then `predict` takes several times as long (docs/results.md). The training commands sleep only
    where others compute at their start: alone, waking up costs a step of the smallest models half its time again.
    """
    if any(name in os.environ for name in WAITING):
        return
    command = next((word for word in words if not word.startswith("-")), "compare")
    if command not in TRAINING or others_compute():
        os.environ["OMP_WAIT_POLICY"] = "passive"


def others_compute() -> bool:
    """Return whether other processes keep a processor busy that this one may use: over the last minute, and now. False
    where the system does not say (it is not Linux)."""
    try:
        with open("/proc/loadavg", encoding="ascii") as file:
            minute, _, _, running, *_ = file.read().split()
    except (OSError, ValueError):
        return False
    spare = (os.cpu_count() or 1) - len(os.sched_getaffinity(0))
    return min(float(minute), int(running.partition("/")[0]) - 1) > spare + 0.5


def end_with_torchrun() -> None:
    """Tell one of several processes to stop and save when torchrun ends: else it would train on.

    Linux tells it once for each thread of torchrun that had become its parent when that thread ended in its turn.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        end_with_parent(signal.SIGTERM)
        signals.sent_again += ("SIGTERM",)


def leave_out_zero_redundancy() -> None:
    """Let Ignite start without torch's ZeroRedundancyOptimizer, which it only compares types with: importing it takes
    half a second, for sympy and distributed tensors (docs/results.md). Whoever asks for
    anything else of that module gets the real one; test_trainers_process.py fails where Ignite does without it.
    """
    name = "torch.distributed.optim"
    stand_in: Any = ModuleType(name)
    stand_in.ZeroRedundancyOptimizer = type("ZeroRedundancyOptimizer", (), {})

    def of_the_real_one(attribute: str) -> Any:
        if attribute.startswith("__"):  # whoever walks through all modules asks for these
            raise AttributeError(attribute)
        sys.modules.pop(name, None)
        return getattr(importlib.import_module(name), attribute)

    stand_in.__getattr__ = of_the_real_one
    sys.modules.setdefault(name, stand_in)


@contextmanager
def variable(name: str, value: str | None) -> Iterator[None]:
    """Give a variable of the environment another value inside the block, or none."""

    def put(value: str | None) -> None:
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value

    before = os.environ.get(name)
    put(value)
    try:
        yield
    finally:
        put(before)


def keep_freed_memory() -> None:
    """Let malloc keep what is freed for the next step, which needs the same again.

    By default glibc gives large blocks back to the system at once, and the next step waits for fresh pages, zeroed one
    by one (docs/results.md: what that costs; the most that a run holds stays about the same). Whoever set a
    MALLOC_ variable has chosen; other C libraries are left alone.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return
    mallopt = _from_glibc("mallopt")
    if mallopt is not None:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, -1)


def give_back_freed_memory() -> None:
    """Give memory back between two runs of one process: the second shall not seem to need what the first one did."""
    gc.collect(1)  # the engines of the last run, which refer to each other; not what lives on since the imports
    malloc_trim = _from_glibc("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def _from_glibc(name: str) -> Any:
    """A function of malloc.h, or None in other C libraries."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def leave(code: int) -> NoReturn:
    """Exit with this code, without a last search through 400,000 objects for garbage: it would take a second.

    Loader processes that are left are killed: they ignore the signal by which the interpreter would end them. One of
    several processes leaves on the spot: threads of its process group still run, and one that lets go of a tensor
    while the interpreter is being taken down aborts the process.
    """
    if hasattr(signal, "SIGCHLD"):  # not Windows; torch would raise an error about each loader process that is killed
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for child in multiprocessing.active_children():
        child.kill()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    gc.freeze()
    sys.exit(code)
