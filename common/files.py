"""Write files that appear whole or not at all: flushed to disk, then renamed. No torch here."""

import errno
import glob
import os
import re
import secrets
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
MARK = "vit-train-tmp"
"""Word in the name of whatever is written aside, and the file in a folder that is: nothing without it is ours."""
NO_DOWNLOADS: ContextVar[bool] = ContextVar("no_downloads", default=False)
"""Forbid unpacking and downloading; set while a run is opened that may be a stranger's."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a file name to write to, which replaces `path` when the block ends well.

    A link stays one, and the file that it names is replaced. A pipe or a device is written to directly. What killed
    processes left there is removed once it is a day old.
    """
    place, special = path.resolve(), path.exists() and not path.is_file()
    aside = path if special else temporary_path(place)
    try:
        if not special:
            remove_leftovers(place.parent.glob(f".*.{MARK}*"))
        yield aside
        if not special:
            commit_file(aside, place)
    except BaseException as error:
        if not special:
            with suppress(OSError):
                aside.unlink()
        if isinstance(error, OSError) and error.errno is not None and error.filename in (None, str(aside)):
            raise OSError(error.errno, error.strerror, str(path)) from None  # rather than a name that nobody knows
        raise


def commit_file(aside: Path, path: Path) -> None:
    """Rename a complete file, once it is on the disk, and make the rename durable where the disk can."""
    flush(aside, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    os.replace(aside, path)
    with suppress(OSError):  # many disks and platforms can flush no folder
        flush(path.parent, os.O_RDONLY)


def flush(path: Path, flags: int) -> None:
    """Wait until a file is on the disk, where that is of a kind that can say so."""
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise
    finally:
        os.close(descriptor)


@contextmanager
def folder_aside(folder: Path) -> Iterator[Path]:
    """Yield a folder in a hidden one next to `folder`, to fill and rename; remove what is left after the block."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder.parent.glob(f".*.{MARK}*"))
    aside = temporary_path(folder)
    aside.mkdir()
    try:
        (aside / MARK).touch()
        (aside / "content").mkdir()
        yield aside / "content"
    finally:
        shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def made_whole(folder: Path) -> Iterator[Path]:
    """Yield a hidden folder to fill, which becomes `folder` when the block ends well: no stop leaves half of it.

    This process holds the lock of `folder`, or nobody else knows of it."""
    with folder_aside(folder) as aside:
        yield aside
        os.rename(aside, folder)


def discard(folder: Path) -> None:
    """Remove a folder of this process's own making, in one step for all who look."""
    with folder_aside(folder) as aside:
        os.rename(folder, aside / folder.name)


def settle(aside: Path, folder: Path) -> None:
    """Rename a filled folder to its place, unless another process has put its own there meanwhile."""
    try:
        aside.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def temporary_path(place: Path) -> Path:
    """Return a hidden name in the folder of `place` that no other process has, on whatever machine."""
    return hidden(place, f".{secrets.token_hex(8)}.{MARK}{place.suffix[-16:]}")


def hidden(place: Path, ending: str) -> Path:
    """Return a hidden name in the folder of `place`, cut to what a disk takes."""
    return place.with_name(f".{cut_name(place.name, 254 - len(os.fsencode(ending)))}{ending}")


def cut_name(name: str, room: int = 200) -> str:
    """Return the beginning of a file's name that has at most so many bytes; a disk takes 255."""
    return name if len(os.fsencode(name)) <= room else os.fsencode(name)[:room].decode(errors="ignore")


def remove_leftovers(asides: Iterable[Path], *, age: float = DAY) -> None:
    """Remove what killed processes of this program had begun to write, if at least `age` seconds old."""
    for aside in asides:
        ours = re.fullmatch(rf"\..*\.[0-9a-f]{{16}}\.{MARK}(\..*)?", aside.name, re.DOTALL) and not aside.is_symlink()
        with suppress(OSError):
            if ours and time.time() - aside.stat().st_mtime >= age:
                if (aside / MARK).is_file():
                    shutil.rmtree(aside)
                elif aside.is_file():
                    aside.unlink()


def stamp(path: str | os.PathLike[str]) -> list[int]:
    """Return numbers that change with a file or a folder's names; [] if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return []
    return [found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size]


def matching(pattern: str) -> list[str]:
    """List the files that a pattern means, sorted; a [ means itself where a name with it is there."""
    return sorted(glob.glob(pattern.replace("[", "[[]"), recursive=True) or glob.glob(pattern, recursive=True))


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
