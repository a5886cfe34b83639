"""Labelled images for a model that exists already, its classes matched by name."""

from collections.abc import Sequence
from itertools import compress

import numpy as np

from common.errors import DataError
from common.text import shorten_list
from datasets.bundle import LEFT_OUT, SPLITS, Samples
from datasets.classes_in_use import classes_in_use
from datasets.config import DataConfig
from datasets.images import require_used_range
from datasets.loaders import read_samples


def labelled_samples(config: DataConfig, *, class_names: Sequence[str], split: str | None = None) -> Samples:
    """All images of `config.source`, or those of a split that it brings, as validation images of these classes.

    Classes are matched by name, so their order and which of them occur do not matter. Raises FileNotFoundError: no such
    data. DataError: a class that `class_names` does not have (both lists are named), or no such split.
    """
    samples = require_used_range(read_samples(config, only_scored=True))
    known = {name: number for number, name in enumerate(class_names)}
    used = compress(samples.class_names, classes_in_use(samples))
    unknown = [name for name in used if name not in known]
    if unknown:
        raise DataError(
            f"{config.source} has classes that the model does not know: {shorten_list(unknown)}; "
            f"the data has {shorten_list(list(samples.class_names), 20)};"
            f" the model has {shorten_list(list(class_names), 20)}"
        )
    chosen = samples.splits != LEFT_OUT if split is None else samples.splits == SPLITS.index(split)
    if not chosen.any():
        brought = [name for code, name in enumerate(SPLITS) if (samples.splits == code).any()]
        raise DataError(f"{config.source} has no {split} split of its own; it has {', '.join(brought) or 'no splits'}")
    number = np.array([known.get(name, -1) for name in samples.class_names], np.int32)
    splits = np.where(chosen, SPLITS.index("val"), LEFT_OUT).astype(np.int8)
    return samples.replace(labels=number[samples.labels], class_names=tuple(class_names), splits=splits)
