"""The pictures to choose from, and those that have labels already: one table of files, whatever they came as."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from common.errors import DataError
from common.text import printable
from datasets.bundle import SPLITS, TRAIN, PathTable, Samples, split_name
from datasets.config import DATASETS, Columns, DataConfig
from datasets.images import picture_of
from datasets.loaders import read_samples
from datasets.sources.archives import is_archive, unpacked
from datasets.sources.csv_table import TABLE_SUFFIXES, USUAL, columns_of, read_columns, split_column
from datasets.sources.own_data import read_source
from datasets.sources.reading import SPLIT_FOLDERS
from inference.images import find_images

UNLABELLED = ("unlabelled",)
"""The one class of a table of pictures whose labels nobody knows."""


class Label(NamedTuple):
    """Label that a person gave a picture."""

    name: str
    split: str = ""
    """Split, if the labelled set names its splits."""


@dataclass(frozen=True)
class Pool:
    """N pictures: those to choose from, then labelled ones from elsewhere."""

    samples: Samples
    """Their paths are absolute, their labels unknown to it."""
    own: int
    """Number of the first ones, which are to choose from."""
    labels: Mapping[int, Label] = field(default_factory=dict)
    """Labels by the row of `samples`; of pictures of either kind."""

    @property
    def class_names(self) -> list[str]:
        """The classes that have a label so far, in the order in which they were first given."""
        return list(dict.fromkeys(label.name for label in self.labels.values()))


def read_pool(
    source: str, root: Path, labelled: Mapping[str, Label], *, path_column: str | None = None, written: Path
) -> Pool:
    """All pictures of a folder with its sub-folders, a table, an archive (unpacked below `root`) or a built-in set, and
    the labelled ones. A label that a table gives a picture counts as given; names of folders do not.

    Pictures of a set that has no files are written into the folder `written`, once. Raises FileNotFoundError,
    UnknownDataSet: no such pictures. DataError: no picture, or pictures that are no files of their own."""
    labels: dict[str, Label] = {}
    paths = list(dict.fromkeys(_files_of(source, root, path_column, written, labels)))
    if not paths:
        raise DataError(f"{source} has no picture: expected a folder, a table with a column of paths, or an archive")
    labels |= labelled
    row_of = {path: row for row, path in enumerate(paths)}
    for path in labels:
        row_of.setdefault(path, len(row_of))
    samples = samples_of_files(Path(source).name or source, list(row_of))
    return Pool(samples, len(paths), {row_of[path]: label for path, label in labels.items()})


def samples_of_files(name: str, paths: list[str]) -> Samples:
    """A table of picture files by their absolute paths, all of one class and one split."""
    count = len(paths)
    columns = np.zeros(count, np.int32), np.full(count, TRAIN, np.int8)
    return Samples(name, UNLABELLED, PathTable(paths), *columns, root=Path(os.sep))


def _files_of(
    source: str, root: Path, path_column: str | None, written: Path, labels: dict[str, Label]
) -> Iterator[str]:
    """The absolute paths of the pictures; what a table says of them goes into `labels`."""
    path = Path(source).expanduser()
    if source in DATASETS or not path.exists():
        yield from _of_set(read_samples(DataConfig(source, root)), written)
    elif path.is_file() and path.suffix.lower() in TABLE_SUFFIXES:
        yield from _of_table(path, path_column, labels)
    elif path.is_dir() or is_archive(path):
        folder = path if path.is_dir() else unpacked(path, root)
        yield from (os.path.abspath(file.path) for file in find_images([str(folder)]) if os.path.isfile(file.path))
    else:
        read_source(source, root)  # says what is expected
        raise DataError(f"{source}: expected a folder of pictures, a table with a column of paths, or an archive")


def _of_table(table: Path, column: str | None, labels: dict[str, Label]) -> Iterator[str]:
    """Raises DataError: no column of paths, or a path that leads to no file."""
    cells, lines, _ = read_columns(table)
    path_name = columns_of(cells, "path", Columns(column), table)[0]
    label_name = next((name for name in USUAL["label"] if name in cells), "")
    split_name = split_column(cells, {path_name, label_name}, table)
    given, splits = (cells.get(name, [""] * len(lines)) for name in (label_name, split_name))
    for line, cell, label, split in zip(lines, cells[path_name], given, splits, strict=True):
        path = os.path.abspath(table.parent / cell)
        if not os.path.isfile(path):
            raise DataError(f"{table}, line {line}: no picture {printable(cell)!r}")
        if label:
            labels[path] = Label(label, SPLIT_FOLDERS.get(split.strip().lower(), ""))
        yield path


def _of_set(samples: Samples, written: Path) -> Iterator[str]:
    """The files of a set; of one that is held in memory its pictures, written as PNG files where they are not yet."""
    if samples.members is not None:
        raise DataError(f"{samples.name} lies in shards: next takes pictures that are files of their own")
    for row in range(len(samples)):
        file = written / f"{samples.paths[row]}.png" if samples.pixels is not None else Path(samples.file(row))
        if samples.pixels is not None and not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            picture_of(samples, row).save(file)
        yield os.path.abspath(file)


def labels_of_set(config: DataConfig) -> dict[str, Label]:
    """Every picture of a labelled set by its absolute path, with the split that the set itself gives it. Raises what
    reading it for training raises, and DataError: pictures that are no files."""
    samples = read_samples(config)
    if samples.pixels is not None or samples.members is not None:
        raise DataError(f"{config.source} is not made of files: next knows labelled pictures by their files")
    return {
        os.path.abspath(samples.file(row)): Label(
            samples.class_names[samples.labels[row]], split_name(int(samples.splits[row]))
        )
        for row in np.flatnonzero(samples.splits >= -1).tolist()
    }


def in_test(label: Label) -> bool:
    """Return whether a labelled picture is one to test on, from which nothing is learnt."""
    return label.split == SPLITS[2]
