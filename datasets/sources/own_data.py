"""Find out what a person's own data is: a folder, a table, shards, or an archive of a folder or a table."""

import hashlib
import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from datasets.config import DATASETS, USUAL_COLUMNS, Columns, data_name
from datasets.errors import DataError, UnknownDataSet
from datasets.grouping.option import by_column, column_of
from datasets.images import is_image_name
from datasets.sources.archives import is_archive, unpack
from datasets.sources.csv_table import TABLE_SUFFIXES, is_sample_table, read_table
from datasets.sources.image_folder import innermost, list_folder, read_image_folder
from datasets.sources.large.hub import PREFIX, obtain_from_hub
from datasets.sources.large.index import indexed
from datasets.sources.large.shards import TABLES, read_shards, shards_at, shards_in
from datasets.sources.reading import SPLIT_FOLDERS, Reading
from datasets.text import did_you_mean

EXPECTED = (
    "a folder of class folders, of train/ and val/, a table path,label[,split] (.csv, .tsv), a .zip of these,"
    " or shards, 'FOLDER/*.tar'"
)


def read_source(source: str, root: Path, *, columns: Columns = USUAL_COLUMNS) -> Reading:
    """Read a folder, a table, shards, an archive or a set of the hub, with its faults; archives are unpacked below
    `root`/unpacked."""
    path = obtain_from_hub(source, root) if source.startswith(PREFIX) else Path(source).expanduser()
    if path.is_dir():
        return _read_folder(path, path.resolve().name, root, columns)
    if path.is_file() and path.suffix.lower() in TABLE_SUFFIXES:
        return read_table(path, columns=columns)
    if shards := shards_at(path):
        return _read_shards(shards, data_name(source), root, columns)
    if path.is_file() and is_archive(path):
        name = path.name.partition(".")[0]
        unpacked = root / "unpacked" / f"{name}-{_mark(path)}"
        folder = unpacked if unpacked.is_dir() else unpack(path, unpacked)
        return _read_folder(folder, name, root, columns, confined=True)
    if path.exists():
        raise DataError(f"{path} is no data set; expected {EXPECTED}")
    if path.suffix or os.sep in source or "/" in source:
        raise FileNotFoundError(f"no data at {path}; expected {EXPECTED}")
    raise UnknownDataSet(
        f"unknown data set {source!r}{did_you_mean(source, DATASETS)} "
        f"Known: {', '.join(DATASETS)}; or the path of your own data"
    )


def _read_folder(folder: Path, name: str, root: Path, columns: Columns, *, confined: bool = False) -> Reading:
    """The one table in a folder that names paths and labels is meant as its index; else there are class folders."""
    try:
        inner = innermost(folder)
        if shards := shards_in(inner):
            return _read_shards(shards, name, root, columns)
        folders, files = list_folder(inner)
        tables = [inner / file for file in files if file.lower().endswith(TABLE_SUFFIXES)]
        sure = any(columns[:2]) or not tables or _has_class_folders(inner, folders)
    except OSError as error:
        raise DataError(f"cannot list the folder {error.filename or folder}: {error.strerror}") from error
    for certainly in (True, False)[: 1 if sure else 2]:
        indexes = [table for table in tables if is_sample_table(table, columns, sure=certainly)]
        if len(indexes) == 1:
            return read_table(indexes[0], name, columns=columns, confined=confined)
    if any(columns[:2]):
        raise DataError(f"{inner} has {len(indexes)} tables with these columns; name the table itself as --data")
    return indexed(partial(read_image_folder, inner, name), root, name, inner, inner.absolute())


def _has_class_folders(root: Path, folders: Sequence[str]) -> bool:
    """Whether two folders hold images, or a folder of a split holds folders; Kaggle's train_images is one of these."""
    count = 0
    for name in folders:
        within, files = list_folder(root / name)
        of_a_split = re.split("[_-]", name.lower())[0] in SPLIT_FOLDERS
        count += any(map(is_image_name, files)) and not of_a_split
        if count > 1 or (of_a_split and within):
            return True
    return False


def _read_shards(files: Sequence[Path], name: str, root: Path, columns: Columns) -> Reading:
    """Tar shards where they lie; parquet and Arrow, which give pictures by the thousand, once written as such."""
    group = column_of(columns.group) if files[0].suffix in TABLES else None
    if files[0].suffix in TABLES:
        from datasets.sources.large.parquet import unpack_parquet

        unpacked = root / "unpacked" / f"{name}-{_mark(*files)}"
        if group is not None:  # the groups of another column are other files
            mark = hashlib.blake2b(group.encode(), digest_size=4).hexdigest()
            unpacked = unpacked.with_name(f"{unpacked.name}-{mark}")
        if not unpacked.is_dir():
            unpack_parquet(files, unpacked, columns)
        files = shards_in(unpacked)
    key = [(file, file.absolute()) for file in files]
    reading = indexed(partial(read_shards, files, name, columns), root, name, key, columns)
    if group is not None:
        reading.samples = reading.samples.replace(grouped_by=by_column(group))
    return reading


def _mark(*files: Path) -> str:
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
