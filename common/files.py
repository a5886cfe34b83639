"""Write files atomically: they appear whole or not at all, flushed to disk, then renamed. No torch here."""

import errno
import glob
import hashlib
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
"""Age in seconds at which temporary files of killed processes are removed."""
MARK = "vit-train-tmp"
"""Part of the name of all temporary files and folders, and of the marker file in a folder: nothing else is removed."""
NO_DOWNLOADS: ContextVar[bool] = ContextVar("no_downloads", default=False)
"""Forbid unpacking and downloading; set while a run is opened that may come from a stranger."""


@contextmanager
def replacing(path: Path, *, key: str | None = None) -> Iterator[Path]:
    """Yield a temporary path, which replaces `path` when the block ends without an error.

    A link is kept, and the file that it points to is replaced. A pipe or a device is written to directly. Temporary
    files of killed processes are removed once they are a day old. `key`: the next block with this key gets the same
    path, at which the file of a process that a signal stopped is still there.
    """
    place, special = path.resolve(), path.exists() and not path.is_file()
    temporary = path if special else temporary_path(place, key)
    try:
        if not special:
            remove_leftovers(place.parent.glob(f".*.{MARK}*"))
        yield temporary
        if not special:
            commit_file(temporary, place)
    except BaseException as error:
        if not special and (key is None or isinstance(error, Exception)):
            with suppress(OSError):
                temporary.unlink()
        if isinstance(error, OSError) and error.errno is not None and error.filename in (None, str(temporary)):
            raise OSError(
                error.errno, error.strerror, str(path)
            ) from None  # rather than the name of the temporary file
        raise


def commit_file(temporary: Path, path: Path) -> None:
    """Flush a complete file to disk and rename it, durably where the file system supports that."""
    flush(temporary, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    os.replace(temporary, path)
    with suppress(OSError):  # many disks and platforms cannot flush folders
        flush(path.parent, os.O_RDONLY)


def flush(path: Path, flags: int) -> None:
    """Flush a file to disk, if it is of a kind that supports that."""
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise
    finally:
        os.close(descriptor)


@contextmanager
def temporary_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `folder`, to fill and rename.

    What is left of it is removed after the block."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder.parent.glob(f".*.{MARK}*"))
    temporary = temporary_path(folder)
    temporary.mkdir()
    try:
        (temporary / MARK).touch()
        (temporary / "content").mkdir()
        yield temporary / "content"
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def made_whole(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, which becomes `folder` if the block ends without an error.

    The caller holds the lock of `folder`, or no other process knows it.
    """
    with temporary_folder(folder) as temporary:
        yield temporary
        os.rename(temporary, folder)


def discard(folder: Path) -> None:
    """Remove a folder that this process created, in one step for all observers."""
    with temporary_folder(folder) as temporary:
        os.rename(folder, temporary / folder.name)


def settle(temporary: Path, folder: Path) -> None:
    """Rename a filled folder to its final path, unless another process has created that meanwhile."""
    try:
        temporary.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def temporary_path(place: Path, key: str | None = None) -> Path:
    """Return a hidden path next to `place` that no other process uses, on any machine, but one with the same key."""
    own = secrets.token_hex(8) if key is None else hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()[:16]
    return hidden(place, f".{own}.{MARK}{place.suffix[-16:]}")


def hidden(place: Path, ending: str) -> Path:
    """Return a hidden path next to `place`, its name cut to the limit of file systems."""
    return place.with_name(f".{cut_name(place.name, 254 - len(os.fsencode(ending)))}{ending}")


def cut_name(name: str, room: int = 200) -> str:
    """Cut a file's name to at most this many bytes; file systems allow 255."""
    return name if len(os.fsencode(name)) <= room else os.fsencode(name)[:room].decode(errors="ignore")


def remove_leftovers(paths: Iterable[Path], *, age: float = DAY) -> None:
    """Remove temporary files of killed processes of this program that are at least `age` seconds old."""
    for temporary in paths:
        ours = (
            re.fullmatch(rf"\..*\.[0-9a-f]{{16}}\.{MARK}(\..*)?", temporary.name, re.DOTALL)
            and not temporary.is_symlink()
        )
        with suppress(OSError):
            if ours and time.time() - temporary.stat().st_mtime >= age:
                if (temporary / MARK).is_file():
                    shutil.rmtree(temporary)
                elif temporary.is_file():
                    temporary.unlink()


def stamp(path: str | os.PathLike[str]) -> list[int]:
    """Return numbers that change with a file, or with a folder's names; [] without one."""
    try:
        found = os.stat(path)
    except OSError:
        return []
    return [found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size]


def matching(pattern: str) -> list[str]:
    """List the files that match a pattern, sorted.

    A [ is literal if a name with it exists."""
    return sorted(glob.glob(pattern.replace("[", "[[]"), recursive=True) or glob.glob(pattern, recursive=True))


def list_entries(folder: str | os.PathLike[str]) -> list[os.DirEntry[str]]:
    """Return the entries of a folder, sorted by name. Raises OSError: it cannot be listed."""
    with os.scandir(folder) as entries:
        return sorted(entries, key=lambda entry: entry.name)


@contextmanager
def text_file(path: Path, *, errors: str = "surrogateescape") -> Iterator[TextIO]:
    """Open a file that replaces `path` when the block ends without an error.

    UTF-8, line ends as given; non-UTF-8 file names keep their bytes.
    """
    with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8", errors=errors) as file:
        yield file


def write_text(path: Path, text: str, *, errors: str = "surrogateescape") -> None:
    with text_file(path, errors=errors) as file:
        file.write(text)


def write_bytes(path: Path, content: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def require_writable_data_root(target: Path) -> None:
    """Raise DataError if NO_DOWNLOADS is set and `target` would be created."""
    if NO_DOWNLOADS.get():
        raise DataError(
            f"{target} is not there, and only the files of a run say to put it there; say where: --data-root DIR"
            " of evaluate, resume or check; or name a folder that is there: resume RUN --data FOLDER"
        )
