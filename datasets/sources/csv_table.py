"""A table of images: path, label and perhaps split, one row per image, paths relative to the table."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd

from datasets.bundle import SPLITS, UNSPLIT, PathTable, Samples
from datasets.errors import DataError
from datasets.sources.image_folder import SPLIT_FOLDERS
from datasets.text import some

TABLE_SUFFIXES = (".csv", ".tsv")


def read_table(path: Path, name: str | None = None, *, confined: bool = False) -> Samples:
    """Read a CSV or TSV with the columns path, label and optionally split (train, val, test).

    `confined`: the table came out of an archive, so its paths may not lead out of its folder.

    Raises:
        FileNotFoundError: no such table.
        DataError: missing columns or files, a path given twice, an unknown split, a val class that train lacks.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no table {path}")
    table = _read(path)
    missing = [column for column in ("path", "label") if column not in table]
    if missing:
        raise DataError(
            f"{path} has the columns {', '.join(table.columns)}; it needs {' and '.join(missing)} (path,label[,split])"
        )
    return samples_from_rows(
        path,
        [each.replace("\\", "/") if os.sep == "\\" else each for each in table["path"]],
        table["label"],
        table.get("split"),
        name=name or path.stem,
        confined=confined,
    )


def samples_from_rows(
    path: Path,
    paths: list[str],
    labels: pd.Series,
    splits: pd.Series | None = None,
    *,
    name: str,
    confined: bool = False,
) -> Samples:
    """A sample table from columns; `path` is the table they come from, for messages and for its folder."""
    if not paths:
        raise DataError(f"{path} has no rows")
    codes = _split_codes(path, splits, len(paths))
    _check_rows(path, paths, labels, confined=confined)
    trained = labels[codes <= 0]  # train, or not yet split
    class_names = tuple(sorted(set(trained)))
    number = {each: i for i, each in enumerate(class_names)}
    unknown = sorted(set(labels) - set(class_names))
    if unknown:
        raise DataError(f"{path}: no training row has the class {some(unknown)}, which another split has")
    return Samples(
        name=name,
        class_names=class_names,
        paths=PathTable.from_paths(paths),
        labels=np.fromiter(map(number.__getitem__, labels), np.int32, len(paths)),
        splits=codes,
        root=path.parent,
        val_fraction=0.1 if (codes == SPLITS.index("test")).any() else 0.15,
    )


def _read(path: Path) -> pd.DataFrame:
    try:
        table = pd.read_csv(
            path,
            sep="\t" if path.suffix.lower() == ".tsv" else ",",
            dtype=str,
            keep_default_na=False,  # "NA", "null" and "" are names like any other here
            skipinitialspace=True,
            encoding="utf-8-sig",
        )
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read table {path}: {' '.join(str(error).split())}") from error
    table.columns = [str(column).strip().lower() for column in table.columns]
    return table


def _split_codes(path: Path, splits: pd.Series | None, rows: int) -> np.ndarray:
    if splits is None or (splits == "").all():
        return np.full(rows, UNSPLIT, np.int8)
    names = splits.str.strip().str.lower()
    unknown = sorted(set(names) - set(SPLIT_FOLDERS))
    if unknown:
        raise DataError(f"{path}: split {unknown[0]!r} is none of {', '.join(SPLITS)}; fill the column or leave it out")
    codes = names.map({each: SPLITS.index(split) for each, split in SPLIT_FOLDERS.items()}).to_numpy(np.int8)
    if not (codes == SPLITS.index("train")).any():
        raise DataError(f"{path} has no row with split 'train'")
    return codes


def _check_rows(path: Path, paths: list[str], labels: pd.Series, *, confined: bool) -> None:
    seen: dict[str, int] = {}
    folder = str(path.parent)
    for row, (each, label) in enumerate(zip(paths, labels, strict=True)):
        line = row + 2  # as an editor counts: from 1, and the header is line 1
        if not each or not label:
            raise DataError(f"{path}, line {line}: {'path' if not each else 'label'} is empty")
        if confined and (os.path.isabs(each) or ".." in each.split("/")):
            raise DataError(f"{path}, line {line}: {each!r} leads out of the archive it came in")
        before = seen.setdefault(each, row)
        if before != row:
            other = labels.iloc[before]
            clash = f" with the labels {other!r} and {label!r}" if other != label else ""
            raise DataError(f"{path}: {each!r} appears twice (lines {before + 2} and {line}){clash}")
        if not os.path.isfile(os.path.join(folder, each)):
            raise DataError(f"{path}, line {line}: no file {each!r} in {folder}")
