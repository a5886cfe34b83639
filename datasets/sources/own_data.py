"""Find out what a person's own data is: a folder, a table, shards, or an archive of a folder or a table."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from common.errors import DataError, OptionError, UnknownDataSet
from common.text import did_you_mean, shorten_list
from datasets.built_in import BUILT_IN
from datasets.config import HUB_PREFIX, USUAL_COLUMNS, Columns, data_name
from datasets.sources.archives import is_archive, unpacked
from datasets.sources.csv_table import TABLE_SUFFIXES, is_sample_table, read_table
from datasets.sources.hub import obtain_from_hub
from datasets.sources.image_folder import innermost, read_image_folder, read_pictures
from datasets.sources.parquet import read_parquet
from datasets.sources.reading import Reading, split_word
from datasets.sources.shards import TABLES, read_tar_shards, shards_at, shards_in
from datasets.sources.walk import list_folder

EXPECTED = (
    "a folder of class folders, of train/ and val/, a table path,label[,split] (.csv, .tsv), a .zip of these,"
    " or shards, 'FOLDER/*.tar'"
)
OTHER_DATA = (*TABLE_SUFFIXES, *TABLES, ".tar", ".zip")


def read_source(source: str, root: Path, *, columns: Columns = USUAL_COLUMNS, needs_labels: bool = True) -> Reading:
    """Read a folder, a table, shards, an archive or a set of the hub.

    Archives are unpacked below `root`/unpacked."""
    path = obtain_from_hub(source, root) if source.startswith(HUB_PREFIX) else Path(os.path.expanduser(source))
    if path.is_dir():
        name = path.resolve().name
        return _read_folder(path, name, root, columns) if needs_labels else _read_pictures(path, name, columns)
    if path.is_file() and path.suffix.lower() in TABLE_SUFFIXES:
        return read_table(path, columns=columns, needs_labels=needs_labels)
    if shards := shards_at(path):
        return _read_shards(shards, data_name(source), root, columns)
    if path.is_file() and is_archive(path):
        folder, name = unpacked(path, root), path.name.partition(".")[0]
        if not needs_labels:
            return _read_pictures(folder, name, columns)
        return _read_folder(folder, name, root, columns, confined=True)
    if path.exists():
        raise DataError(f"{path} is no data set; expected {EXPECTED}")
    if path.suffix or os.sep in source or "/" in source:
        raise FileNotFoundError(f"no data at {path}; expected {EXPECTED}")
    raise UnknownDataSet(
        f"unknown data set {source!r}{did_you_mean(source, [*BUILT_IN, *list_folder(Path())[0]])} "
        f"Known: {', '.join(BUILT_IN)}; or the path of your own data"
    )


def _read_shards(files: Sequence[Path], name: str, root: Path, columns: Columns) -> Reading:
    if files[0].suffix in TABLES:
        return read_parquet(files, name, root, columns)
    return read_tar_shards(files, name, root)


def _read_pictures(folder: Path, name: str, columns: Columns) -> Reading:
    if columns.path is not None:
        raise OptionError(f"path_column={columns.path} names a column, and {folder} is no table: leave it out")
    return read_pictures(folder, name)


def _read_folder(folder: Path, name: str, root: Path, columns: Columns, *, confined: bool = False) -> Reading:
    """Read the one table of paths and labels in a folder, its shards or its class folders.

    `confined`: a table may not name files outside the folder.
    """
    try:
        inner = innermost(folder)
        if shards := shards_in(inner):
            return _read_shards(shards, name, root, columns)
        tables = [inner / file for file in list_folder(inner)[1] if file.lower().endswith(TABLE_SUFFIXES)]
    except OSError as error:
        raise DataError(f"cannot list the folder {error.filename or folder}: {error.strerror}") from error
    sure = [table for table in tables if is_sample_table(table, columns, sure=True)]
    if len(sure) == 1:
        return read_table(sure[0], name, columns=columns, confined=confined)
    if any(columns[:2]):
        raise DataError(f"{inner} has {len(sure)} tables with these columns; name the table itself as --data")
    likely = [table for table in tables if is_sample_table(table, columns)]
    try:
        reading = read_image_folder(inner, name)
    except DataError as error:
        if len(likely) == 1:
            return read_table(likely[0], name, columns=columns, confined=confined)
        others = [
            str(path.relative_to(inner))
            for depth in ("*", "*/*")
            for path in sorted(inner.glob(depth))
            if path.suffix.lower() in OTHER_DATA
        ]
        hint = f"; there is {shorten_list(others)}: --data can name a table, an archive or a folder of shards"
        raise DataError(f"{error}{hint * bool(others)}") from error
    classes = {reading.samples.class_names[label] for label in np.unique(reading.samples.labels)}
    if len([name for name in classes if not split_word(name)]) < 2 and len(likely) == 1:  # Kaggle's train_images
        return read_table(likely[0], name, columns=columns, confined=confined)
    if len(classes) == len(tables) == 1:
        return read_table(tables[0], name, columns=columns, confined=confined)  # its error names the missing column
    if inner == folder or confined:
        return reading
    samples = reading.samples.note(f"the classes are the folders in {inner}, the only one in {folder}")
    return replace(reading, samples=samples, form=f"{reading.form} in {inner.relative_to(folder)}/")
