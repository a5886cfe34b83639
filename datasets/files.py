"""Files that appear whole or not at all: written beside their place, flushed to disk, then renamed. No torch here."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name to write to, in the folder of `path`, whose file takes the place of `path` when the block ends well.

    A link stays one, and the file that it names is replaced. A pipe or a device, such as /dev/stdout, is written to
    directly. What a process left beside `path` when it was killed is removed.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    place = path.resolve()
    remove_leftovers(place)
    aside = place.with_name(f".{place.name}.{os.getpid()}.tmp{place.suffix}")
    try:
        yield aside
        put(aside, place)
    except BaseException as error:
        with suppress(OSError):
            aside.unlink()
        if isinstance(error, OSError) and error.errno is not None and error.filename in (None, str(aside)):
            raise OSError(error.errno, error.strerror, str(path)) from None  # rather than a name that nobody knows
        raise


def put(aside: Path, path: Path) -> None:
    """Rename a file that is complete, once it is on the disk, and make the rename durable, too."""
    flush(aside, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    os.replace(aside, path)
    if hasattr(os, "O_DIRECTORY"):  # not every platform can flush a folder
        flush(path.parent, os.O_RDONLY | os.O_DIRECTORY)


def flush(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_asides(folder: Path) -> None:
    """Remove all that was begun to be written below a folder in which nobody but this process works."""
    for aside in folder.rglob(".*.tmp*"):
        if aside.is_file():
            aside.unlink()


def remove_leftovers(path: Path) -> None:
    """Remove what processes that are no more had begun to write beside `path`."""
    for aside in path.parent.glob(f".{glob.escape(path.name)}.*.tmp*"):
        pid = aside.name.removeprefix(f".{path.name}.").partition(".")[0]
        if pid.isdecimal() and not is_alive(int(pid)):
            aside.unlink(missing_ok=True)


def is_alive(pid: int) -> bool:
    if os.name == "nt":  # there os.kill ends the process that it asks about
        return True
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)  # else it is somebody else's
    return True


@contextmanager
def text_file(path: Path, *, errors: str = "strict") -> Iterator[TextIO]:
    """An open file that takes the place of `path` when the block ends well; UTF-8, with line ends as they are given."""
    with replacing(path) as aside, open(aside, "w", newline="", encoding="utf-8", errors=errors) as file:
        yield file


def write_text(path: Path, text: str, *, errors: str = "strict") -> None:
    with text_file(path, errors=errors) as file:
        file.write(text)


def write_bytes(path: Path, content: bytes) -> None:
    with replacing(path) as aside:
        aside.write_bytes(content)
