"""Classify any number of image files in constant memory: files are found, decoded and scored as a stream."""

from __future__ import annotations

import glob
import io
import mimetypes
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from typing import BinaryIO

import numpy as np
import torch

from datasets import DataError
from datasets.image_dataset import cpu_count
from datasets.images import is_image_name, read_image
from datasets.transforms import Pipeline, eval_pipeline
from inference.classifier import Classifier

# How files of image formats begin: tells an image on standard input from a list of file names.
IMAGE_START = re.compile(rb"\xff\xd8\xff|\x89PNG\r\n|RIFF....WEBP|II\*\x00|MM\x00\*|GIF8[79]a", re.DOTALL)
STDIN = "-"
AT_ONCE = 8  # images that a thread decodes in a row: handing them over one by one costs as much as decoding small ones


@dataclass(frozen=True)
class Prediction:
    """One image: the `top` classes with their probabilities, best first. With an `error`, nothing else is known."""

    path: str
    top: tuple[tuple[str, float], ...] = ()
    label: str | None = None
    pixels: np.ndarray | None = None  # uint8 (C, S, S): what the model saw
    error: str | None = None

    @property
    def predicted(self) -> str:
        return self.top[0][0]


@dataclass(frozen=True)
class Source:
    """One image to read: a file, or bytes that came through a pipe."""

    path: str
    content: bytes | None = None

    def open(self) -> str | BinaryIO:
        return self.path if self.content is None else io.BytesIO(self.content)


def find_images(paths: Iterable[str], stdin: BinaryIO | None = None) -> Iterator[Source]:
    """Files as they are; folders with all below them, sorted; globs; `-`: one image, or file names line by line.

    In a folder only images count, also those in formats that cannot be read: they are to be named, not passed over.
    """
    for path in paths:
        if path == STDIN and stdin is not None:
            yield from _from_stdin(stdin)
        elif os.path.isdir(path):
            yield from _below(path)
        elif not os.path.lexists(path) and glob.has_magic(path):
            found = False
            for match in sorted(glob.iglob(path, recursive=True)):
                found = True
                yield from _below(match) if os.path.isdir(match) else [Source(match)]
            if not found:
                yield Source(path)  # reading it says that there is no such file
        else:
            yield Source(path)


def _from_stdin(stdin: BinaryIO) -> Iterator[Source]:
    start = stdin.read(12)
    if IMAGE_START.match(start):
        yield Source("<stdin>", start + stdin.read())
        return
    *whole, begun = start.split(b"\n")
    for line in chain(whole, [begun + stdin.readline()], stdin):
        name = os.fsdecode(line.rstrip(b"\r\n"))
        if name:
            yield from find_images([name])


def _below(folder: str) -> Iterator[Source]:
    visited = set()
    empty = True
    for here, folders, files in os.walk(folder, followlinks=True):
        identity = os.stat(here)
        if (identity.st_dev, identity.st_ino) in visited:  # a link back up
            folders.clear()
            continue
        visited.add((identity.st_dev, identity.st_ino))
        folders.sort()
        for name in sorted(files):
            if is_image_name(name) or (mimetypes.guess_type(name)[0] or "").startswith("image/"):
                empty = False
                yield Source(os.path.join(here, name))
    if empty:
        yield Source(folder)


def predict(
    classifier: Classifier,
    sources: Iterable[Source],
    *,
    top: int = 1,
    batch_size: int = 32,
    temperature: float = 1.0,
    keep_pixels: bool = False,
) -> Iterator[Prediction]:
    """One Prediction per source, in order. Decoding runs in threads; where the model needs all cores, in turns with it,
    else one batch ahead."""
    pipeline = eval_pipeline(classifier.spec)
    ahead = 0 if classifier.device.type == "cpu" else 1
    for sources_of_batch, decoded in _decoded(sources, pipeline, batch_size, ahead=ahead):
        pictures = [picture for picture in decoded if isinstance(picture, np.ndarray)]
        rows: Iterator[tuple[list[float], list[int]]] = iter(())
        if pictures:
            logits = classifier.logits(pipeline.normalise(torch.from_numpy(np.stack(pictures))))
            probabilities = (logits.double() / temperature).softmax(dim=1)
            best = probabilities.topk(min(top, len(classifier.class_names)), dim=1)
            rows = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        for source, picture in zip(sources_of_batch, decoded, strict=True):
            if isinstance(picture, str):
                yield Prediction(source.path, error=picture)
                continue
            values, indices = next(rows)
            ranked = tuple((classifier.class_names[index], value) for index, value in zip(indices, values, strict=True))
            label = label_of(source.path, classifier.class_names)
            yield Prediction(source.path, ranked, label, picture if keep_pixels else None)


def label_of(path: str, class_names: tuple[str, ...]) -> str | None:
    """The folder a file lies in, where that is the name of a class."""
    folder = os.path.basename(os.path.dirname(os.path.abspath(path)))
    return folder if folder in class_names else None


def _decoded(
    sources: Iterable[Source], pipeline: Pipeline, batch_size: int, *, ahead: int
) -> Iterator[tuple[list[Source], list[np.ndarray | str]]]:
    """Batches of sources with their pixels uint8 (C, S, S), or the reason why there are none.

    While one batch is in use, `ahead` more are being decoded.
    """

    def decode(part: list[Source]) -> list[np.ndarray | str]:
        return [read_source(source, pipeline) for source in part]

    iterator = iter(sources)
    batches: deque[tuple[list[Source], list[Future]]] = deque()
    with ThreadPoolExecutor(cpu_count()) as threads:
        try:
            while True:
                while len(batches) < 1 + ahead and (batch := list(islice(iterator, batch_size))):
                    parts = [batch[start : start + AT_ONCE] for start in range(0, len(batch), AT_ONCE)]
                    batches.append((batch, [threads.submit(decode, part) for part in parts]))
                if not batches:
                    return
                batch, futures = batches.popleft()
                yield batch, [picture for future in futures for picture in future.result()]
        finally:
            for _, futures in batches:
                for future in futures:
                    future.cancel()


def read_source(source: Source, pipeline: Pipeline) -> np.ndarray | str:
    """Pixels uint8 (C, S, S) as the model will see them, or one line that says why there are none."""
    if source.content is None:
        refusal = _refuse(source.path)
        if refusal:
            return f"cannot read image {source.path}: {refusal}"
    try:
        return pipeline.store(read_image(source.open(), channels=pipeline.channels, name=source.path))
    except DataError as error:
        return str(error)
    except (ValueError, MemoryError, OSError) as error:  # a picture of one pixel by a million cannot be resized
        return f"cannot read image {source.path}: {' '.join(str(error).split()) or type(error).__name__}"


def _refuse(path: str) -> str | None:
    """What `read_image` would open but should not: an animation has no one picture, and a pipe would block for ever."""
    if os.path.isdir(path):
        return "a folder without images"
    if os.path.exists(path) and not os.path.isfile(path):
        return "not a regular file"
    if path.lower().endswith(".gif"):
        return "GIF is not read; save the frame you mean as PNG"
    return None


def tally(predictions: Iterable[Prediction], *, each: Callable[[Prediction], None]) -> tuple[int, int, int, int]:
    """Hand every prediction to `each`; (read, unreadable, with a known label, of these correct)."""
    read = unreadable = labelled = correct = 0
    for prediction in predictions:
        each(prediction)
        if prediction.error is not None:
            unreadable += 1
            continue
        read += 1
        labelled += prediction.label is not None
        correct += prediction.label == prediction.predicted
    return read, unreadable, labelled, correct
