"""Define exceptions with exit codes, which the command line prints as one line. Imports nothing heavy."""

import errno
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any


class OptionError(ValueError):
    """An option, or a combination of options, that cannot work."""

    exit_code = 2


class NoAttention(OptionError):
    """The model has no attention weights that form a map over the patches of an image."""


class MissingPackage(OptionError):
    """A required package is missing or broken; the message tells how to install it."""


class UnknownDataSet(OptionError):
    """The name is neither a built-in set nor a path."""


class DataError(ValueError):
    """The data is faulty; the message names the file or folder and tells what would work."""

    exit_code = 3

    def __init__(self, message: str) -> None:
        # A loader process re-raises with its whole traceback as the message; keep the line written for people.
        if message.startswith("Caught DataError in DataLoader worker"):
            message = message.rstrip().rpartition("DataError: ")[2]
        super().__init__(message)


class WeightsError(ValueError):
    """A file of weights cannot be obtained, read, or loaded into this model."""

    exit_code = 3


class CheckpointError(ValueError):
    """A file is no checkpoint of this application, or is damaged."""

    exit_code = 3


@contextmanager
def report_damage(path: Path) -> Iterator[None]:
    """Re-raise exceptions of the block as CheckpointError naming `path`, except the application's and the system's."""
    try:
        yield
    except Exception as error:
        ours = hasattr(error, "exit_code") and type(error) is not OptionError  # options are values of the file here
        if ours or isinstance(error, OSError):
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise CheckpointError(f"{path} is damaged: what it says does not fit together ({reason})") from error


class TrainingError(RuntimeError):
    exit_code = 4


class Diverged(TrainingError):
    """A loss or a gradient is not finite in this step; another learning rate may help."""

    def __init__(self, message: str, step: int = 0) -> None:
        super().__init__(message)
        self.step = step


class FailedElsewhere(RuntimeError):
    """Failure of another process of this run, with its exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code

    def __reduce__(self) -> tuple[type, tuple[str, int]]:
        return type(self), (str(self), self.exit_code)


class Interrupted(BaseException):
    """A signal asked the command to stop. Not an Exception, so that no handler takes it for a fault."""

    hint = ""
    """Command to continue with."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum
        self.exit_code = 128 + signum  # as shells count: 130 for Ctrl-C, 143 for SIGTERM

    def __str__(self) -> str:
        return "; ".join(filter(None, [f"interrupted by {signal.Signals(self.signum).name}", self.hint]))


_OUT_OF_MEMORY = (
    "can't allocate memory", "out of memory", "Cannot allocate memory", "not enough memory", "can't start new thread",
    "could not create a primitive", "bad_alloc",  # messages of oneDNN and C++
    "unable to allocate shared memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED", "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
)  # fmt: skip


def out_of_memory(error: Exception) -> bool:
    """Return whether an error of Python, torch, oneDNN, C++ or the system means that memory ran out."""
    if isinstance(error, RuntimeError | OSError | ImportError):
        return any(words in str(error) for words in _OUT_OF_MEMORY)
    return isinstance(error, MemoryError)


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, without a traceback from a loader process."""
    lines = str(error).strip().splitlines() or [""]
    met_elsewhere = re.match(r"Caught \w+ in DataLoader worker process", lines[0])
    return lines[-1 if met_elsewhere else 0].rstrip(". ") or "no reason given"


def system_reason(error: OSError, option: str = "--output-dir") -> str:
    """Describe an error of the system by place, fault, and the option that avoids it."""
    if error.filename is None or error.strerror is None:
        return first_line(error)
    place = os.path.abspath(error.filename)
    while not os.path.exists(place) and os.path.dirname(place) != place:
        place = os.path.dirname(place)
    only_read = os.access(place, os.R_OK) and not os.access(place, os.W_OK)
    forbidden = error.errno in (errno.EACCES, errno.EPERM) and only_read
    full = error.errno in (errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.ENOLCK)
    hint = f"; {option} names another place to write to" if forbidden or full else ""
    return f"{os.fsdecode(error.filename)}: {error.strerror}{hint}"


def exit_code(error: Exception) -> int:
    """Return the exit code of an exception; 1 for a bug."""
    own: int | None = getattr(error, "exit_code", None)
    if own is not None:
        return own
    if isinstance(error, FileNotFoundError):
        return 3
    return 4 if isinstance(error, OSError) or out_of_memory(error) else 1


def import_optional(name: str, hint: str) -> Any:
    """Import a module of an optional package.

    Raises MissingPackage with `hint`, which tells how to install it; if it is installed and fails to import, its own
    message comes first.
    """
    try:
        return import_module(name)
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}.")
        found = "" if absent else f"{name} is installed, but importing it fails: {error}; "
        raise MissingPackage(f"{found}{hint}") from error
