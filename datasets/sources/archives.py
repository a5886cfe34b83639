"""Unpack zip and tar archives, after every member has been checked."""

import hashlib
import os
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PureWindowsPath
from typing import Any

from common.errors import DataError, system_reason
from common.files import cut_name, require_writable_data_root, settle, temporary_folder

MAX_RATIO = 100
"""Size of the contents over the size of the archive, at most: photographs hardly compress, raw pixels 5 to 1."""
FREE_BYTES = 64 * 2**20
"""Size of contents that are never too large: small archives of text compress well."""


def unpack(archive: Path, target: Path, *, unwrap: bool = False) -> Path:
    """Unpack an archive into the new folder `target`, whole or not at all.

    `unwrap`: if the archive holds one folder and nothing else, that folder becomes `target`. Raises DataError: it is no
    zip or tar, or damaged; or, before anything is written, a member is absolute, leaves the folder, comes twice, is a
    link or a device, or the contents are larger than 100 times the archive or than the free disk.
    """
    require_writable_data_root(target)
    try:
        with _open(archive) as opened:
            members = _judged(opened, archive, target)
            if isinstance(opened, tarfile.TarFile):
                opened.extraction_filter = tarfile.data_filter
            with temporary_folder(target) as aside:
                opened.extractall(aside, members)  # no more of a member than the size it claims
                entries = [entry for entry in aside.iterdir() if entry.name != "__MACOSX"]
                wrapped = unwrap and len(entries) == 1 and entries[0].is_dir()
                settle(entries[0] if wrapped else aside, target)
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"cannot unpack {archive}: {system_reason(error, '--data-root')}") from error
    except Exception as error:  # each decompressor has its own
        raise DataError(f"cannot unpack {archive}: {' '.join(str(error).split()) or type(error).__name__}") from error
    return target


def unpacked(archive: Path, root: Path) -> Path:
    """Return the folder below `root`/unpacked that an archive was unpacked into, now or at an earlier start."""
    folder = root / "unpacked" / f"{cut_name(archive.name.partition('.')[0])}-{mark_of(archive)}"
    return folder if folder.is_dir() else unpack(archive, folder)


def is_archive(path: Path) -> bool:
    return path.name.lower().endswith((".zip", ".tar", ".tar.gz", ".tgz"))


def _open(archive: Path) -> zipfile.ZipFile | tarfile.TarFile:
    if zipfile.is_zipfile(archive):
        return zipfile.ZipFile(archive)
    if tarfile.is_tarfile(archive):
        return tarfile.open(archive)
    raise DataError(f"{archive} is neither a zip nor a tar archive, or its end is missing")


def _judged(opened: zipfile.ZipFile | tarfile.TarFile, archive: Path, target: Path) -> list[Any]:
    """Return the members that are files, under names that lie below the target. Raises DataError: one is refused."""
    free = shutil.disk_usage(next(path for path in target.absolute().parents if path.exists())).free
    size, used, members = archive.stat().st_size, 0, dict[str, Any]()
    for member, name, claimed, is_file in _members(opened):
        safe = name_inside(name)
        used += claimed
        if not is_file:
            why = f"{name!r} is a link or a device, not a file"
        elif not safe:
            why = f"{name!r} lies outside the folder it is unpacked into"
        elif safe in members:
            why = f"{name!r} is in it twice"
        elif used > max(FREE_BYTES, MAX_RATIO * size):
            why = f"its {size:,} bytes unpack to {used:,} or more, over {MAX_RATIO} times"
        elif used > free:
            why = f"it unpacks to {used:,} bytes or more; {free:,} are free on that disk"
        else:
            members[safe] = member
            continue
        raise DataError(f"{archive} is refused: {why}")
    for safe, member in members.items():
        setattr(member, "filename" if isinstance(opened, zipfile.ZipFile) else "name", safe)
    return [*members.values()]


def name_inside(name: str) -> str:
    """Return a member's name with forward slashes; empty where it leaves its folder.

    On any system: it is absolute, or has a part `..`."""
    path = PureWindowsPath(name)  # which knows both slashes, and drives
    return "" if path.anchor or ".." in path.parts else "/".join(path.parts)


def _members(opened: zipfile.ZipFile | tarfile.TarFile) -> Iterator[tuple[Any, str, int, bool]]:
    """Yield each member that is no folder: name, claimed bytes, whether it is a plain file."""
    if isinstance(opened, zipfile.ZipFile):
        for entry in opened.infolist():
            if not entry.is_dir():
                kind = stat.S_IFMT(entry.external_attr >> 16)
                yield entry, entry.filename, entry.file_size, kind in (0, stat.S_IFREG)
    else:
        for info in opened:
            if not info.isdir():
                yield info, info.name, info.size, info.isreg()
        if opened.fileobj:
            opened.fileobj.read(2**20)  # the padding, and the checksum at the end of a .tar.gz


def mark_of(*files: Path) -> str:
    """Return a mark that tells files of one name apart.

    By size, time, start and end, where a zip lists its members."""
    digest = hashlib.blake2b(digest_size=4)
    for path in files:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 2**20))
            end = file.read()
            file.seek(0)
            time = os.fstat(file.fileno()).st_mtime_ns  # in the middle of a tar a picture may change
            digest.update(b"%d|%d|" % (size, time) + file.read(2**16) + end)
    return digest.hexdigest()
