"""Contract with the other packages, a DataBundle; and what it is made from, a columnar sample table."""

from __future__ import annotations

import dataclasses
import sys
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, pairwise, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from common.text import pluralise, shorten_list

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.data import DataLoader

SPLITS: tuple[str, ...] = ("train", "val", "test")
TRAIN, VAL, TEST = range(3)  # split codes: the indices of SPLITS
UNSPLIT, LEFT_OUT = -1, -2
_OF_FILES = sys.getfilesystemencoding()
"""Encoding of file names; in the C locale ASCII, so that other bytes are escaped."""


def split_name(code: int) -> str:
    """Return the name of a split code; empty where no split is given."""
    return SPLITS[code] if code >= 0 else ""


def split_code(name: str) -> int:
    return SPLITS.index(name) if name else UNSPLIT


def evenly(length: int, count: int) -> np.ndarray:
    """Return up to `count` different rows, spread over a whole table, so that they meet most classes."""
    return np.unique(np.linspace(0, length - 1, min(count, length)).astype(int))


class DataBundle(NamedTuple):
    """One loader per split (`train`, `val` and, where there is one, `test`), the class names, images per split."""

    dataloaders: dict[str, DataLoader]
    class_names: tuple[str, ...]
    dataset_sizes: dict[str, int]

    @property
    def samples(self) -> Samples:
        """Return the sample table that all loaders share."""
        return image_set(next(iter(self.dataloaders.values()))).samples


class BatchKey(NamedTuple):
    """Name one batch to a loader process. `draws[b] % len(dataset)` is the sample of row b.

    A balanced epoch may hold a sample several times; its k-th copy is draw `sample + k * len(dataset)`, so that each
    copy is augmented differently.
    """

    epoch: int
    draws: np.ndarray


class ImageSet(ABC):
    """The data set behind every loader: its rows are the images of one split, in table order."""

    def __init__(self, samples: Samples, split: str) -> None:
        self.samples, self.split = samples, split  # the table has all splits in it
        self.indices = samples.indices(split)
        """int64 (n,): which sample of `samples` each row is."""
        self.labels = samples.labels[self.indices].astype(np.int64)
        """int64 (n,): the class of each row."""

    def __len__(self) -> int:
        return len(self.indices)

    def path(self, index: int) -> str:
        """Return the stable relative id of a row, as in split.csv."""
        return self.samples.paths[int(self.indices[index])]

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return an image, as the model takes it and as in epoch 0, and its label."""
        (item,) = self.__getitems__([index])
        return item

    def __getitems__(self, key: BatchKey | Sequence[int]) -> Any:
        """Make one batch; of indices, as a DataLoader of a program's own has them, the items."""
        if isinstance(key, BatchKey):
            return self.drawn(key)
        images, labels = self.batch(BatchKey(0, np.array([range(len(self))[index] for index in key])))
        return list(zip(images, labels.tolist(), strict=True))

    @abstractmethod
    def drawn(self, key: BatchKey) -> tuple[Tensor, ...]:
        """Make one batch: what `prepared` takes, (B, ...), and labels int64 (B,)."""

    def prepared(self, images: Tensor) -> Tensor:
        """Turn images of a batch, on any device, into what the model takes: float32 (B, ...)."""
        return images

    def batch(self, key: BatchKey) -> tuple[Tensor, ...]:
        """Make one batch as the model takes it, on the CPU."""
        images, *rest = self.drawn(key)
        return self.prepared(images), *rest

    @abstractmethod
    def original(self, index: int) -> np.ndarray:
        """Return the picture as decoded, before resizing and augmentation: uint8 (C, H, W)."""

    @abstractmethod
    def stored(self, rows: Sequence[int]) -> list[np.ndarray]:
        """Return pictures as prepared for the pipeline: uint8 (C, h, w) each."""

    @abstractmethod
    def native_size(self, index: int) -> tuple[int, int]:
        """Return (width, height) of a picture before it is resized."""


class PathTable(Sequence[str]):
    """Many relative paths in two arrays: all their characters, and where each path ends.

    A list of a million `str` costs about 120 MB and, in every loader process, a copy of each page whose reference
    counts are touched (pytorch issue 13246). Arrays cost the bytes of the paths, and no page is ever copied.
    """

    def __init__(self, paths: Iterable[str] = ()) -> None:
        self.characters, self.ends = bytearray(), array("q", [0])
        for path in paths:
            self.append(path)

    def append(self, path: str) -> None:
        self.characters += path.encode(_OF_FILES, "surrogateescape")
        self.ends.append(len(self.characters))

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, index):  # int -> str is all that is offered
        place = range(len(self))[index]
        return self._between(self.ends[place], self.ends[place + 1])

    def __iter__(self) -> Iterator[str]:
        return starmap(self._between, pairwise(self.ends))

    def _between(self, start: int, end: int) -> str:
        return self.characters[start:end].decode(_OF_FILES, "surrogateescape")


@dataclass(frozen=True, eq=False)
class Samples:
    """All images of a set, columnar: sample i has path `paths[i]`, class `labels[i]` and split `splits[i]`."""

    name: str
    class_names: tuple[str, ...]
    paths: PathTable
    """Relative to `root`, `/` between parts; for sets without files a stable made-up id such as `digits/0123`."""
    labels: np.ndarray
    """int32 (N,): indices into `class_names`."""
    splits: np.ndarray
    """int8 (N,): indices into SPLITS, UNSPLIT where nobody has decided yet, LEFT_OUT where the sample is not used."""
    root: Path | None = None
    members: Any = None
    """Position of each image inside a tar file; None where it is a file of its own."""
    sizes: np.ndarray | None = None
    """int64 (N,): bytes of each image, where they are known without asking the disk."""
    digests: np.ndarray | None = None
    """uint8 (N, 8): a hash of each image that is not left out (`datasets.known`); None before they are computed."""
    hash_kind: str = ""
    """Kind of `digests`: `content_hash` or `path_hash`."""
    groups: np.ndarray | None = None
    """int32 (N,): the group of each image, which no split may tear; -1 where it stands alone. None: no groups."""
    group_names: Sequence[str] = ()
    """Names of the groups in split.csv, by their number."""
    grouped_by: str = ""
    """Description of how the groups were made: `by the folder below the class`."""
    known: Any = None
    """What is known of the images: `datasets.known.Known`; None before anybody asked, and of a program's own."""
    copies: np.ndarray | None = None
    """int64 (N,): copies of one picture, near ones too, share a number; -1 of others. None: not looked for."""
    pixels: np.ndarray | None = None
    """uint8 (N, H, W, C) when the set is held in memory; then there are no files."""
    val_fraction: float | None = None
    """None: 0.1 of the training images where the set brings a test split, else 0.15 of all."""
    test_fraction: float = 0.15
    notes: tuple[str, ...] = ()
    """Notes about this set for the user, one line each."""
    left_out: Mapping[int, str] = field(default_factory=dict)
    """Rows that a split had and that are not scored -> the reason, for split.csv."""
    skipped: tuple[str, ...] = ()
    """Unreadable images left out under `on_bad_image=skip`: path and reason."""

    def __len__(self) -> int:
        return len(self.labels)

    def file(self, index: int) -> Any:
        """Return the Path of an image, or the member of a shard, read likewise."""
        if self.root is None:
            raise ValueError(f"{self.name} is held in memory; {self.paths[index]} is not a file")
        return self.root / self.paths[index] if self.members is None else self.members[index]

    def indices(self, split: str) -> np.ndarray:
        """Return the samples of one split in table order, int64."""
        return np.flatnonzero(self.splits == split_code(split))

    def counts(self, split: str) -> np.ndarray:
        """Count the images of each class in one split, int64 (classes,)."""
        return np.bincount(self.labels[self.indices(split)], minlength=len(self.class_names))

    def classes_in_use(self) -> np.ndarray:
        """Return which classes have an image that is not left out: bool (classes,)."""
        return np.bincount(self.labels[self.splits != LEFT_OUT], minlength=len(self.class_names)) > 0

    def without_empty_classes(self) -> Samples:
        """Renumber the classes that have images, and note which have none, or lost theirs to `--exclude`."""
        used = self.classes_in_use()
        if used.all() or not used.any():
            return self
        empty = [name for name, has_images in zip(self.class_names, used, strict=True) if not has_images]
        kept = tuple(compress(self.class_names, used))
        number = np.where(used, np.cumsum(used) - 1, -1).astype(self.labels.dtype)  # -1: of images that are left out
        note = f"{pluralise(len(empty), 'class')} without an image left out: {shorten_list(empty)}"
        return self.replace(labels=number[self.labels], class_names=kept).note(note)

    def group_of(self, row: int) -> str:
        """Return the name of an image's group; empty where it stands alone."""
        number = -1 if self.groups is None else int(self.groups[row])
        return self.group_names[number] if number >= 0 else ""

    def with_splits(self, parts: Mapping[int, Sequence[int] | np.ndarray]) -> Samples:
        """Move samples to another split: split code -> their rows."""
        splits = self.splits.copy()
        for code, rows in parts.items():
            splits[np.asarray(rows, np.int64)] = code
        return self.replace(splits=splits)

    def replace(self, **changes: object) -> Samples:
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def note(self, *lines: str) -> Samples:
        return self.replace(notes=(*self.notes, *lines))


def image_set(loader: DataLoader) -> ImageSet:
    """Return the data set of a loader with its type."""
    return cast("ImageSet", loader.dataset)
