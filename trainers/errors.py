"""Errors that can stop a run. The command line turns each class into its `exit_code` and one line. Imports nothing
heavy."""

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from datasets.errors import MissingPackage as DataMissingPackage
from datasets.errors import OptionError as DataOptionError
from vit.errors import MissingPackage, OptionError


class ConfigError(ValueError):
    """An option, or a combination of options, that cannot work."""

    exit_code = 2


OPTION_ERRORS = (ConfigError, DataOptionError, OptionError)
"""Classes of errors for an option that cannot work."""
MISSING_PACKAGE = (DataMissingPackage, MissingPackage)
"""Classes of errors for a package that is not installed."""


class CheckpointError(ValueError):
    """A file that is not a checkpoint of this application, or a damaged one."""

    exit_code = 3


@contextmanager
def report_damage(path: Path) -> Iterator[None]:
    """Re-raise any exception of the block as one line about a damaged file. Raises CheckpointError, which names `path`;
    our own classes and the operating system's pass unchanged."""
    try:
        yield
    except Exception as error:
        ours = hasattr(error, "exit_code") and not isinstance(error, OptionError)  # which a file may hold as any value
        if ours or isinstance(error, OSError):
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise CheckpointError(f"{path} is damaged: what it says does not fit together ({reason})") from error


class TrainingError(RuntimeError):
    exit_code = 4


class Diverged(TrainingError):
    """A loss or a gradient is not finite; another learning rate may do."""


class FailedElsewhere(RuntimeError):
    """Failure of another process of this run, with its exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


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
    "could not create a primitive", "bad_alloc",  # oneDNN's words, and C++'s
    "unable to allocate shared memory",
)  # fmt: skip


def out_of_memory(error: Exception) -> bool:
    """Return whether this is Python's, torch's, oneDNN's, C++'s or the system's way to say so."""
    of_a_library = isinstance(error, RuntimeError | OSError | ImportError) and any(
        w in str(error) for w in _OUT_OF_MEMORY
    )
    return isinstance(error, MemoryError) or of_a_library


def first_line(error: Exception) -> str:
    """An error's own words in one line; of one that a loader process met, whose traceback torch puts around them."""
    lines = str(error).strip().splitlines() or [""]
    met_elsewhere = re.match(r"Caught \w+ in DataLoader worker process", lines[0])
    return lines[-1 if met_elsewhere else 0].rstrip(". ") or "no reason given"


def exit_code(error: Exception) -> int:
    """Return the exit code of an exception. Our own classes say it themselves; any other is a bug, but for those of the
    operating system."""
    own: int | None = getattr(error, "exit_code", None)
    if own is not None:
        return own
    if isinstance(error, FileNotFoundError):
        return 3
    return 4 if isinstance(error, OSError) or out_of_memory(error) else 1
