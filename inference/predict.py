"""Classify any number of image files in constant memory: files are found, decoded and scored as a stream."""

import os
import sys
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, islice, zip_longest
from typing import TextIO

import numpy as np
import torch
from tqdm import tqdm

from datasets.image_dataset import cpu_count
from datasets.tables import csv_lines
from datasets.text import printable
from datasets.transforms import Pipeline
from figures.judged import Judged, rank
from inference.classifier import Classifier
from inference.images import ImageFile, Unreadable, read_pixels

AT_ONCE = 8  # images that a thread decodes in a row: handing them over one by one costs as much as decoding small ones


def predict(
    classifier: Classifier,
    files: Iterable[ImageFile],
    *,
    top: int = 1,
    batch_size: int = 32,
    temperature: float = 1.0,
    keep_pixels: bool = False,
) -> Iterator[Judged | Unreadable]:
    """One result per file, in order, with the `top` classes of those that can be read.

    A file's folder is its label where it has the name of a class. Decoding runs in threads; where the model needs all
    cores, in turns with it, else one batch ahead.
    """
    pipeline = Pipeline(classifier.spec)
    ahead = 0 if classifier.device.type == "cpu" else 1
    for batch, decoded in _decoded(files, pipeline, batch_size, ahead=ahead):
        pictures = [pixels for pixels in decoded if isinstance(pixels, np.ndarray)]
        ranked: Iterator[tuple[tuple[str, float], ...]] = iter(())
        if pictures:
            logits = classifier.logits(pipeline.normalise(torch.from_numpy(np.stack(pictures))))
            ranked = iter(rank((logits.double() / temperature).softmax(dim=1), classifier.class_names, top=top))
        for file, pixels in zip(batch, decoded, strict=True):
            if isinstance(pixels, Unreadable):
                yield pixels
            else:
                label = label_of(file.path, classifier.class_names)
                yield Judged(file.path, next(ranked), label, pixels if keep_pixels else None)


def label_of(path: str, class_names: Sequence[str]) -> str | None:
    """The name of a file's folder, where it is that of a class."""
    folder = os.path.basename(os.path.dirname(os.path.abspath(path)))
    return folder if folder in class_names else None


def _decoded(
    files: Iterable[ImageFile], pipeline: Pipeline, batch_size: int, *, ahead: int
) -> Iterator[tuple[list[ImageFile], list[np.ndarray | Unreadable]]]:
    """Batches of files with their pixels uint8 (C, S, S). While one batch is in use, `ahead` more are being decoded."""

    def decode(part: list[ImageFile]) -> list[np.ndarray | Unreadable]:
        return [read_pixels(file, pipeline) for file in part]

    iterator = iter(files)
    begun: deque[tuple[list[ImageFile], Iterator[list[np.ndarray | Unreadable]]]] = deque()
    with ThreadPoolExecutor(cpu_count()) as threads:
        while batch := list(islice(iterator, batch_size)):
            parts = [batch[start : start + AT_ONCE] for start in range(0, len(batch), AT_ONCE)]
            begun.append((batch, threads.map(decode, parts)))
            if len(begun) > ahead:
                batch, decoded = begun.popleft()
                yield batch, list(chain.from_iterable(decoded))
        for batch, decoded in begun:
            yield batch, list(chain.from_iterable(decoded))


@dataclass
class Tally:
    """Counts of the results that pass through it."""

    images: int = 0
    labelled: int = 0
    """Images whose folder names their class."""
    right: int = 0
    """Labelled images for which the model's first class is that one."""
    unreadable: list[Unreadable] = field(default_factory=list)

    def readable(self, results: Iterable[Judged | Unreadable]) -> Iterator[Judged]:
        """The images among the results, behind a progress bar; a file that is none is named on standard error."""
        # disable=None: silent where standard error is not a terminal
        for image in tqdm(results, desc="predict", unit="image", file=sys.stderr, disable=None, leave=False):
            if isinstance(image, Unreadable):
                self.unreadable.append(image)
                tqdm.write(f"error: {printable(image.error)}", file=sys.stderr)
                continue
            self.images += 1
            self.labelled += image.label is not None
            self.right += image.label == image.predicted
            yield image


def write_rows(images: Iterable[Judged], file: TextIO, *, top: int) -> None:
    """Write images and their `top` classes as CSV, a row per image."""

    def row(image: Judged) -> list[str]:
        ranked = (text for name, probability in image.ranked for text in (printable(name), f"{probability:.7g}"))
        return [printable(image.path), printable(image.label or ""), *ranked]

    ranks = ["", *(f"_{rank}" for rank in range(2, top + 1))]
    header = ["path", "label", *(f"{name}{rank}" for rank in ranks for name in ("predicted", "probability"))]
    file.writelines(csv_lines(header, map(row, images)))


class ExampleSheet:
    """A few pictures that stand for a stream of any length: of each predicted class the least and the most certain.

    Keeps a pool of ten times as many pictures as are wanted, and thins it to half of that when it is full."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.pool: list[Judged] = []

    def seeing(self, images: Iterable[Judged]) -> Iterator[Judged]:
        """The same images, each of which is added as it passes."""
        for image in images:
            self.add(image)
            yield image

    def add(self, image: Judged) -> None:
        self.pool.append(image)
        if len(self.pool) == 10 * self.count:
            self.pool = thinned(self.pool, 5 * self.count)

    def chosen(self) -> list[Judged]:
        return sorted(thinned(self.pool, self.count), key=lambda image: (image.predicted, image.probability))


def thinned(images: Sequence[Judged], count: int) -> list[Judged]:
    """Up to `count` images: each class in turn gives its least or its most certain one that is left."""
    classes = defaultdict(list)
    for image in sorted(images, key=lambda image: image.probability):
        classes[image.predicted].append(image)
    orders = []
    for number, own in enumerate(classes.values()):
        pairs = zip(own, reversed(own), strict=True)
        ends = chain.from_iterable(pair[:: -1 if number % 2 else 1] for pair in pairs)
        orders.append(list(ends)[: len(own)])
    rounds = chain.from_iterable(zip_longest(*orders))
    return [image for image in rounds if image is not None][:count]
