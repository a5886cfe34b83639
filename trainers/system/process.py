"""This process: its rank, words, memory, output streams, waiting threads and exit. Imports nothing heavy."""

import ctypes
import gc
import importlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

from common.errors import OptionError
from datasets.processes import end_with_parent, ignore_odd_pictures

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # malloc.h

TRAINING = ("train", "resume", "compare")
"""Commands whose steps are faster on an idle machine if waiting threads spin."""
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Environment variables for how OpenMP's threads wait; it reads them once, when torch is imported."""


def launched() -> int:
    """Return the number of processes started as one run; 1 without a launcher."""
    said = os.environ.get("WORLD_SIZE", "1")
    return int(said) if said.isdecimal() else 1


def is_main_process() -> bool:
    """Return whether this is rank 0, also after the process group is destroyed."""
    return launched() == 1 or os.environ.get("RANK", "0") == "0"


def command_line() -> list[str]:
    return [os.path.basename(sys.argv[0]), *sys.argv[1:]]


def working_directory() -> str | None:
    """Return the working directory of this process; None where it has been removed."""
    try:
        return os.getcwd()
    except OSError:
        return None


def require_whole() -> None:
    """Raise OptionError if variables of a launcher are left over, incomplete or not numbers."""
    processes = os.environ.get("WORLD_SIZE", "1")
    if processes == "1":
        return
    fault = "" if processes.isdecimal() and int(processes) else " is no number of processes"
    for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        value = os.environ.get(name, "")
        if not value or not (value.isdecimal() or name == "MASTER_ADDR"):
            fault = fault or (f" with {name}={value!r}" if name in os.environ else f" without {name}")
    if fault:
        raise OptionError(f"WORLD_SIZE={processes!r}{fault}: start with torchrun, or unset WORLD_SIZE")


def settle() -> None:
    """Configure the process for a long computation: garbage collector, malloc, warnings."""
    gc.set_threshold(50_000)  # imports leave 400,000 objects and no garbage: a collection would take 0.4 s
    keep_freed_memory()
    leave_out_zero_redundancy()
    leave_full_disks_to_writers()
    ignore_odd_pictures()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        end_with_parent(signal.SIGTERM)  # if torchrun is killed; otherwise this process would go on training


def choose_waiting(words: Sequence[str]) -> None:
    """Let waiting OpenMP threads sleep instead of spin, unless the environment configures it.

    The number of threads and all bits of a result stay the same. By default waiting threads spin, and on a busy machine
    they occupy the processor that the awaited thread needs: `predict` then takes several times as long
    (docs/results.md). Training commands sleep only on a busy machine: on an idle one waking up adds half of its time to
    a step of the smallest models.
    """
    if any(name in os.environ for name in WAITING):
        return
    command = next((word for word in words if not word.startswith("-")), "compare")
    if command not in TRAINING or others_compute():
        os.environ["OMP_WAIT_POLICY"] = "passive"


def others_compute() -> bool:
    """Return whether other processes use this one's processors.

    They have over the last minute, and do now. False if not on Linux."""
    try:
        with open("/proc/loadavg", encoding="ascii") as file:
            minute, _, _, running, *_ = file.read().split()
    except (OSError, ValueError):
        return False
    spare = (os.cpu_count() or 1) - len(os.sched_getaffinity(0))
    return min(float(minute), int(running.partition("/")[0]) - 1) > spare + 0.5


def leave_out_zero_redundancy() -> None:
    """Let Ignite start without torch's ZeroRedundancyOptimizer, which it only compares types with.

    Importing it takes 0.5 to 0.6 s, for sympy and distributed tensors (docs/results.md). All other attributes of its
    module come from the real one. test_trainers_process.py fails once Ignite no longer needs this.
    """
    name = "torch.distributed.optim"
    stand_in: Any = ModuleType(name)
    stand_in.ZeroRedundancyOptimizer = type("ZeroRedundancyOptimizer", (), {})

    def of_the_real_one(attribute: str) -> Any:
        if attribute.startswith("__"):  # tools that inspect modules look these up
            raise AttributeError(attribute)
        sys.modules.pop(name, None)
        return getattr(importlib.import_module(name), attribute)

    stand_in.__getattr__ = of_the_real_one
    sys.modules.setdefault(name, stand_in)


def leave_full_disks_to_writers() -> None:
    """Suppress the traceback of a TensorBoard writer thread that cannot write.

    Its next call raises the error."""

    def say_others(failed: threading.ExceptHookArgs) -> None:
        of_a_writer = type(failed.thread).__module__.startswith("tensorboard.")
        if not (of_a_writer and isinstance(failed.exc_value, OSError)):
            threading.__excepthook__(failed)

    threading.excepthook = say_others


def keep_freed_memory() -> None:
    """Let malloc keep freed memory for the next step, which needs the same again.

    By default glibc returns large blocks to the system at once, and the next step waits for fresh pages, zeroed one by
    one (docs/results.md has the cost; peak memory is about the same). Any MALLOC_ variable switches this off; other C
    libraries are not changed.
    """
    mallopt = of_glibc("mallopt")
    if mallopt is not None and not any(name.startswith("MALLOC_") for name in os.environ):
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, -1)


def give_back_freed_memory() -> None:
    """Return freed memory to the system, so that peaks of two runs stay apart."""
    gc.collect(1)  # the engines of the last run, which refer to each other, but no objects of imports
    malloc_trim = of_glibc("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def of_glibc(name: str) -> Any:
    """Return a function of malloc.h, or None with other C libraries."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


@contextmanager
def usable_streams() -> Iterator[None]:
    """Replace missing, closed or write-only output streams, such as a Tee, inside the block."""
    with ExitStack() as held:
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is None or getattr(stream, "closed", False):
                stand_in: Any = held.enter_context(open(os.devnull, "w"))
            elif not (hasattr(stream, "isatty") and hasattr(stream, "flush")):
                flush = getattr(stream, "flush", lambda: None)
                stand_in = SimpleNamespace(
                    write=stream.write, flush=flush, isatty=lambda: False, encoding="utf-8", closed=False
                )
            else:
                continue
            setattr(sys, name, stand_in)
            held.callback(setattr, sys, name, stream)
        yield


def leave(code: int) -> NoReturn:
    """Exit with this code, without a last garbage collection, which would take a second.

    Remaining loader processes are killed: they ignore the signal by which the interpreter would end them. One of
    several processes exits immediately: a thread of its process group that releases a tensor while the interpreter
    shuts down aborts the process.
    """
    if hasattr(signal, "SIGCHLD"):  # not on Windows; torch would raise an error for each killed loader process
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for child in multiprocessing.active_children():
        child.kill()
    if launched() > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    gc.freeze()
    sys.exit(code)
