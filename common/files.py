"""Write files that appear whole or not at all: flushed to disk, then renamed. No torch here."""

import glob
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TextIO

from common.errors import DataError

DAY = 86_400.0
"""Seconds after which what a killed process had begun to write is removed."""
NO_DOWNLOADS: ContextVar[bool] = ContextVar("no_downloads", default=False)
"""Forbid unpacking and downloading; set while a run is opened that may be a stranger's."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a file name to write to, which replaces `path` when the block ends well.

    A link stays one, and the file that it names is replaced. A pipe or a device is written to directly. What a killed
    process left there is removed once it is a day old.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    place = path.resolve()
    remove_leftovers(place.parent.glob(f".{glob.escape(place.name)}.*.tmp*"))
    aside = temporary_path(place)
    try:
        yield aside
        commit_file(aside, place)
    except BaseException as error:
        with suppress(OSError):
            aside.unlink()
        if isinstance(error, OSError) and error.errno is not None and error.filename in (None, str(aside)):
            raise OSError(error.errno, error.strerror, str(path)) from None  # rather than a name that nobody knows
        raise


def commit_file(aside: Path, path: Path) -> None:
    """Rename a complete file, once it is on the disk, and make the rename durable."""
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


@contextmanager
def folder_aside(folder: Path) -> Iterator[Path]:
    """Yield a hidden folder next to `folder`, to fill and rename; remove it after the block."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder.parent.glob(".*.tmp*"))
    aside = temporary_path(folder)
    shutil.rmtree(aside, ignore_errors=True)  # of a dead process that had the number of this one
    aside.mkdir()
    try:
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def temporary_path(place: Path) -> Path:
    """Return a hidden name in the folder of `place`, of this process alone."""
    return place.with_name(f".{place.name}.{os.getpid()}.tmp{place.suffix}")


def remove_leftovers(asides: Iterable[Path], *, age: float = DAY) -> None:
    """Remove what killed processes had begun to write, if at least `age` seconds old."""
    for aside in asides:
        with suppress(OSError):
            if time.time() - aside.stat().st_mtime >= age:
                shutil.rmtree(aside) if aside.is_dir() else aside.unlink()


def stamp(path: str | os.PathLike[str]) -> list[int]:
    """Return numbers that change with a file or a folder's names; [] if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return []
    return [found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size]


def list_entries(folder: str | os.PathLike[str]) -> list[os.DirEntry[str]]:
    """Return the entries of a folder, sorted by name. Raises OSError: it cannot be listed."""
    with os.scandir(folder) as entries:
        return sorted(entries, key=lambda entry: entry.name)


@contextmanager
def text_file(path: Path, *, errors: str = "surrogateescape") -> Iterator[TextIO]:
    """Open a file that takes the place of `path` when the block ends well.

    UTF-8, with line ends as they are given, and with the very bytes of a file name that is none."""
    with replacing(path) as aside, open(aside, "w", newline="", encoding="utf-8", errors=errors) as file:
        yield file


def write_text(path: Path, text: str, *, errors: str = "surrogateescape") -> None:
    with text_file(path, errors=errors) as file:
        file.write(text)


def write_bytes(path: Path, content: bytes) -> None:
    with replacing(path) as aside:
        aside.write_bytes(content)


def require_writable_data_root(target: Path) -> None:
    """Raise DataError before `target` would be made, where NO_DOWNLOADS is set."""
    if NO_DOWNLOADS.get():
        raise DataError(
            f"{target} is not there, and only the files of a run say to put it there; say where: --data-root DIR"
            " of evaluate, resume or check; or name a folder that is there: resume RUN --data FOLDER"
        )
