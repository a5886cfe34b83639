"""Augmentation by torchvision, one image at a time: RandAugment (Cubuk et al. 2019, arXiv:1909.13719) and erasing."""

from collections.abc import Sequence

import numpy as np
import torch
from torchvision.transforms import v2

from datasets.bundle import ImageSpecLike
from datasets.seeding import AUGMENT, mix
from datasets.transforms import Pipeline


def randaugment(spec: ImageSpecLike, *, mirror: bool, magnitude: int, erase: float = 0.0) -> Pipeline:
    """Crop, mirror and RandAugment, then erase a part of an image with probability `erase`."""
    grey = [round(255 * value) for value in spec.mean]  # normalises to zero: for pixels that an operation leaves empty
    mode = v2.InterpolationMode(spec.interpolation)
    steps = [
        v2.RandomResizedCrop(spec.image_size, scale=(0.08, 1.0), interpolation=mode, antialias=True),
        *([v2.RandomHorizontalFlip()] if mirror else []),
        v2.RandAugment(num_ops=2, magnitude=magnitude, fill=grey),
        *([v2.RandomErasing(erase, value=grey)] if erase else []),
    ]
    return PerSample(spec, v2.Compose(steps))


class PerSample(Pipeline):
    """torchvision v2 transforms on one image at a time, each with its own seed.

    Kept at up to twice the input side, for a crop of any part to start from real pixels.
    """

    batched = False

    def __init__(self, spec: ImageSpecLike, transform: v2.Transform) -> None:
        super().__init__(spec)
        self.transform = transform
        self.crop = None

    def _shorter_side(self, width: int, height: int) -> int:
        return min(2 * self.size, width, height)

    def __call__(self, images: Sequence[np.ndarray], *, seed: int, epoch: int, draws: np.ndarray) -> torch.Tensor:
        state = torch.random.get_rng_state()
        batch = []
        for image, draw in zip(images, draws.tolist(), strict=True):
            torch.default_generator.manual_seed(mix(seed, AUGMENT, epoch, draw))
            pixels = torch.from_numpy(np.ascontiguousarray(image))
            batch.append(self.transform(pixels.expand(self.channels, -1, -1)))
        torch.random.set_rng_state(state)  # the trainer's own draws must not depend on where a batch was made
        return self.normalise(torch.stack(batch))
