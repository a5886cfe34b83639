"""One split as a torch Dataset that makes whole batches, and its decoded images in memory."""

import mmap
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import torch
from PIL import Image
from torch.utils.data import get_worker_info

from common.errors import DataError
from datasets.bundle import BatchKey, ImageSet, Samples
from datasets.images import Size, picture_of, to_array
from datasets.known import size_of
from datasets.processes import cpu_count
from datasets.transforms import Pipeline


class ImageCache:
    """Decoded images of a split, filled as they are first needed: uint8 (C, h, w) of any size by index.

    What does not fit into `capacity` bytes is not kept. One anonymous shared mapping: the processes that a loader forks
    write into it and read from it, so an image is decoded once, not once per process, and the pages are never copied.
    (Not /dev/shm: containers often give it 64 MB.) A loader process that is not forked (Windows, macOS) gets a cache
    that keeps nothing, for what each keeps for itself would take that many times the memory.
    """

    def __init__(self, length: int, capacity: int) -> None:
        self.capacity = capacity
        # Pages exist once they are written to, so a generous size costs nothing.
        self._pixels = np.frombuffer(mmap.mmap(-1, max(capacity, 1)), np.uint8)
        # Per image: offset + 1 (0 = absent), channels, height, width. The last row holds the end of the used part.
        self._index = np.frombuffer(mmap.mmap(-1, (length + 1) * 32), np.int64).reshape(-1, 4)
        self._lock = multiprocessing.get_context("fork" if hasattr(os, "fork") else "spawn").Lock()

    def __reduce__(self) -> tuple[type["ImageCache"], tuple[int, int]]:
        return ImageCache, (len(self._index) - 1, 0)

    def get(self, index: int) -> np.ndarray | None:
        """Return a view of the stored picture, or None."""
        if not self._index[index, 0]:
            return None
        with self._lock:  # else a processor that reorders writes may show the place before the pixels
            start, channels, height, width = self._index[index].tolist()
        return self._pixels[start - 1 : start - 1 + channels * height * width].reshape(channels, height, width)

    def put(self, index: int, picture: np.ndarray) -> None:
        """Keep a picture, if there is room."""
        with self._lock:
            start = int(self._index[-1, 0])
            if self._index[index, 0] or start + picture.size > self.capacity:
                return
            self._pixels[start : start + picture.size] = picture.reshape(-1)
            self._index[-1, 0] = start + picture.size
            self._index[index, 1:] = picture.shape
            self._index[index, 0] = start + 1  # last: from here on other processes see it


class ImageDataset(ImageSet):
    """The images of one split, prepared by `pipeline`.

    A loader asks for a batch at once: `drawn(BatchKey)` is (pixels uint8 (B, C or 1, S, S), labels int64 (B,)),
    and no Python object per image passes between processes; `batch(BatchKey)` has float32 images, normalised.
    `dataset[i]` is sample i as in epoch 0.
    """

    cache: ImageCache | None = None

    def __init__(self, samples: Samples, split: str, pipeline: Pipeline, *, seed: int = 0) -> None:
        super().__init__(samples, split)
        self.pipeline, self.seed = pipeline, seed
        self._kept = self._pixels_as_stored()
        self.in_memory = self._kept is not None
        """True if the set needs no cache, since its pixels are in memory."""

    def drawn(self, key: BatchKey) -> tuple[torch.Tensor, torch.Tensor]:
        rows = key.draws % len(self)
        pixels = self.pipeline.pixels(self.stored(rows.tolist()), seed=self.seed, epoch=key.epoch, draws=key.draws)
        return pixels, torch.from_numpy(self.labels[rows])

    def prepared(self, images: torch.Tensor) -> torch.Tensor:
        return self.pipeline.normalise(images)

    def native_size(self, index: int) -> tuple[int, int]:
        if self.samples.pixels is not None:
            return self.samples.pixels.shape[2], self.samples.pixels.shape[1]
        with saying_what_helps():
            return size_of(self.samples, int(self.indices[index]))

    def original(self, index: int) -> np.ndarray:
        return to_array(self._picture(index)).copy()

    def stored(self, rows: Sequence[int]) -> list[np.ndarray]:
        """Return rows prepared for the pipeline, perhaps from the cache: uint8 (C, h, w) each."""
        if self._kept is not None:
            return [self._kept[row] for row in rows]
        if self.cache is None:
            return self._load(rows)
        cached = [self.cache.get(row) for row in rows]
        missing = [row for row, picture in zip(rows, cached, strict=True) if picture is None]
        loaded = iter(self._load(missing))
        return [next(loaded) if picture is None else picture for picture in cached]

    def _load(self, rows: Sequence[int]) -> list[np.ndarray]:
        # Pillow decodes and resizes without the interpreter lock, so without loader processes threads do the same.
        if len(rows) > 1 and self.samples.pixels is None and get_worker_info() is None:
            with ThreadPoolExecutor(min(len(rows), cpu_count())) as threads:
                return list(threads.map(self._load_one, rows))
        return [self._load_one(row) for row in rows]

    def _load_one(self, row: int) -> np.ndarray:
        picture = self.pipeline.store(self._picture(row, least=self.pipeline.least))
        if self.cache is not None:
            self.cache.put(row, picture)
        return picture

    def _picture(self, row: int, least: Callable[[int, int], Size] | None = None) -> Image.Image:
        with saying_what_helps():
            return picture_of(self.samples, int(self.indices[row]), channels=self.pipeline.channels, least=least)

    def _pixels_as_stored(self) -> np.ndarray | None:
        """Copy a set in memory that has the size to be stored already: (n, C, h, w)."""
        pixels = self.samples.pixels
        if pixels is None or pixels.shape[3] > self.pipeline.channels:  # colour to grey is the decoder's work
            return None
        height, width = pixels.shape[1:3]
        if self.pipeline.stored_size(width, height) != (width, height):
            return None
        return np.ascontiguousarray(pixels[self.indices].transpose(0, 3, 1, 2))


@contextmanager
def saying_what_helps() -> Iterator[None]:
    """Add the two ways out to the error about an unreadable image."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{error}; --on-bad-image skip leaves such images out, `check` lists them") from error
