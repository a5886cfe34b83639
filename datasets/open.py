"""From the options of a set to the table of its images: read, identified and split, once for each command.

`OpenedImages` is what training and comparing ask; `labelled_samples` what scoring asks, of images that get no split."""

import os
from collections.abc import Sequence
from itertools import compress
from typing import Any

import numpy as np

from common.errors import DataError
from common.shell import command
from common.text import pluralise, printable, shorten_list
from datasets.bit_depth import narrow_range
from datasets.bundle import LEFT_OUT, SPLITS, Samples, evenly
from datasets.config import Columns, DataConfig, named_set
from datasets.groups import with_groups
from datasets.known import identified, look, look_ahead
from datasets.look import VALUES, WHOLE
from datasets.sources import read
from datasets.split import require_complete, split_set, subset_training

VALUES_READ = 16
"""Pictures, spread over a set, whose values are read before it is used; `check` reads all."""
LISTING = ("source", "root", "path_column", "label_column", "group", "exclude", "on_bad_image")
"""Options that choose the images."""
SPLITTING = (*LISTING, "split", "grow", "split_seed", "val_fraction", "test_fraction", "folds", "fold")
"""Options that also choose their split. All others choose among the training images, and feed them."""


def read_samples(config: DataConfig, *, only_scored: bool = False) -> Samples:
    """Read the table of a built-in set or of one's own data, as it is. `only_scored`: no image need train."""
    columns = Columns(config.path_column, config.label_column, config.group)
    reading, check = read(config.source, config.root, columns=columns), command("check", *named_set(config))
    if config.exclude is None:
        samples = reading.usable(check=check, only_scored=only_scored)
    else:
        from datasets.excluded import without_listed

        samples = without_listed(reading, config.source, config.exclude, check=check, only_scored=only_scored)
    return with_groups(samples, config.group)


def usable_samples(samples: Samples, config: DataConfig) -> Samples:
    """Return the samples without damaged images, where that is asked. Raises DataError: as `require_used_range`."""
    samples = look_ahead(samples, config.root, judge_all=config.on_bad_image == "skip")
    if config.on_bad_image == "skip":
        samples = without_unreadable(samples)
    return require_used_range(samples)


def without_unreadable(samples: Samples) -> Samples:
    """Leave out every image that cannot be decoded."""
    if samples.pixels is not None:
        return samples
    rows = np.flatnonzero(samples.splits != LEFT_OUT)
    known = look(samples, rows, WHOLE)
    bad = rows[~known.readable(rows)].tolist()
    if not bad:
        return samples
    reasons = tuple(f"cannot read image {os.fspath(samples.file(row))}: {known.faults[row].reason}" for row in bad)
    note = f"{pluralise(len(bad), 'unreadable image')} left out, first: {reasons[0]}"
    return samples.with_splits({LEFT_OUT: bad}).replace(skipped=reasons).note(note)


def require_used_range(samples: Samples) -> Samples:
    """Return the samples. Raises DataError: of VALUES_READ pictures all that have 16 bits use little of their range, or
    the values of one may mean several things."""
    if samples.pixels is not None or samples.root is None:
        return samples
    rows = np.flatnonzero(samples.splits != LEFT_OUT)
    rows = rows[evenly(len(rows), VALUES_READ)].tolist()
    known = look(samples, np.array(rows, np.int64), VALUES)
    paths = {row: f"{samples.name}: {printable(samples.paths[row])!r}" for row in rows}
    for row in rows:
        if (unsure := known.faults.get(row)) and unsure.kind == "unsure_values":
            raise DataError(f"{paths[row]}: {unsure.detail}")
    largest, most_of = max(((int(known.largest[row]), paths[row]) for row in rows), default=(0, ""))
    if fault := narrow_range(largest):
        raise DataError(f"{most_of} and others hold {fault}")
    return samples


def open_samples(config: DataConfig) -> Samples:
    """Read the table of all images that can be used, each with its identity, not yet split."""
    return identified(usable_samples(read_samples(config), config), config.root)


class OpenedImages:
    """Sample tables by the options that they depend on.

    A command that plans, measures and trains makes one and hands it to each step, so that a folder is listed once and
    its images are read once to identify them. All steps then use the images as they were at the first one. Another
    process opens them itself.
    """

    def __init__(self) -> None:
        self._listed: dict[tuple[Any, ...], Samples] = {}
        self._split: dict[tuple[Any, ...], Samples] = {}
        self.said: set[str] = set()
        """Lines about them and about loaded weights that were printed, which the next run does not repeat."""

    def split(self, config: DataConfig) -> Samples:
        """Return the sample table with a split for every image.

        None is taken out yet to train on fewer.

        Keeps nothing where that raises an error.
        """
        listing, splitting = (tuple(getattr(config, name) for name in names) for names in (LISTING, SPLITTING))
        if listing not in self._listed:
            self._listed[listing] = open_samples(config)
        if splitting not in self._split:
            self._split[splitting] = split_set(self._listed[listing], config)
        return self._split[splitting]


def split_samples(config: DataConfig) -> Samples:
    """Return the sample table with a split for every image, for a caller that asks once."""
    return OpenedImages().split(config)


def images_in_use(samples: Samples, config: DataConfig) -> Samples:
    """Take out training images where a run learns from fewer. Raises DataError: a split has none."""
    return require_complete(subset_training(samples, config))


def labelled_samples(config: DataConfig, *, class_names: Sequence[str], split: str | None = None) -> Samples:
    """Return all images, or those of a set's own split, as validation images of a model.

    Classes are matched by name, so their order and which of them occur do not matter. Raises FileNotFoundError: no such
    data. DataError: a class that `class_names` does not have (both lists are named), or no such split.
    """
    samples = read_samples(config, only_scored=True)
    chosen = samples.splits != LEFT_OUT if split is None else samples.splits == SPLITS.index(split)
    if config.on_bad_image != "skip":
        require_known_classes(samples, config, class_names)  # before any picture is read
    if split is None and not chosen.any():
        raise DataError(f"{config.source}: {config.exclude} lists every image, and none is left to score")
    if not chosen.any():
        brought = [name for code, name in enumerate(SPLITS) if (samples.splits == code).any()]
        raise DataError(f"{config.source} has no {split} split of its own; it has {', '.join(brought) or 'no splits'}")
    scored = usable_samples(samples.with_splits({LEFT_OUT: np.flatnonzero(~chosen)}), config)
    readable = scored.splits != LEFT_OUT
    if not readable.any():
        raise DataError(f"{config.source}: no image can be read, first {scored.skipped[0]}")
    require_known_classes(samples.with_splits({LEFT_OUT: np.flatnonzero(chosen & ~readable)}), config, class_names)
    known = {name: number for number, name in enumerate(class_names)}
    number = np.array([known.get(name, -1) for name in samples.class_names], np.int32)
    splits = np.where(readable, SPLITS.index("val"), LEFT_OUT).astype(np.int8)
    return scored.replace(labels=number[samples.labels], class_names=tuple(class_names), splits=splits)


def require_known_classes(samples: Samples, config: DataConfig, class_names: Sequence[str]) -> None:
    """Raise DataError where an image in use has a class that a model lacks.

    Both lists are named."""
    known = set(class_names)
    unknown = [name for name in compress(samples.class_names, samples.classes_in_use()) if name not in known]
    if unknown:
        root, hint = samples.root, ""
        if root is not None and root.name in known:  # `innermost` has stepped into it
            hint = f"; {root} is one class: put an empty folder of another class next to it"
        raise DataError(
            f"{config.source} has classes that the model does not know: {shorten_list(unknown)}; "
            f"the data has {shorten_list(list(samples.class_names), 20)};"
            f" the model has {shorten_list(list(class_names), 20)}{hint}"
        )
