"""Decoded images in memory, shared by all loader processes, filled as they are first needed.

One anonymous shared mapping per split: the processes a loader forks write into it and read from it, so an image is
decoded once, not once per process, and the pages are never copied. (Not /dev/shm: containers often give it 64 MB.)
"""

import mmap
import multiprocessing
import os
import re
from contextlib import suppress
from pathlib import Path

import numpy as np

from datasets import cgroups
from datasets.processes import processes_here

SHARE_OF_FREE_MEMORY = 1 / 3


class ImageCache:
    """uint8 (C, h, w) pictures of any size by index, up to `capacity` bytes in all; what does not fit is not kept.

    A loader process that is not forked (Windows, macOS) gets a cache that keeps nothing, for what each keeps for itself
    would take that many times the memory.
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


def available_memory() -> int:
    """Return this process's share of the bytes that can still be used, of the machine or within a container's limit."""
    return int(min(_available(), cgroups.free_memory())) // processes_here()


def _available() -> int:
    with suppress(OSError):
        if found := re.search(r"^MemAvailable:\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE):
            return 1024 * int(found[1])
    return 4 * 2**30  # Windows and macOS: the standard library does not say
