"""From stored pixels to model input: the one evaluation transform, and what every augmentation starts from.

B batch, C channels, S side of the model's input. A `Pipeline` says in which form an image is stored (`resize`, `crop`),
so that a decoded image can be kept, and turns a list of stored images into one normalised batch.
"""

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image

from datasets.bundle import ImageSpecLike
from datasets.images import fit, to_array


class Pipeline:
    """Resize, centre crop, normalise: what validation, test and prediction see; base of all augmentation. Stored
    images in, float32 (B, C, S, S) normalised by `spec` out."""

    batched = True  # False: works image by image, worth a loader process

    def __init__(self, spec: ImageSpecLike) -> None:
        self.size = spec.image_size
        self.interpolation = spec.interpolation
        self.channels = spec.in_channels
        self.resize: int = round(spec.image_size / spec.crop_fraction)
        self.crop: int | None = spec.image_size
        mean, std = torch.tensor(spec.mean).view(-1, 1, 1), torch.tensor(spec.std).view(-1, 1, 1)
        self._scale, self._bias = 1 / (255 * std), -mean / std  # (x / 255 - mean) / std = x * scale + bias

    def get_ready(self) -> None:
        """Import what the first batch needs, in the process whose loader processes are forked next."""

    def store(self, image: Image.Image) -> np.ndarray:
        """The random-free part of the work, done once per image: uint8 (C, h, w)."""
        side = self._shorter_side(*image.size)
        return to_array(fit(image, side, interpolation=self.interpolation, crop=self.crop))

    def stored_size(self, width: int, height: int) -> tuple[int, int]:
        """(width, height) of what `store` makes of an image of this size."""
        if self.crop is not None:
            return self.crop, self.crop
        target = self._shorter_side(width, height)
        scale = target / min(width, height)
        return max(target, int(width * scale)), max(target, int(height * scale))

    def _shorter_side(self, width: int, height: int) -> int:
        return self.resize

    def __call__(self, images: Sequence[np.ndarray], *, seed: int, epoch: int, draws: np.ndarray) -> torch.Tensor:
        """`draws` (B,) says which random numbers each image gets in this epoch."""
        return self.normalise(torch.from_numpy(np.stack(images)))

    def normalise(self, pixels: torch.Tensor) -> torch.Tensor:
        """uint8 or 0-255 float (B, C or 1, S, S) -> float32 (B, C, S, S); a grey image fills all channels."""
        return torch.addcmul(self._bias, pixels.float(), self._scale)


def preprocess(image: Image.Image, spec: ImageSpecLike) -> torch.Tensor:
    """One image of mode RGB or L -> float32 (C, S, S), exactly as in evaluation."""
    pipeline = Pipeline(spec)
    return pipeline([pipeline.store(image)], seed=0, epoch=0, draws=np.zeros(1, np.int64))[0]
