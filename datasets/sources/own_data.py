"""Find out what a person's own data is: a folder, a table, or an archive of either."""

import hashlib
import os
from pathlib import Path

from datasets.bundle import Samples
from datasets.config import DATASETS
from datasets.errors import DataError, UnknownDataSet
from datasets.sources.archives import is_archive, unpack
from datasets.sources.csv_table import TABLE_SUFFIXES, is_sample_table, read_table
from datasets.sources.image_folder import innermost, list_folder, read_image_folder
from datasets.sources.reading import Reading
from datasets.text import did_you_mean

EXPECTED = "a folder of class folders, of train/ and val/, a table path,label[,split] (.csv, .tsv), or a .zip of these"


def read_own_data(source: str, root: Path) -> Samples:
    """The sample table of a person's own data, as training wants it: without a fault."""
    return read_source(source, root).usable()


def read_source(source: str, root: Path) -> Reading:
    """Read a folder, a table or an archive, faults and all; archives are unpacked below `root`/unpacked, once."""
    path = Path(source).expanduser()
    if path.is_dir():
        return _read_folder(path, path.resolve().name)
    if path.is_file() and path.suffix.lower() in TABLE_SUFFIXES:
        return read_table(path)
    if path.is_file() and is_archive(path):
        name = path.name.partition(".")[0]
        unpacked = root / "unpacked" / f"{name}-{_mark(path)}"
        return _read_folder(unpacked if unpacked.is_dir() else unpack(path, unpacked), name, confined=True)
    if path.exists():
        raise DataError(f"{path} is no data set; expected {EXPECTED}")
    if path.suffix or os.sep in source or "/" in source:
        raise FileNotFoundError(f"no data at {path}; expected {EXPECTED}")
    raise UnknownDataSet(
        f"unknown data set {source!r}{did_you_mean(source, DATASETS)} "
        f"Known: {', '.join(DATASETS)}; or the path of your own data"
    )


def _read_folder(folder: Path, name: str, *, confined: bool = False) -> Reading:
    """The one table in a folder that names paths and labels is meant as its index; else there are class folders."""
    try:
        inner = innermost(folder)
        tables = [inner / file for file in list_folder(inner)[1] if file.lower().endswith(TABLE_SUFFIXES)]
    except OSError as error:
        raise DataError(f"cannot list the folder {error.filename or folder}: {error.strerror}") from error
    indexes = [table for table in tables if is_sample_table(table)]
    if len(indexes) == 1:
        return read_table(indexes[0], name, confined=confined)
    return read_image_folder(inner, name)


def _mark(archive: Path) -> str:
    """Tells archives of one name apart: by size, start and end, where a zip lists its members and their checksums."""
    with open(archive, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 2**20))
        end = file.read()
        file.seek(0)
        start = file.read(2**16)
    return hashlib.blake2b(b"%d|" % size + start + end, digest_size=4).hexdigest()
