"""Transforms from stored pixels to model input: the one for evaluation, and what every augmentation starts from.

B batch, C channels, S side of the model's input. A `Pipeline` says in which form an image is stored (`resize`, `crop`),
so that a decoded image can be kept, and turns a list of stored images into one normalised batch.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from PIL import Image

from common.image_spec import ImageSpec
from datasets.fitting import offset, resized_size
from datasets.images import Size, fit, resized, to_array


class Pipeline:
    """Fit, normalise: what validation, test and prediction see; base of all augmentation. Stored images in, float32
    (B, C, S, S) normalised by `spec` out."""

    batched = True  # False: works image by image, worth a loader process

    def __init__(self, spec: ImageSpec) -> None:
        self.spec = spec
        self.size = spec.image_size
        self.interpolation = spec.interpolation
        self.channels = spec.in_channels
        self.resize: int = round(spec.image_size / spec.crop_fraction)
        self.crop: int | None = spec.image_size
        """Side of what is stored; None where images are stored larger, and each in its own proportions."""
        self.border = [round(255 * value) for value in spec.mean]  # normalises to zero, but for rounding
        mean, std = torch.tensor(spec.mean).view(-1, 1, 1), torch.tensor(spec.std).view(-1, 1, 1)
        self._scale, self._bias = 1 / (255 * std), -mean / std  # (x / 255 - mean) / std = x * scale + bias

    def get_ready(self) -> None:
        """Import what the first batch needs, in the process whose loader processes are forked next."""

    @property
    def least(self) -> Callable[[int, int], Size] | None:
        """Size to which a picture must be decoded at least, from its own; None where all are decoded in full."""
        return self.resized_size if self.spec.decoding == "scaled" else None

    def store(self, image: Image.Image) -> np.ndarray:
        """The random-free part of the work, done once per image: uint8 (C, h, w)."""
        if self.spec.fit != "crop":
            image = resized(image, self.resized_size(*image.size), self.interpolation)
            return to_array(image if self.crop is None else self.framed(image))
        side = self._shorter_side(*image.size)
        return to_array(fit(image, side, interpolation=self.interpolation, crop=self.crop))

    def framed(self, image: Image.Image) -> Image.Image:
        """An image whose longer side is S, in the middle of an S x S square of the border's colour."""
        if image.width == image.height:
            return image
        colour = self.border[0] if image.mode == "L" else tuple(self.border)
        square = Image.new(image.mode, (self.size, self.size), colour)
        square.paste(image, (-offset(image.width, self.spec), -offset(image.height, self.spec)))
        return square

    def stored_size(self, width: int, height: int) -> Size:
        """(width, height) of what `store` makes of an image of this size."""
        if self.crop is not None:
            return self.crop, self.crop
        return self.resized_size(width, height)

    def resized_size(self, width: int, height: int) -> Size:
        """(width, height) to which an image of this size is resized, before it is cut or framed."""
        if self.spec.fit != "crop":
            return resized_size(width, height, self.spec)
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


def preprocess(image: Image.Image, spec: ImageSpec) -> torch.Tensor:
    """One image of mode RGB or L -> float32 (C, S, S), exactly as in evaluation."""
    pipeline = Pipeline(spec)
    return pipeline([pipeline.store(image)], seed=0, epoch=0, draws=np.zeros(1, np.int64))[0]
