"""A program's own map-style Datasets of (image, label) as the loaders that a run takes.

Whatever such a Dataset draws at random comes from the global generators of Python, numpy and, on the CPU, torch: they
are seeded for each image by (seed, epoch, image), so a run on it repeats and resumes exactly, for any number of loader
processes.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from datasets.bundle import SPLITS, BatchKey, DataBundle, ImageSet, PathTable, Samples
from datasets.config import DataConfig
from datasets.errors import DataError
from datasets.loaders import loader_of
from datasets.seeding import AUGMENT, mix


class OwnDataset(ImageSet):
    """One split: the Dataset's own images, float32 (C, H, W) as it prepares them, with their rows of the table."""

    def __init__(self, items: Any, samples: Samples, split: str, *, seed: int) -> None:
        super().__init__(samples, split)
        self.items, self.seed = items, seed

    def __getitems__(self, key: BatchKey) -> tuple[Tensor, Tensor]:
        images = [self._image(draw, key.epoch) for draw in key.draws]
        return torch.stack(images), torch.from_numpy(self.labels[key.draws % len(self)])

    def _image(self, draw: int, epoch: int = 0) -> Tensor:
        seed = mix(self.seed, AUGMENT, epoch, int(draw)) & 0xFFFF_FFFF
        random.seed(seed)
        np.random.seed(seed)
        torch.default_generator.manual_seed(seed)
        return torch.as_tensor(self.items[draw % len(self)][0], dtype=torch.float32)

    def stored(self, rows: Sequence[int]) -> list[np.ndarray]:
        """Each image over its own range, for nobody knows how it was normalised: uint8 (C, H, W)."""
        above_least = [image - image.min() for image in map(self._image, rows)]
        return [(255 * image / image.max().clamp(min=1e-12)).byte().numpy() for image in above_least]

    def original(self, index: int) -> np.ndarray:
        """The image as the Dataset gives it in epoch 0, over its own range: uint8 (C, H, W)."""
        return self.stored([index])[0]

    def native_size(self, index: int) -> tuple[int, int]:
        height, width = self._image(index).shape[-2:]
        return width, height


def splits_of(given: Any) -> dict[str, Any]:
    """The map-style Dataset of each split that a program gave, out of its DataLoader where it is in one. Raises
    DataError: no mapping, no train or val, a split of another name, a Dataset that has no length or no order."""
    if not isinstance(given, Mapping):
        what = f"a {type(given).__name__}"
        raise DataError(f"dataloaders={what}: give a mapping, {{'train': ..., 'val': ...}}, and 'test' if there is one")
    unknown = set(given) - set(SPLITS)
    if unknown or not {"train", "val"} <= set(given):
        raise DataError(f"dataloaders={', '.join(given) or 'nothing'}: give train and val, and test if there is one")
    items = {split: given[split] for split in SPLITS if split in given}
    items = {split: item.dataset if isinstance(item, DataLoader) else item for split, item in items.items()}
    for split, dataset in items.items():
        if isinstance(dataset, IterableDataset) or not (
            hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
        ):
            raise DataError(
                f"the {split} Dataset {type(dataset).__name__} has no images by number: give a map-style Dataset, with"
                " __len__ and __getitem__; an exact resume needs any image again"
            )
    return items


def whole(dataset: Any) -> Any:
    """The Dataset that parts of it, such as those of `random_split`, are parts of; any other is itself."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return dataset


def own_name(dataset: Any) -> str:
    """Return the name of a run on this Dataset."""
    return type(whole(dataset)).__name__


def first_image(split: str, dataset: Any) -> Any:
    """The image of a Dataset's first item. Raises DataError: items that are no pair of an image and its label."""
    item = dataset[0]
    if isinstance(item, tuple | list) and len(item) == 2:
        return item[0]
    found = f"a {type(item).__name__}"
    if isinstance(item, Mapping):
        found += f" with {', '.join(map(repr, list(item)[:4]))}"
    elif isinstance(item, tuple | list):
        found += f" of {len(item)}"
    raise DataError(
        f"the {split} Dataset {type(dataset).__name__} gives no (image, label): its items are {found}; wrap it in a"
        " Dataset whose __getitem__ returns the two"
    )


def own_dataloaders(
    given: Mapping[str, Dataset | DataLoader], config: DataConfig, *, seed: int, **share: int
) -> DataBundle:
    """Loaders over `given`, one Dataset for `train` and `val` each, and for `test` if there is one.

    Of a DataLoader its Dataset is taken: order, batches and processes are the run's (`config.batch_size`, `workers`).
    Raises DataError: no train or val, a split of another name, items that are no (image, label), labels below zero.
    """
    items = splits_of(given)
    for split, dataset in items.items():
        first_image(split, dataset)
    labels = {split: labels_of(split, dataset) for split, dataset in items.items()}
    classes = 1 + max(int(part.max()) for part in labels.values())
    of_train = items["train"]
    names = next(filter(None, (getattr(part, "classes", None) for part in (of_train, whole(of_train)))), range(classes))
    if len(names) < classes:
        raise DataError(f"the train Dataset names {len(names)} classes, and there is a label {classes - 1}")
    samples = Samples(
        name=own_name(of_train),
        class_names=tuple(map(str, names)),
        paths=PathTable([f"{split}/{row}" for split, part in labels.items() for row in range(len(part))]),
        labels=np.concatenate(list(labels.values())).astype(np.int32),
        splits=np.concatenate([np.full(len(part), SPLITS.index(split), np.int8) for split, part in labels.items()]),
        notes=("your own Dataset: a resumed run checks only the number of images and their labels",),
    )
    loaders = {
        split: loader_of(OwnDataset(dataset, samples, split, seed=seed), config, seed=seed, **share)
        for split, dataset in items.items()
    }
    return DataBundle(loaders, samples.class_names, {split: len(part) for split, part in labels.items()})


def labels_of(split: str, dataset: Any) -> np.ndarray:
    """All labels of a Dataset: those it holds, or what its items say, int64 (n,)."""
    try:
        known = labels_held(dataset)
        labels = np.asarray(known if known is not None else [int(dataset[row][1]) for row in range(len(dataset))])
        if labels.shape != (len(dataset),) or not len(labels) or labels.min() < 0:
            raise ValueError(f"labels of shape {labels.shape} for {len(dataset)} items, or some below 0")
        return labels.astype(np.int64)
    except (TypeError, ValueError, IndexError, KeyError) as error:
        raise DataError(
            f"the {split} Dataset {type(dataset).__name__} gives no (image, label) with labels 0, 1, ...: {error}"
        ) from error


def labels_held(dataset: Any) -> Any:
    """The `targets` or `labels` of a Dataset, a TensorDataset's second tensor, or of a part those of its rows; None
    where there are none."""
    if isinstance(dataset, Subset):
        held = labels_held(dataset.dataset)
        return None if held is None else np.asarray(held)[np.asarray(dataset.indices, np.int64)]
    tensors: Any = getattr(dataset, "tensors", ())
    held = next((getattr(dataset, name) for name in ("targets", "labels") if hasattr(dataset, name)), None)
    return tensors[1] if held is None and len(tensors) == 2 else held
