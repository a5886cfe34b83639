"""A program's own map-style Datasets of (image, label) as the loaders that a run takes.

Whatever such a Dataset draws at random comes from the global generators of Python, numpy and, on the CPU, torch: they
are seeded for each image by (seed, epoch, image), so a run on it repeats and resumes exactly, for any number of loader
processes.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    default_collate,
)

from common.errors import DataError
from common.text import shorten_list
from datasets.bundle import SPLITS, BatchKey, DataBundle, ImageSet, PathTable, Samples, evenly
from datasets.config import DataConfig
from datasets.loaders import CPU, DEFAULT_BATCH_SIZE, loader_of
from datasets.sampling import ALL, Share
from datasets.seeding import AUGMENT, mix

MOST_CLASSES = 2**20
"""Largest number of classes: each has a name and a row of the head, whether or not an image has it."""


class OwnDataset(ImageSet):
    """One split: the Dataset's own images, float32 (C, H, W) as it prepares them, with their rows of the table."""

    def __init__(self, items: Any, samples: Samples, split: str, *, seed: int) -> None:
        super().__init__(samples, split)
        self.items, self.seed = items, seed
        self.seeded = list(takers_of_seeds(items))

    def drawn(self, key: BatchKey) -> tuple[Tensor, Tensor]:
        images = [self._image(draw, key.epoch) for draw in key.draws]
        first, *others = (tuple(image.shape) for image in images)
        for draw, shape in zip(key.draws[1:], others, strict=True):
            if shape != first:
                rows = " and ".join(f"{row % len(self)} {each}" for row, each in ((key.draws[0], first), (draw, shape)))
                where = named(self.split, self.items)
                raise DataError(f"images of the {where} have two shapes, items {rows}: give all one shape")
        return torch.stack(images), torch.from_numpy(self.labels[key.draws % len(self)])

    def _image(self, draw: int, epoch: int = 0) -> Tensor:
        seed = mix(self.seed, AUGMENT, epoch, int(draw)) & 0xFFFF_FFFF
        random.seed(seed)
        np.random.seed(seed)
        torch.default_generator.manual_seed(seed)
        for taker in self.seeded:
            taker.set_random_seed(seed)
        row = draw % len(self)
        item = self.items[row]
        if (label := label_of(item)) != (begun := self.labels[row]):
            raise DataError(
                f"item {row} of the {named(self.split, self.items)} had label {begun}, and now label {label}"
            )
        return torch.as_tensor(item[0], dtype=torch.float32)

    def repeats(self) -> bool:
        """Return whether a few images that are drawn twice with one seed are the same."""
        return all(torch.equal(self._image(row), self._image(row)) for row in evenly(len(self), 4).tolist())

    def stored(self, rows: Sequence[int]) -> list[np.ndarray]:
        """Return each image over its own range, as its normalisation is not known: uint8 (C, H, W)."""
        above_least = [image - image.min() for image in map(self._image, rows)]
        return [(255 * image / image.max().clamp(min=1e-12)).byte().numpy() for image in above_least]

    def original(self, index: int) -> np.ndarray:
        return self.stored([index])[0]

    def native_size(self, index: int) -> tuple[int, int]:
        height, width = self._image(index).shape[-2:]
        return width, height


def own_dataloaders(
    given: Mapping[str, Dataset | DataLoader],
    config: DataConfig,
    *,
    seed: int,
    share: Share = ALL,
    device: torch.device = CPU,
) -> DataBundle:
    """Build loaders over `given`: a Dataset for `train`, for `val`, perhaps for `test`.

    Of a DataLoader its Dataset is taken: order, batches and processes are the run's (`config.batch_size`, `workers`).
    Raises DataError: no train or val, a split of another name, items that are no (image, label), labels below zero.
    """
    items = splits_of(given)
    found = {split: labels_of(split, dataset) for split, dataset in items.items()}
    sizes = {split: len(part) for split, (part, _) in found.items()}
    labels = np.concatenate([part for part, _ in found.values()])
    names = {split: of_split for split, (_, of_split) in found.items()}
    notes = ["your own Dataset: a resumed run checks only the number of images and their labels"]
    if labels.min():
        notes.append(f"class 0 has no images: do labels start at {labels.min()}?")
    if names["train"] is None and held_by(items["train"])[1]:
        notes.append("the labels are those of the items, not its `targets` or `labels`, so `classes` names none")
    for split, loader in given.items():
        if isinstance(loader, DataLoader):
            notes += not_taken(split, loader, config.batch_size or DEFAULT_BATCH_SIZE)
    samples = Samples(
        name=own_name(items["train"]),
        class_names=class_names_of(names, int(labels.max())),
        paths=PathTable(f"{split}/{row}" for split, size in sizes.items() for row in range(size)),
        labels=labels.astype(np.int32),
        splits=np.repeat(np.array([SPLITS.index(split) for split in sizes], np.int8), list(sizes.values())),
    )
    if not OwnDataset(items["train"], samples, "train", seed=seed).repeats():
        notes.append(
            "an image drawn twice with one seed differs, by a generator of its own: the run cannot be repeated"
        )
    samples = samples.note(*notes)
    loaders = {
        split: loader_of(OwnDataset(dataset, samples, split, seed=seed), config, seed=seed, share=share, device=device)
        for split, dataset in items.items()
    }
    return DataBundle(loaders, samples.class_names, sizes)


def splits_of(given: Any) -> dict[str, Any]:
    """Return the Dataset of each split that a program gave, without its DataLoader.

    Raises DataError: no mapping, no train or val, a split of another name."""
    if not isinstance(given, Mapping) or not {"train", "val"} <= set(given) <= set(SPLITS):
        found = ", ".join(map(str, given)) if isinstance(given, Mapping) else f"a {type(given).__name__}"
        raise DataError(f"dataloaders={found}: give a mapping with train and val, and test if there is one")
    items = {split: given[split] for split in SPLITS if split in given}
    return {split: dataset_of(item) if isinstance(item, DataLoader) else item for split, item in items.items()}


def named(split: str, dataset: Any) -> str:
    return f"{split} Dataset {type(dataset).__name__}"


def dataset_of(loader: DataLoader) -> Any:
    """Return the Dataset of a DataLoader, or the part of it that its sampler is for."""
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    if isinstance(sampler, SubsetRandomSampler):
        return Subset(loader.dataset, sorted(int(row) for row in sampler.indices))
    return loader.dataset


def not_taken(split: str, loader: DataLoader, batch_size: int) -> Iterator[str]:
    """Yield a note on everything that a DataLoader does and a run does otherwise."""
    batches, collate = loader.batch_sampler, loader.collate_fn
    sampler, size = (getattr(batches, name, getattr(loader, name)) for name in ("sampler", "batch_size"))
    if type(batches) not in (BatchSampler, type(None)):
        yield f"{split}: the batch_sampler {type(batches).__name__} is not used: batches are the run's"
    elif type(sampler) not in (SequentialSampler, RandomSampler, SubsetRandomSampler):
        instead = "the run takes each image once an epoch, or DataConfig(balance='sampler') each class as often"
        yield f"{split}: the sampler {type(sampler).__name__} is not used: {instead}"
    if collate is not default_collate:
        yield f"{split}: the collate_fn {getattr(collate, '__name__', type(collate).__name__)} is not used"
    if split == "train" and size not in (None, batch_size):
        yield f"{split}: batch_size={size} of the DataLoader is not used: DataConfig(batch_size={batch_size}) is"


def takers_of_seeds(owner: Any, depth: int = 4) -> Iterator[Any]:
    """Yield the transforms of a Dataset that take a seed for their own generator.

    As albumentations do."""
    if callable(getattr(owner, "set_random_seed", None)) and not isinstance(owner, type):
        yield owner
        return
    held = owner if isinstance(owner, dict | list | tuple) else getattr(owner, "__dict__", {})
    if depth and len(held) <= 100:  # a list of files is none of transforms
        for value in held.values() if isinstance(held, Mapping) else held:
            yield from takers_of_seeds(value, depth - 1)


def own_name(dataset: Any) -> str:
    """Return the name of a run on this Dataset."""
    return own_name(dataset.dataset) if isinstance(dataset, Subset) else type(dataset).__name__


def class_names_of(names: Mapping[str, list[str] | None], last: int) -> tuple[str, ...]:
    """Return the names of all classes; numbers up to `last` where train gives none.

    Raises DataError: too few, or splits that differ."""
    of_train = names.get("train")
    if of_train is None:
        return tuple(map(str, range(last + 1)))
    if len(of_train) <= last:
        raise DataError(f"the train Dataset names {len(of_train)} classes, and there is a label {last}")
    for split, others in names.items():
        if others not in (None, of_train):
            found = f"{shorten_list(others)}, and train {shorten_list(of_train)}"
            raise DataError(f"the {split} Dataset names the classes {found}: they must be the same, in one order")
    return tuple(of_train)


def first_image(split: str, dataset: Any) -> Any:
    """Return the image of a Dataset's first item.

    Raises DataError: there is none, or it is no pair of an image and a label."""
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise DataError(f"the {named(split, dataset)} has no images by number: it needs __len__ and __getitem__")
    if not len(dataset):
        raise DataError(f"the {named(split, dataset)} is empty")
    item = dataset[0]
    if isinstance(item, tuple | list) and len(item) == 2:
        return item[0]
    found = f"a {type(item).__name__}" + (f" of {len(item)}" if isinstance(item, tuple | list) else "")
    raise DataError(f"the {named(split, dataset)} gives no (image, label) but {found}: wrap it in one that does")


def labels_of(split: str, dataset: Any) -> tuple[np.ndarray, list[str] | None]:
    """Return all labels of a Dataset, int64 (n,), and their class names, or None.

    The labels are those that it holds if its items agree, else those of its items."""
    first_image(split, dataset)
    (held, names), rows = held_by(dataset), range(len(dataset))

    def label(row: int) -> Any:
        try:
            item = dataset[row]
        except Exception as error:  # of the program's own
            error.add_note(f"item {row} of the {named(split, dataset)}")
            raise
        with wanting_labels(split, dataset):
            return label_of(item)

    if held is not None:
        # One of each class, too: most that changes labels, such as a target_transform, does so class by class.
        some = sorted({*evenly(len(rows), 16).tolist(), *np.unique(held, return_index=True)[1][:1000].tolist()})
        found = [label(row) for row in some]
        with wanting_labels(split, dataset):
            if all(one == held[row] for row, one in zip(some, found, strict=True)):
                return held, names
    every = [label(row) for row in rows]
    with wanting_labels(split, dataset):
        labels = whole_numbers(every, len(rows))
    return labels, names if held is None or np.array_equal(held, labels) else None


@contextmanager
def wanting_labels(split: str, dataset: Any) -> Iterator[None]:
    """Re-raise what is wrong with a label as DataError."""
    try:
        yield
    except (TypeError, ValueError, IndexError, KeyError) as error:
        raise DataError(f"the {named(split, dataset)} gives no labels 0, 1, ...: {error}") from error


def label_of(item: Any) -> Any:
    """Return the label of an item; of an array or a tensor of one number the number."""
    label = item[1]
    if not hasattr(label, "reshape"):
        return label
    return label.item() if len(label.reshape(-1)) == 1 else label.tolist()


def whole_numbers(values: Any, count: int) -> np.ndarray:
    """Return labels of shape (n,) or (n, 1) as int64 (n,). Raises ValueError: they are no whole numbers from 0 on."""
    labels = np.asarray(values)
    if labels.shape not in ((count,), (count, 1)) or not count:
        raise ValueError(f"labels of shape {labels.shape} for {count} items")
    whole = labels.dtype.kind in "biuf" and (np.isfinite(labels) & (labels == np.floor(labels)) & (labels >= 0)).all()
    if not whole:
        raise ValueError(f"labels such as {labels.reshape(-1)[0]}, or some below 0")
    if (largest := labels.max()) >= MOST_CLASSES:
        raise ValueError(f"a label {int(largest):,}, and at most {MOST_CLASSES:,} classes are told apart")
    return labels.reshape(count).astype(np.int64)


def held_by(dataset: Any) -> tuple[np.ndarray | None, list[str] | None]:
    """Return the labels and the class names that a Dataset holds; None for what it lacks.

    They are its `targets` or `labels`, and its `classes`; of a Subset or a ConcatDataset those of the parts, classes
    where all agree."""
    labels, names = None, getattr(dataset, "classes", None)
    if isinstance(dataset, Subset | ConcatDataset):
        joined = [dataset.dataset] if isinstance(dataset, Subset) else dataset.datasets
        parts, classes = zip(*map(held_by, joined), strict=True)
        names = classes[0] if names is None and all(each == classes[0] for each in classes) else names
        if all(part is not None for part in parts):
            labels = np.concatenate(parts)[dataset.indices if isinstance(dataset, Subset) else slice(None)]
    else:
        held = next((getattr(dataset, name) for name in ("targets", "labels") if hasattr(dataset, name)), None)
        with suppress(TypeError, ValueError):  # something else is called so
            labels = whole_numbers(held, len(dataset))
    return labels, None if names is None else [*map(str, names)] or None
