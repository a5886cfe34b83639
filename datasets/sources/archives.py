"""Unpack zip and tar archives that nobody has vouched for."""

import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from datasets.errors import DataError

# Photographs hardly compress; raw pixels reach 5 to 1. What claims more than this is refused before it fills the disk.
MAX_RATIO = 100
FREE_BYTES = 64 * 2**20  # small archives of small text compress well and harm nobody
_CHUNK = 2**20


class _Member(NamedTuple):
    name: str
    size: int
    stream: IO[bytes]


def unpack(archive: Path, target: Path, *, unwrap: bool = False) -> Path:
    """Unpack into the new folder `target`, whole or not at all: a temporary folder beside it, then one rename.

    `unwrap`: where the archive holds one folder and nothing beside it, that folder becomes `target`.

    Raises:
        DataError: not a zip or tar, damaged, or a member is absolute, leaves the folder, is a link or a device, or the
            contents are larger than 100 times the archive or than the free disk. Nothing is left behind.
    """
    made = list(takewhile(lambda path: not path.exists(), target.parents))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot unpack {archive} to {target.parent}: {error.strerror}; name another folder") from error
    try:
        return _unpack(archive, target, unwrap=unwrap)
    except BaseException:
        with suppress(OSError):  # until one of them holds something by now
            for folder in made:
                folder.rmdir()
        raise


def _unpack(archive: Path, target: Path, *, unwrap: bool) -> Path:
    budget = max(FREE_BYTES, MAX_RATIO * archive.stat().st_size)
    free = shutil.disk_usage(target.parent).free
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as temporary:
        content = Path(temporary) / "content"
        content.mkdir()
        try:
            used = 0
            for member in _members(archive, budget, free):
                used += member.size
                _check_size(archive, used, budget, free)
                _write(member, content, archive)
        except (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError, NotImplementedError, RuntimeError) as error:
            raise DataError(
                f"cannot unpack {archive}: {' '.join(str(error).split()) or type(error).__name__}"
            ) from error
        (_single_folder(content) if unwrap else content).rename(target)
    return target


def is_archive(path: Path) -> bool:
    return path.name.lower().endswith((".zip", ".tar", ".tar.gz", ".tgz"))


def _single_folder(content: Path) -> Path:
    entries = [entry for entry in content.iterdir() if entry.name != "__MACOSX"]
    return entries[0] if len(entries) == 1 and entries[0].is_dir() else content


def _members(archive: Path, budget: int, free: int) -> Iterator[_Member]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            entries = [entry for entry in opened.infolist() if not entry.is_dir()]
            _check_size(archive, sum(entry.file_size for entry in entries), budget, free)  # before the first byte
            for entry in entries:
                kind = stat.S_IFMT(entry.external_attr >> 16)
                if kind not in (0, stat.S_IFREG):
                    raise DataError(f"{archive} is refused: {entry.filename!r} is a link or a device, not a file")
                with opened.open(entry) as stream:
                    yield _Member(_safe_name(entry.filename, archive), entry.file_size, stream)
    elif tarfile.is_tarfile(archive):
        with tarfile.open(archive) as opened:
            for info in opened:
                if info.isdir():
                    continue
                content = opened.extractfile(info) if info.isreg() else None
                if content is None:
                    raise DataError(f"{archive} is refused: {info.name!r} is a link or a device, not a file")
                yield _Member(_safe_name(info.name, archive), info.size, content)
    else:
        raise DataError(f"{archive} is neither a zip nor a tar archive, or its end is missing")


def _safe_name(name: str, archive: Path) -> str:
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if not parts or parts[0] == "/" or ".." in parts or ":" in parts[0] or "\0" in name:
        raise DataError(f"{archive} is refused: {name!r} lies outside the folder it is unpacked into")
    return "/".join(parts)


def _check_size(archive: Path, size: int, budget: int, free: int) -> None:
    if size > budget:
        raise DataError(
            f"{archive} is refused: {archive.stat().st_size:,} bytes unpack to {size:,} or more, over {MAX_RATIO} times"
        )
    if size > free:
        raise DataError(f"{archive} unpacks to {size:,} bytes or more; {free:,} are free on that disk")


def _write(member: _Member, root: Path, archive: Path) -> None:
    path = root / member.name
    path.parent.mkdir(parents=True, exist_ok=True)
    left = member.size
    with open(path, "xb") as file:  # "x": a name that comes twice is damage or malice
        while chunk := member.stream.read(_CHUNK):
            left -= len(chunk)
            if left < 0:
                raise DataError(f"{archive} is refused: {member.name!r} is larger than it says")
            file.write(chunk)
    os.chmod(path, 0o644)
