"""Description of a data set in a few lines, for a person to check."""

import numpy as np

from common.text import format_table, pluralise, printable, shorten_list
from datasets.bundle import DataBundle, ImageSet, evenly, image_set
from datasets.fitting import in_words
from datasets.groups import group_line
from datasets.image_dataset import ImageDataset

SIZES_LOOKED_AT = 200


def describe(bundle: DataBundle) -> list[str]:
    """Describe the set, its classes, splits, sizes and notes in a line each."""
    samples, names = bundle.samples, bundle.class_names
    splits = ", ".join(f"{size:,} {split}" for split, size in bundle.dataset_sizes.items())
    counts = samples.counts("train")
    spread = f"{counts.min()} to {counts.max()}" if counts.min() < counts.max() else f"{counts.max()}"
    lines = [
        f"{printable(samples.name)}: {pluralise(len(names), 'class')} ({shorten_list(list(names), limit=5)})",
        f"{splits} images; {spread} a class in train",
        _sizes(bundle),
        group_line(samples),
        *(f"note: {printable(note)}" for note in samples.notes),
    ]
    return list(filter(None, lines))


def data_report(bundle: DataBundle) -> str:
    """Return all of `describe`, a table of images per class, and every skipped image."""
    samples = bundle.samples
    columns = [["class", *map(printable, bundle.class_names), "all"]]
    for split, size in bundle.dataset_sizes.items():
        columns.append([split, *(f"{count:,}" for count in samples.counts(split)), f"{size:,}"])
    skipped = ["", "left out because they cannot be read:", *map(printable, samples.skipped)] if samples.skipped else []
    table = format_table(list(zip(*columns, strict=True)))
    return "\n".join([*describe(bundle), "", *table, *skipped]) + "\n"


def native_sizes(images: ImageSet) -> np.ndarray:
    """Return width and height of some of the images, int64 (n, 2)."""
    return np.array([images.native_size(row) for row in evenly(len(images), SIZES_LOOKED_AT)])


def _sizes(bundle: DataBundle) -> str:
    """Describe the sizes of the images and, unless all are square, their fit."""
    images = image_set(next(iter(bundle.dataloaders.values())))
    sizes = native_sizes(images)
    width, height = np.median(sizes, axis=0).astype(int)
    found = f"{'median ' * bool((sizes != sizes[0]).any())}{width} x {height} px"
    fit = in_words(images.pipeline.spec.fit, sizes) if isinstance(images, ImageDataset) else ""
    return "; ".join(filter(None, (found, fit)))
