"""Augmentation by torchvision, one image at a time: RandAugment (Cubuk et al. 2019, arXiv:1909.13719) and erasing."""

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from datasets.bundle import ImageSpecLike
from datasets.seeding import AUGMENT, mix
from datasets.transforms import Pipeline


class RandAugment(Pipeline):
    """Crop, mirror and RandAugment, then erase a part of an image with probability `erase`, each with its own seed.

    Images are kept at up to twice the input side, for a crop of any part to start from real pixels.
    """

    batched = False

    def __init__(self, spec: ImageSpecLike, *, mirror: bool, magnitude: int, erase: float) -> None:
        super().__init__(spec)
        self.mirror, self.magnitude, self.erase = mirror, magnitude, erase
        self.grey = [round(255 * value) for value in spec.mean]  # normalises to zero: where an operation leaves nothing
        self.crop = None

    @cached_property
    def transform(self) -> Callable[[Tensor], Tensor]:
        from torchvision.transforms import v2  # takes a second to import

        mode = v2.InterpolationMode(self.interpolation)
        steps = [
            v2.RandomResizedCrop(self.size, scale=(0.08, 1.0), interpolation=mode, antialias=True),
            *([v2.RandomHorizontalFlip()] if self.mirror else []),
            v2.RandAugment(num_ops=2, magnitude=self.magnitude, fill=self.grey),
            *([v2.RandomErasing(self.erase, value=self.grey)] if self.erase else []),
        ]
        return v2.Compose(steps)

    def get_ready(self) -> None:
        assert self.transform is not None

    def _shorter_side(self, width: int, height: int) -> int:
        return min(2 * self.size, width, height)

    def __call__(self, images: Sequence[np.ndarray], *, seed: int, epoch: int, draws: np.ndarray) -> Tensor:
        state = torch.random.get_rng_state()
        batch = []
        for image, draw in zip(images, draws.tolist(), strict=True):
            torch.default_generator.manual_seed(mix(seed, AUGMENT, epoch, draw))
            pixels = torch.from_numpy(np.ascontiguousarray(image))
            batch.append(self.transform(pixels.expand(self.channels, -1, -1)))
        torch.random.set_rng_state(state)  # the trainer's own draws must not depend on where a batch was made
        return self.normalise(torch.stack(batch))
