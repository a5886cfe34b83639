"""A program's own map-style Datasets of (image, label) as the loaders that a run takes.

Whatever such a Dataset draws at random comes from Python's, numpy's and torch's global generators: they are seeded for
each image by (seed, epoch, image), so a run on it repeats and resumes exactly, for any number of loader processes.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

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
        torch.manual_seed(seed)
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


def own_dataloaders(
    given: Mapping[str, Dataset | DataLoader], config: DataConfig, *, seed: int, **share: int
) -> DataBundle:
    """Loaders over `given`, one Dataset for `train` and `val` each, and for `test` if there is one.

    Of a DataLoader its Dataset is taken: order, batches and processes are the run's (`config.batch_size`, `workers`).
    Raises DataError: no train or val, a split of another name, items that are no (image, label), labels below zero.
    """
    unknown = set(given) - set(SPLITS)
    if unknown or not {"train", "val"} <= set(given):
        raise DataError(f"dataloaders={', '.join(given) or 'nothing'}: give train and val, and test if there is one")
    items: dict[str, Any] = {
        split: given[split].dataset if isinstance(given[split], DataLoader) else given[split]  # type: ignore[union-attr]
        for split in SPLITS
        if split in given
    }
    labels = {split: labels_of(split, dataset) for split, dataset in items.items()}
    classes = 1 + max(int(part.max()) for part in labels.values())
    names = getattr(items["train"], "classes", None) or range(classes)
    if len(names) < classes:
        raise DataError(f"the train Dataset names {len(names)} classes, and there is a label {classes - 1}")
    samples = Samples(
        name=type(items["train"]).__name__,
        class_names=tuple(map(str, names)),
        paths=PathTable([f"{split}/{row}" for split, part in labels.items() for row in range(len(part))]),
        labels=np.concatenate(list(labels.values())).astype(np.int32),
        splits=np.concatenate([np.full(len(part), SPLITS.index(split), np.int8) for split, part in labels.items()]),
        notes=("the program's own images: a resumed run is held to their number and labels, not to their contents",),
    )
    loaders = {
        split: loader_of(OwnDataset(dataset, samples, split, seed=seed), config, seed=seed, **share)
        for split, dataset in items.items()
    }
    return DataBundle(loaders, samples.class_names, {split: len(part) for split, part in labels.items()})


def labels_of(split: str, dataset: Any) -> np.ndarray:
    """All labels of a Dataset: its `targets` or `labels`, a TensorDataset's second tensor, or what its items say."""
    known = next((getattr(dataset, name) for name in ("targets", "labels") if hasattr(dataset, name)), None)
    if known is None and len(getattr(dataset, "tensors", ())) == 2:
        known = dataset.tensors[1]
    try:
        labels = np.asarray(known if known is not None else [int(dataset[row][1]) for row in range(len(dataset))])
        if labels.shape != (len(dataset),) or not len(labels) or labels.min() < 0:
            raise ValueError(f"labels of shape {labels.shape} for {len(dataset)} items, or some below 0")
        return labels.astype(np.int64)
    except (TypeError, ValueError, IndexError, KeyError) as error:
        raise DataError(
            f"the {split} Dataset {type(dataset).__name__} gives no (image, label) with labels 0, 1, ...: {error}"
        ) from error
