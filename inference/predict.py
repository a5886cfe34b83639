"""Classify any number of image files as a stream, in constant memory."""

import os
import sys
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from common.errors import CheckpointError
from common.text import printable
from datasets.known import CONTENT_HASH
from datasets.look import file_digest
from datasets.processes import cpu_count
from datasets.transforms import Pipeline
from inference.certainty.answers import LEVEL, RATE, Judge
from inference.classifier import Classifier
from inference.images import ImageFile, Unreadable, read_pixels
from trainers.reporting.figures.images import ImagePrediction, ranked_classes
from trainers.seen import hashes_in, start_of
from vit.tensor_files import require_finite

AT_ONCE = 8  # images that a thread decodes in a row: handing them over one by one costs as much as decoding small ones


def predict(
    classifier: Classifier,
    files: Iterable[ImageFile],
    *,
    top: int = 1,
    batch_size: int = 32,
    temperature: float = 1.0,
    keep_pixels: bool = False,
    cover: float = LEVEL,
    false_alarms: float = RATE,
) -> Iterator[ImagePrediction | Unreadable]:
    """Yield one result per file, in order, with the `top` classes of each image.

    Of a model that was evaluated also a set of classes, which holds the right one in a share `cover` of images, and
    whether the image is unlike those it was validated on, which a share `false_alarms` of these would be called.

    A file's folder is its label where it has the name of a class. Decoding runs in threads; where the model needs all
    cores, in turns with it, else one batch ahead.
    """
    pipeline = Pipeline(classifier.spec)
    judge, names, answers = None, classifier.class_names, classifier.answers
    if answers is not None:
        how = classifier.amp_dtype
        judge = Judge(classifier.model, answers, names, level=cover, rate=false_alarms, amp_dtype=how)
    ahead = 0 if classifier.device.type == "cpu" else 1
    for batch, decoded in _decoded(files, pipeline, batch_size, ahead=ahead):
        pictures = [pixels for pixels in decoded if isinstance(pixels, np.ndarray)]
        found: Iterator[Any] = iter(())
        if pictures:
            images = pipeline.normalise(torch.from_numpy(np.stack(pictures)).to(classifier.device))
            logits, verdicts = judge(images) if judge else (classifier.logits(images), [(None, None)] * len(images))
            require_finite(classifier.source, {"the output": logits})
            ranks = ranked_classes((logits.double() / temperature).softmax(dim=1), names, top=top)
            found = zip(ranks, verdicts, strict=True)
        for file, pixels in zip(batch, decoded, strict=True):
            if isinstance(pixels, Unreadable):
                yield pixels
            else:
                ranked, (classes, unknown) = next(found)
                shown, label = pixels if keep_pixels else None, label_by_folder(file.path, names)
                yield ImagePrediction(file.path, ranked, label, pixels=shown, set=classes, unknown=unknown)


def label_by_folder(path: str, class_names: Sequence[str]) -> str | None:
    """Return the name of a file's folder, where it is the name of a class."""
    folder = os.path.basename(os.path.dirname(os.path.abspath(path)))
    return folder if folder in class_names else None


def _decoded(
    files: Iterable[ImageFile], pipeline: Pipeline, batch_size: int, *, ahead: int
) -> Iterator[tuple[list[ImageFile], list[np.ndarray | Unreadable]]]:
    """Yield batches of files with their pixels, uint8 (C, S, S).

    While one is in use, `ahead` more are decoded."""

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
    """Counts of the results of a classifier that pass through it."""

    classifier: Classifier
    bar: bool = False
    """Whether a progress bar is shown, if standard error is a terminal."""
    images: int = 0
    labelled: int = 0
    """Images whose folder names their class."""
    right: int = 0
    """Labelled images for which the model's first class is that one."""
    trained_on: int = 0
    """Labelled images that the model was trained on."""
    unreadable: int = 0
    judged: int = 0
    """Images of which is known whether they are unlike the validation images."""
    unknown: int = 0
    """Images that are."""

    @cached_property
    def training(self) -> set[str]:
        """Hashes of the images that a run was trained on; empty where unknown."""
        table = start_of(str(self.classifier.run or self.classifier.source)).table
        with suppress(CheckpointError):
            kind, used = hashes_in(table) if table is not None else ("", {})
            return used.get("train", set()) if kind == CONTENT_HASH else set()
        return set()

    def readable(self, results: Iterable[ImagePrediction | Unreadable]) -> Iterator[ImagePrediction]:
        """Yield the images among the results, behind a progress bar.

        A file that is none is named on standard error."""
        hidden = None if self.bar else True  # None: where standard error is no terminal
        for image in tqdm(results, desc="predict", unit="image", file=sys.stderr, disable=hidden, leave=False):
            if isinstance(image, Unreadable):
                self.unreadable += 1
                tqdm.write(f"error: {printable(image.error)}", file=sys.stderr)
                continue
            self.images += 1
            self.judged += image.unknown is not None
            self.unknown += image.unknown is True
            self.labelled += image.label is not None
            self.right += image.label == image.predicted
            if image.label is not None and self.training:
                self.trained_on += file_digest(Path(image.path)).hex() in self.training
            yield image


class ExampleSheet:
    """Pictures of a stream: of each predicted class the least and most certain.

    Keeps a pool of ten times as many pictures as are wanted, and thins it to half of that when it is full."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.pool: list[ImagePrediction] = []

    def seeing(self, images: Iterable[ImagePrediction]) -> Iterator[ImagePrediction]:
        """Yield the images, each of which is added as it passes."""
        for image in images:
            self.add(image)
            yield image

    def add(self, image: ImagePrediction) -> None:
        self.pool.append(image)
        if len(self.pool) == 10 * self.count:
            self.pool = thinned(self.pool, 5 * self.count)

    def chosen(self) -> list[ImagePrediction]:
        return sorted(thinned(self.pool, self.count), key=lambda image: (image.predicted, image.probability))


def thinned(images: Sequence[ImagePrediction], count: int) -> list[ImagePrediction]:
    """Choose up to `count` images: each class in turn gives one that is left.

    That is its least or its most certain one, in turn, too."""
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
