"""One round of labelling: read the pictures and their labels so far, and choose which to label next."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.errors import DataError, OptionError
from common.shell import command
from common.text import pluralise, printable
from datasets.bundle import SPLITS, TRAIN, PathTable, Samples, split_name
from datasets.config import DATASETS, Columns, DataConfig
from datasets.loaders import read_samples
from datasets.sources.archives import is_archive, unpacked
from datasets.sources.csv_table import TABLE_SUFFIXES, USUAL, columns_of, read_columns, split_column
from datasets.sources.own_data import read_source
from datasets.sources.reading import SPLIT_FOLDERS
from inference.images import find_images
from inference.labels.choose import Chosen, choose, few_labels, free_rows, probabilities_of
from inference.labels.features import ExtractedFeatures
from inference.labels.picks import Label, Pick, read_labels, read_picks, read_skipped, write_picks
from trainers.reporting.console import say

LISTED = 10
"""Pictures and classes named on the terminal."""


@dataclass(frozen=True)
class Pool:
    """N pictures, those to choose from and then labelled ones from elsewhere; and what earlier rounds left."""

    samples: Samples
    """Their paths are absolute, their labels unknown to it."""
    own: int
    """Number of the first ones, which are to choose from."""
    labels: Mapping[str, Label] = field(default_factory=dict)
    """Labels by path; of pictures of either kind."""
    picks: Sequence[Pick] = ()
    """Picks of the last round."""
    skipped: Sequence[str] = ()

    @property
    def waiting(self) -> list[Pick]:
        """The picks that nobody has decided on."""
        return [pick for pick in self.picks if not pick.decision]

    def rows(self, paths: Sequence[str]) -> NDArray[np.int64]:
        """Rows of the pictures with these paths, of those that it has."""
        row_of = {path: row for row, path in enumerate(self.samples.paths)}
        return np.array([row_of[path] for path in paths if path in row_of], np.int64)


def open_round(source: str, root: Path, folder: Path, *, labelled: Sequence[str], path_column: str | None) -> Pool:
    """Find the pictures of `source`, with all labels that are known: of `labelled` sets and of earlier rounds in
    `folder`, whose word counts most. Raises what reading them raises."""
    labels: dict[str, Label] = {}
    for place in labelled:
        labels |= labels_of_set(DataConfig(place, root))
    labels |= read_labels(folder / "labels.csv")
    picks = read_picks(folder / "picks.csv") if (folder / "picks.csv").is_file() else []
    labels |= {pick.path: Label(pick.label) for pick in picks if pick.label}
    for pick in picks:
        if not pick.label:  # taken back since labels.csv was written
            labels.pop(pick.path, None)
    skipped = [*read_skipped(folder / "skipped.csv"), *(pick.path for pick in picks if pick.skipped)]
    return read_pool(source, root, labels, path_column=path_column, picks=picks, skipped=skipped)


def read_pool(
    source: str, root: Path, labelled: Mapping[str, Label], *, path_column: str | None = None, **earlier: Sequence
) -> Pool:
    """Find the pictures of a folder with its sub-folders, a table, or an archive (unpacked below `root`); add the
    labelled ones. A label that a table gives a picture counts as given; names of folders do not.

    Raises FileNotFoundError, UnknownDataSet: no such place. DataError: no picture, or no files."""
    path, labels = Path(source).expanduser(), dict[str, Label]()
    if path.is_file() and path.suffix.lower() in TABLE_SUFFIXES:
        paths = list(paths_of_table(path, path_column, labels))
    elif path.is_dir() or is_archive(path):
        folder = path if path.is_dir() else unpacked(path, root)
        paths = [os.path.abspath(file.path) for file in find_images([str(folder)]) if os.path.isfile(file.path)]
    else:
        if source not in DATASETS:
            read_source(source, root)  # says what is expected
        raise DataError(f"{source}: expected a folder of pictures, a table with a column of paths, or an archive")
    own = len(dict.fromkeys(paths))
    if not own:
        raise DataError(f"{source} has no picture: expected a folder, a table with a column of paths, or an archive")
    labels |= labelled
    every = list(dict.fromkeys([*paths, *labels]))
    columns = np.zeros(len(every), np.int32), np.full(len(every), TRAIN, np.int8)
    samples = Samples(path.name, ("unlabelled",), PathTable(every), *columns, root=Path(os.sep))
    return Pool(samples, own, labels, **earlier)


def paths_of_table(table: Path, column: str | None, labels: dict[str, Label]) -> Iterator[str]:
    """Yield the absolute paths in a table; the labels that it gives are added to `labels`. Raises DataError: no column
    of paths, or a path that leads to no file."""
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


def choose_round(pool: Pool, extracted: ExtractedFeatures, folder: Path, count: int) -> Iterator[str]:
    """Choose `count` pictures, write picks.csv into `folder`, and say what was chosen by which rule.

    Raises OptionError: no picture is left."""
    for fault in extracted.faults[:LISTED]:
        say(f"left out, cannot be read: {printable(fault)}", label="note")
    taken = pool.rows([*pool.labels, *pool.skipped])
    usable = extracted.readable & (np.arange(len(pool.samples)) < pool.own)
    usable[taken] = False
    free = free_rows(extracted.groups, usable, taken)
    if not len(free):
        raise OptionError(f"every picture of {pool.samples.name} has a label, or a copy with one: none is left")
    learnt = pool.rows([path for path, label in pool.labels.items() if label.split != SPLITS[2]])
    learnt = learnt[extracted.readable[learnt]]
    classes, probabilities = thought(pool, extracted, learnt)
    chosen = choose(extracted.features, free, learnt, count, probabilities=probabilities)
    picks = [pick_of(pool, each, classes, probabilities) for each in chosen]
    folder.mkdir(parents=True, exist_ok=True)
    write_picks(folder / "picks.csv", picks)
    why = {
        "centre": "typical of many pictures, as labels are few or there are none",
        "uncertain": "of those that the model is least sure of, as different as can be",
    }
    for kind, number in Counter(pick.reason for pick in picks).items():
        yield f"{'chosen':>9}  {pluralise(number, 'picture')} of {len(free):,}: {why[kind]}"
    if copies := int(usable.sum()) - len(free):
        yield f"{'copies':>9}  {pluralise(copies, 'picture')} not asked about: copies of others"
    yield f"{'table':>9}  {folder / 'picks.csv'}: paths and scores, for any labelling program"


def thought(
    pool: Pool, extracted: ExtractedFeatures, learnt: NDArray[np.int64]
) -> tuple[list[str], NDArray[np.float64] | None]:
    """The classes, and what logistic regression on the labels thinks of each picture (N, C); None: labels are few."""
    names = [pool.labels[pool.samples.paths[row]].name for row in learnt.tolist()]
    classes = list(dict.fromkeys(names))
    numbers = np.array([classes.index(name) for name in names], int)
    if few_labels(numbers):
        return classes, None
    return classes, probabilities_of(extracted.features, learnt, numbers, len(classes))


def pick_of(pool: Pool, chosen: Chosen, classes: list[str], probabilities: NDArray[np.float64] | None) -> Pick:
    guess = confidence = second = ""
    if probabilities is not None:
        order = np.argsort(-probabilities[chosen.row], kind="stable")
        guess, confidence = classes[order[0]], f"{probabilities[chosen.row, order[0]]:.4f}"
        second = classes[order[1]] if len(order) > 1 else ""
    reason = "uncertain" if chosen.uncertain else "centre"
    path = pool.samples.paths[chosen.row]
    return Pick(path, reason, f"{chosen.score:.4f}", guess, confidence, second, label="", skipped="", decided="")


def summary(folder: Path, labels: Mapping[str, Label]) -> Iterator[str]:
    """Number of labels, and the command that trains on them."""
    if not labels:
        return
    counts = Counter(label.name for label in labels.values())
    named = ", ".join(f"{printable(name)} {count:,}" for name, count in counts.most_common(LISTED))
    more = ", ..." * (len(counts) > LISTED)
    yield f"{'labels':>9}  {pluralise(len(labels), 'picture')}: {named}{more}"
    yield f"{'train':>9}  {command('train', folder / 'labels.csv', '--weights', 'auto')}"
