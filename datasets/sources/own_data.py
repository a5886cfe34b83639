"""Find out what a person's own data is: a folder, a table, shards, or an archive of a folder or a table."""

import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from common.errors import DataError, UnknownDataSet
from common.options import operand
from common.shell import command
from common.text import did_you_mean, shorten_list
from datasets.config import DATASETS, HUB_PREFIX, USUAL_COLUMNS, Columns, data_name
from datasets.images import is_image_name
from datasets.sources.archives import is_archive, mark_of, unpack
from datasets.sources.csv_table import TABLE_SUFFIXES, is_sample_table, read_table
from datasets.sources.image_folder import innermost, list_folder, read_image_folder
from datasets.sources.large.door import read_shards
from datasets.sources.large.hub import obtain_from_hub
from datasets.sources.large.index import indexed
from datasets.sources.large.shards import shards_at, shards_in
from datasets.sources.reading import SPLIT_FOLDERS, Reading

EXPECTED = (
    "a folder of class folders, of train/ and val/, a table path,label[,split] (.csv, .tsv), a .zip of these,"
    " or shards, 'FOLDER/*.tar'"
)


def read_source(source: str, root: Path, *, columns: Columns = USUAL_COLUMNS) -> Reading:
    """Read a folder, a table, shards, an archive or a set of the hub, with its faults; archives are unpacked below
    `root`/unpacked."""
    path = obtain_from_hub(source, root) if source.startswith(HUB_PREFIX) else Path(source).expanduser()
    if path.is_dir():
        return _read_folder(path, path.resolve().name, root, columns)
    if path.is_file() and path.suffix.lower() in TABLE_SUFFIXES:
        return read_table(path, columns=columns)
    if shards := shards_at(path):
        return read_shards(shards, data_name(source), root, columns)
    if path.is_file() and is_archive(path):
        name = path.name.partition(".")[0]
        unpacked = root / "unpacked" / f"{name}-{mark_of(path)}"
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
            return read_shards(shards, name, root, columns)
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
    try:
        reading = indexed(partial(read_image_folder, inner, name), root, name, inner, inner.absolute())
    except DataError as error:
        raise DataError(f"{error}{_other_data(inner, columns)}") from error
    if len(tables) == 1 and len(set(reading.samples.labels.tolist())) == 1:
        return read_table(tables[0], name, columns=columns, confined=confined)  # which says what to name
    if inner != folder and not confined:
        reading.form += f" in {inner.relative_to(folder)}/"
        reading.samples = reading.samples.note(f"the classes are the folders in {inner}, the only one in {folder}")
    return reading


def _other_data(folder: Path, columns: Columns) -> str:
    """Name what lies up to two levels below and can be read in another way, for the end of a line."""
    kinds = (*TABLE_SUFFIXES, ".parquet", ".arrow", ".tar", ".jsonl", ".zip")
    files = sorted(path for depth in ("*", "*/*") for path in folder.glob(depth) if path.suffix.lower() in kinds)
    ways = {
        command("check", operand(str(path if path.suffix.lower() in (*TABLE_SUFFIXES, ".zip") else path.parent)))
        for path in files
        if path.suffix != ".jsonl" and (path.suffix.lower() not in TABLE_SUFFIXES or is_sample_table(path, columns))
    }
    names = shorten_list([str(path.relative_to(folder)) for path in files])
    told = f"; to read it: {' or '.join(sorted(ways)[:3])}" if ways else "; a table needs the columns path and label"
    return f"; there is {names}{told}" if files else ""


def _has_class_folders(root: Path, folders: Sequence[str]) -> bool:
    """Return whether two folders hold images, or a folder of a split holds folders; Kaggle's train_images is one of
    these."""
    count = 0
    for name in folders:
        within, files = list_folder(root / name)
        of_a_split = re.split("[_-]", name.lower())[0] in SPLIT_FOLDERS
        count += any(map(is_image_name, files)) and not of_a_split
        if count > 1 or (of_a_split and within):
            return True
    return False
