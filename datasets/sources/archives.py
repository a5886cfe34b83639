"""Unpack zip and tar archives that nobody has vouched for."""

import hashlib
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from contextlib import suppress
from itertools import takewhile
from pathlib import Path, PurePosixPath

from common.errors import DataError
from common.files import folder_aside, require_writable_data_root

# Photographs hardly compress; raw pixels reach 5 to 1. What claims more than this is refused before it fills the disk.
MAX_RATIO = 100
FREE_BYTES = 64 * 2**20  # small archives of small text compress well and harm nobody


def unpack(archive: Path, target: Path, *, unwrap: bool = False) -> Path:
    """Unpack into the new folder `target`, whole or not at all: a temporary folder beside it, then one rename.

    `unwrap`: where the archive holds one folder and nothing beside it, that folder becomes `target`. Raises DataError:
    not a zip or tar, damaged, or a member is absolute, leaves the folder, comes twice, is a link or a device, or the
    contents are larger than 100 times the archive or than the free disk. Nothing is left behind.
    """
    require_writable_data_root(target)
    made = list(takewhile(lambda path: not path.exists(), target.parents))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot unpack {archive} to {target.parent}: {error.strerror}; name another folder") from error
    try:
        with folder_aside(target) as aside:
            content = aside / "content"
            _extract(archive, content)
            entries = [entry for entry in content.iterdir() if entry.name != "__MACOSX"]
            wrapped = unwrap and len(entries) == 1 and entries[0].is_dir()
            (entries[0] if wrapped else content).rename(target)
    except BaseException:
        with suppress(OSError):  # until one of them holds something by now
            for folder in made:
                folder.rmdir()
        raise
    return target


def is_archive(path: Path) -> bool:
    return path.name.lower().endswith((".zip", ".tar", ".tar.gz", ".tgz"))


def _extract(archive: Path, content: Path) -> None:
    """Extract every member that has been judged; neither module writes more of one than the size it claims."""
    judge = _Judge(archive, free=shutil.disk_usage(content.parent).free)
    content.mkdir()
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                entries = [entry for entry in opened.infolist() if not entry.is_dir()]
                for entry in entries:  # all of them before the first byte
                    is_file = stat.S_IFMT(entry.external_attr >> 16) in (0, stat.S_IFREG)
                    entry.filename = judge.safe_name(entry.filename, entry.file_size, is_file=is_file)
                opened.extractall(content, entries)
        elif tarfile.is_tarfile(archive):
            with tarfile.open(archive) as opened:
                for info in (info for info in opened if not info.isdir()):
                    info.name = judge.safe_name(info.name, info.size, is_file=info.isreg())
                    opened.extract(info, content, filter="data")
                while opened.fileobj and judge.used < judge.budget and (rest := opened.fileobj.read(2**20)):
                    judge.used += len(rest)  # to the checksum at the end of a .tar.gz
        else:
            raise DataError(f"{archive} is neither a zip nor a tar archive, or its end is missing")
    except (zipfile.BadZipFile, zlib.error, tarfile.TarError, EOFError, OSError, RuntimeError) as error:
        raise DataError(f"cannot unpack {archive}: {' '.join(str(error).split()) or type(error).__name__}") from error


class _Judge:
    """Looks at the members of an archive one by one, before they are written."""

    def __init__(self, archive: Path, *, free: int) -> None:
        self.archive, self.free, self.used = archive, free, 0
        self.budget = max(FREE_BYTES, MAX_RATIO * archive.stat().st_size)
        self.names: set[str] = set()

    def safe_name(self, name: str, size: int, *, is_file: bool) -> str:
        """The name of a member below the target, `/` between its parts."""
        parts = PurePosixPath(name.replace("\\", "/")).parts
        self.used += size
        if not is_file:
            raise DataError(f"{self.archive} is refused: {name!r} is a link or a device, not a file")
        if not parts or parts[0] == "/" or ".." in parts or ":" in parts[0]:
            raise DataError(f"{self.archive} is refused: {name!r} lies outside the folder it is unpacked into")
        if self.used > self.budget:
            sizes = f"{self.archive.stat().st_size:,} bytes unpack to {self.used:,} or more"
            raise DataError(f"{self.archive} is refused: {sizes}, over {MAX_RATIO} times")
        if self.used > self.free:
            sizes = f"{self.used:,} bytes or more; {self.free:,} are free on that disk"
            raise DataError(f"{self.archive} unpacks to {sizes}")
        if "/".join(parts) in self.names:
            raise DataError(f"{self.archive} is refused: {name!r} is in it twice")
        self.names.add("/".join(parts))
        return "/".join(parts)


def mark_of(*files: Path) -> str:
    """Tells files of one name apart: by size, start and end, where a zip lists its members and their checksums."""
    digest = hashlib.blake2b(digest_size=4)
    for path in files:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 2**20))
            end = file.read()
            file.seek(0)
            digest.update(b"%d|" % size + file.read(2**16) + end)
    return digest.hexdigest()
