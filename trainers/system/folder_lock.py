"""Let one process at a time work in a folder, and name it to a second one.

The operating system holds the lock and releases it however the process ends; network disks coordinate machines. The
text in the lock file only names the process. On a disk without locks, the file itself is the lock.
"""

import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from common.errors import OptionError
from common.files import hidden


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Lock the folder, which need not exist yet, inside the block.

    Raises OptionError: another process holds it."""
    from filelock import FileLock, Timeout  # its import takes as long as a tenth of --help

    path = path_of(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, thread_local=False)
    try:
        with warnings.catch_warnings(action="ignore"):  # about a disk without locks
            lock.acquire(blocking=False)
    except Timeout:
        raise OptionError(
            f"{folder} is in use by {holder(path)}: wait for it or stop it; if it is gone, remove {path}"
        ) from None
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    try:
        if isinstance(lock, FileLock):  # filelock has another kind of lock, with its own text
            since = datetime.now(UTC).isoformat(timespec="seconds")
            path.write_text(f"process {os.getpid()} on {socket.gethostname()}, since {since}", encoding="utf-8")
        yield
    finally:
        with suppress(OSError):  # Windows cannot remove a locked file
            path.unlink()
        lock.release()


@contextmanager
def in_turn(file: Path) -> Iterator[None]:
    """Wait until no process of this program works on a file, at most an hour."""
    from filelock import FileLock, Timeout

    lock, path = None, hidden(file, ".lock")
    with suppress(Timeout, OSError), warnings.catch_warnings(action="ignore"):  # a disk that takes no locks
        lock = FileLock(path, thread_local=False)
        lock.acquire(timeout=3600, poll_interval=0.1)
    try:
        yield
    finally:
        if lock is not None and lock.is_locked:
            with suppress(OSError):
                path.unlink()
            lock.release()


def hold(folder: Path, holding: ExitStack) -> bool:
    """Hold a folder until `holding` is closed; False: choose again.

    It was taken, came or went meanwhile. Raises OptionError: another process works in it."""
    there = folder.exists()
    try:
        holding.enter_context(held(folder))
    except OptionError:
        if there:
            raise
        return False
    if folder.exists() != there:
        holding.close()
        return False
    return True


def refuse_held(folder: Path) -> None:
    """Raise OptionError where a process works in a folder.

    It may not have made it yet, or somebody has removed it."""
    if path_of(folder).exists():
        with held(folder):
            pass


def is_held(folder: Path) -> bool:
    try:
        refuse_held(folder)
    except OptionError:
        return True
    return False


def path_of(folder: Path) -> Path:
    return hidden(folder, ".vit-train.lock")


def holder(path: Path) -> str:
    """Return the holder named in a lock file, if it can be read."""
    with suppress(OSError, ValueError):
        if (text := path.read_text(encoding="utf-8")).startswith("process "):
            return text
    return "another process"
