"""Decoded images in memory, shared by all loader processes, filled as they are first needed.

One anonymous shared mapping per split: the processes a loader forks write into it and read from it, so an image is
decoded once, not once per process, and the pages are never copied. (Not /dev/shm: containers often give it 64 MB.)
"""

import mmap
import multiprocessing
import os
import sys
from pathlib import Path

import numpy as np

SHARE_OF_FREE_MEMORY = 1 / 3


class ImageCache:
    """uint8 (C, h, w) pictures of any size by index, up to `capacity` bytes in all; what does not fit is not kept.

    Started by spawn instead of fork (Windows, macOS), a loader process begins with an empty cache of its own.
    """

    def __init__(self, length: int, capacity: int) -> None:
        self.length, self.capacity = length, capacity
        self._allocate()

    def _allocate(self) -> None:
        self._pixels = np.frombuffer(_shared_bytes(self.capacity), np.uint8)
        # Per image: offset + 1 (0 = absent), channels, height, width. The last row holds the end of the used part.
        self._index = np.frombuffer(_shared_bytes((self.length + 1) * 32), np.int64).reshape(-1, 4)
        self._lock = multiprocessing.get_context("fork" if hasattr(os, "fork") else "spawn").Lock()

    def __getstate__(self) -> dict[str, int]:
        return {"length": self.length, "capacity": self.capacity}

    def __setstate__(self, state: dict[str, int]) -> None:
        self.__dict__.update(state)
        self._allocate()

    def get(self, index: int) -> np.ndarray | None:
        """A view of the stored picture, or None."""
        start, channels, height, width = self._index[index].tolist()
        if not start:
            return None
        return self._pixels[start - 1 : start - 1 + channels * height * width].reshape(channels, height, width)

    def put(self, index: int, picture: np.ndarray) -> None:
        with self._lock:
            start = int(self._index[-1, 0])
            if self._index[index, 0] or start + picture.size > self.capacity:
                return
            self._pixels[start : start + picture.size] = picture.reshape(-1)
            self._index[-1, 0] = start + picture.size
            self._index[index, 1:] = picture.shape
            self._index[index, 0] = start + 1  # last: from here on other processes see it

    @property
    def used(self) -> int:
        """Bytes of pixels held."""
        return int(self._index[-1, 0])


def available_memory() -> int:
    """Bytes that can still be used: of the machine, or of the container when that has a limit."""
    used = [_number_in(f"/sys/fs/cgroup/{file}") for file in ("memory.current", "memory/memory.usage_in_bytes")]
    return max(0, min(_meminfo("MemAvailable:"), *(a - b for a, b in zip(_limits(), used, strict=True))))


def total_memory() -> int:
    """Bytes that there are, free or not."""
    return min(_meminfo("MemTotal:"), *_limits())


def _limits() -> list[int]:
    return [_number_in(f"/sys/fs/cgroup/{file}", 2**62) for file in ("memory.max", "memory/memory.limit_in_bytes")]


def _number_in(path: str, default: int = 0) -> int:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):  # no such controller, or "max"
        return default


def _meminfo(row: str) -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith(row):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):
        return 4 * 2**30  # Windows, where the standard library does not say


def _shared_bytes(size: int) -> mmap.mmap:
    """Zeroed memory that forked processes share. Pages exist once written to, so a generous size costs nothing."""
    if sys.platform == "win32":
        return mmap.mmap(-1, max(size, 1))
    flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    return mmap.mmap(-1, max(size, 1), flags=flags)
