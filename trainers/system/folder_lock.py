"""One process at a time works in a folder; whoever comes second is told who is there.

The operating system keeps the lock and takes it back however its holder ends; network disks tell the other machines.
What stands in the file beside the folder only names the holder. Where a disk knows no locks, the file itself is one.
"""

import os
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from common.errors import OptionError


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the folder while the block runs: no other process gets past this line. It need not be there yet.
    Raises OptionError: another process holds it."""
    path = path_of(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, thread_local=False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a disk without locks
            lock.acquire(timeout=0)
    except Timeout:
        raise OptionError(
            f"{folder} is in use by {holder(path)}: wait for it or stop it; if it is gone, remove {path}"
        ) from None
    try:
        if isinstance(lock, FileLock):  # else filelock made another kind of it, whose file is the lock
            since = datetime.now(UTC).isoformat(timespec="seconds")
            path.write_text(f"process {os.getpid()} on {socket.gethostname()}, since {since}", encoding="utf-8")
        yield
    finally:
        with suppress(OSError):  # Windows keeps a file that is locked
            path.unlink()
        lock.release()


def hold(folder: Path, holding: ExitStack) -> bool:
    """Hold a folder until `holding` is closed. False where it has come or gone meanwhile: then look for it again.
    Raises OptionError: another process works in it."""
    there = folder.exists()
    try:
        holding.enter_context(held(folder))
    except OptionError:
        if there:
            raise
        time.sleep(0.1)  # the other process is about to make it
        return False
    if folder.exists() != there:
        holding.close()
        return False
    return True


def path_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


def holder(path: Path) -> str:
    with suppress(OSError, ValueError):  # gone by now, or on Windows, where nobody else can read it
        text = path.read_text(encoding="utf-8")
        if text.startswith("process "):
            return text
    return "another process"
