"""Description of a data set in a few lines, for a person to check."""

import numpy as np

from common.text import format_table, pluralise, printable, shorten_list
from datasets.bundle import SPLITS, DataBundle, evenly, image_set
from datasets.fitting import in_words
from datasets.grouping.parts import line
from datasets.image_dataset import ImageDataset

SIZES_LOOKED_AT = 200


def describe(bundle: DataBundle) -> list[str]:
    """Lines: the set and its classes, images per split, class sizes, image sizes, and everything worth knowing."""
    samples = bundle.samples
    names = bundle.class_names
    splits = ", ".join(f"{size:,} {split}" for split, size in bundle.dataset_sizes.items())
    counts = samples.counts("train")
    spread = f"{counts.min()} to {counts.max()}" if counts.min() < counts.max() else f"{counts.max()}"
    return [
        f"{printable(samples.name)}: {pluralise(len(names), 'class')} ({shorten_list(list(names), limit=5)})",
        f"images: {splits}; {spread} training images per class",
        *_sizes(bundle),
        *filter(None, (line(samples),)),
        *(f"note: {printable(line)}" for line in samples.notes),
    ]


def data_report(bundle: DataBundle) -> str:
    """All of `describe`, then images per class and split as a table, then every image that was skipped."""
    samples = bundle.samples
    names = ["class", *map(printable, bundle.class_names), "all"]
    columns = []
    for split, size in bundle.dataset_sizes.items():
        columns.append([split, *(f"{count:,}" for count in samples.counts(split)), f"{size:,}"])
    table = format_table(list(zip(names, *columns, strict=True)))
    skipped = [printable(line) for line in samples.skipped]
    left_out = ["", "left out because they cannot be read:", *skipped] if skipped else []
    return "\n".join([*describe(bundle), "", *table, *left_out]) + "\n"


def native_sizes(bundle: DataBundle) -> np.ndarray:
    """(n, 2): width and height of some of the images."""
    images = image_set(next(bundle.dataloaders[split] for split in SPLITS if split in bundle.dataloaders))
    return np.array([images.native_size(row) for row in evenly(len(images), SIZES_LOOKED_AT)])


def _sizes(bundle: DataBundle) -> list[str]:
    """The sizes of the images; and, unless all are square, what their fit makes of them."""
    sizes, images = native_sizes(bundle), image_set(next(iter(bundle.dataloaders.values())))
    fit = images.pipeline.spec.fit if isinstance(images, ImageDataset) else ""
    return [f"image sizes: {_spread(sizes)}", *filter(None, [fit and in_words(fit, sizes)])]


def _spread(sizes: np.ndarray) -> str:
    low, middle, high = sizes.min(axis=0), np.median(sizes, axis=0).astype(int), sizes.max(axis=0)
    if (low == high).all():
        return f"{low[0]} x {low[1]} px"
    spread = f"width {low[0]} to {high[0]}, height {low[1]} to {high[1]} ({len(sizes)} looked at)"
    return f"median {middle[0]} x {middle[1]} px, {spread}"
