"""A linear probe on cached features: the frozen backbone sees each image once, and the head trains on what it said.

Valid where the images stay the same in every epoch. Training then takes seconds, whatever the size of the backbone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from common.errors import OptionError
from datasets.cache import available_memory
from datasets.loaders import Loader, stop_workers
from datasets.sampling import BatchKey, OrderedBatchSampler
from trainers.engine.engines import autocast
from vit.parts import inputs_of, parts


class FeatureDataset(Dataset):
    """One split as features (N, D) instead of images; everything else is the image data set's."""

    def __init__(self, images: Any, features: Tensor) -> None:
        self.images, self.features = images, features
        self.labels, self.samples = images.labels, images.samples

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, key: BatchKey) -> tuple[Tensor, Tensor]:
        rows = torch.from_numpy(np.asarray(key.draws) % len(self))
        return self.features[rows], torch.from_numpy(self.labels)[rows]

    def path(self, index: int) -> str:
        return self.images.path(index)


@torch.no_grad()
def features_of(
    model: nn.Module,
    loader: DataLoader,
    device: torch.device,
    *,
    amp_dtype: torch.dtype | None,
    end: nn.Module | None = None,
) -> Tensor:
    """(N, D) on the CPU: what reaches the head, or another `end`, for every image of a split in table order."""
    model.eval()
    dataset: Any = loader.dataset
    sampler = OrderedBatchSampler(len(dataset), loader.batch_sampler.batch_size)  # type: ignore[union-attr]
    ordered = Loader(dataset, sampler, workers=loader.num_workers, device=device)
    features: list[Tensor] = []
    try:
        with weights_cast_once(model, amp_dtype), inputs_of(end or parts(model).head[0]) as seen:
            for images, _ in tqdm(ordered, desc="features", disable=None, leave=False):
                with autocast(device, amp_dtype):
                    model(images)
                features.append(seen.pop().cpu())
                if len(features) == 1:
                    _require_memory(features[0], len(dataset))
    finally:
        stop_workers([ordered])
    return torch.cat(features)


@contextmanager
def weights_cast_once(model: nn.Module, dtype: torch.dtype | None) -> Iterator[None]:
    """Give the weights of matrix products the type that autocast computes in while entered; None: as they are.

    Autocast keeps its casts of weights that want a gradient only: those of a frozen ViT-B it would make anew in each
    forward pass. What is computed stays the same to the last bit. torch's own attention is left as it is: with frozen
    bf16 weights it takes a batched product that is four times as slow.
    """
    layers = [part for part in model.modules() if type(part) in (nn.Linear, nn.Conv2d)]  # its projection is neither
    kept = [(weights, weights.data) for layer in layers for weights in layer.parameters(recurse=False)]
    try:
        for weights, data in kept:
            weights.data = data if dtype is None else data.to(dtype)
        yield
    finally:
        for weights, data in kept:
            weights.data = data


def _require_memory(batch: Tensor, images: int) -> None:
    need, free = batch[0].numel() * batch.element_size() * images, available_memory()
    if need > 0.8 * free:
        raise OptionError(
            f"the features of {images:,} images need {need / 1e9:.1f} GB, {free / 1e9:.1f} GB are free: "
            "use --cache-features off"
        )
