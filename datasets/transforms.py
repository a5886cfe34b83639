"""Transforms from stored pixels to model input: the one for evaluation, and what every augmentation starts from.

B batch, C channels, S side of the model's input.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from PIL import Image

from common.errors import DataError
from common.image_spec import ImageSpec
from datasets.fitting import framed, resized_size
from datasets.images import Size, to_array


class Pipeline:
    """Fit and normalise: what validation, test and prediction see; base of all augmentation.

    `store` does the part without chance, once for an image, so that its result can be kept; `pixels` makes a batch of
    stored images, and `normalise` what the model takes. A call does both: float32 (B, C, S, S), normalised by `spec`.
    """

    batched = True  # False: works image by image, which pays for a loader process

    def __init__(self, spec: ImageSpec) -> None:
        self.spec, self.size, self.channels = spec, spec.image_size, spec.in_channels
        mean, std = torch.tensor(spec.mean).view(-1, 1, 1), torch.tensor(spec.std).view(-1, 1, 1)
        self._scale, self._bias = 1 / (255 * std), -mean / std  # (x / 255 - mean) / std = x * scale + bias

    def get_ready(self) -> None:
        """Import what the first batch needs, in the process whose loader processes are forked next."""

    def stored_side(self, width: int, height: int) -> int | None:
        """Return the side to which an image is resized and then stored whole; None: it is stored as S x S."""
        return None

    def resized_size(self, width: int, height: int) -> Size:
        """Return (width, height) to which an image of this size is resized."""
        return resized_size(width, height, self.spec, self.stored_side(width, height))

    def stored_size(self, width: int, height: int) -> Size:
        """Return (width, height) of what `store` makes of an image of this size."""
        whole = self.stored_side(width, height) is not None
        return self.resized_size(width, height) if whole else (self.size, self.size)

    @property
    def least(self) -> Callable[[int, int], Size] | None:
        """Size to which a picture must be decoded at least, from its own; None where all are decoded in full."""
        return self.resized_size if self.spec.decoding == "scaled" else None

    def store(self, image: Image.Image) -> np.ndarray:
        """Resize and frame an image: uint8 (C, h, w)."""
        whole, size = self.stored_side(*image.size) is not None, self.resized_size(*image.size)
        if image.size != size:
            image = image.resize(size, Image.Resampling[self.spec.interpolation.upper()])
        return to_array(image if whole else framed(image, self.spec))

    def __call__(self, images: Sequence[np.ndarray], *, seed: int, epoch: int, draws: np.ndarray) -> torch.Tensor:
        return self.normalise(self.pixels(images, seed=seed, epoch=epoch, draws=draws))

    def pixels(self, images: Sequence[np.ndarray], *, seed: int, epoch: int, draws: np.ndarray) -> torch.Tensor:
        """Make a batch of stored images: uint8 (B, C or 1, S, S). `draws` (B,) decides which random numbers each gets
        in this epoch."""
        return torch.from_numpy(np.stack(images))

    def normalise(self, pixels: torch.Tensor) -> torch.Tensor:
        """Normalise uint8 (B, C or 1, S, S) to float32 (B, C, S, S), on the device of the pixels; grey fills all
        channels."""
        scale, bias = (part.to(pixels.device, non_blocking=True) for part in (self._scale, self._bias))
        return torch.addcmul(bias, pixels.float(), scale)


def preprocess(image: Image.Image, spec: ImageSpec) -> torch.Tensor:
    """Prepare one image of mode RGB or L as evaluation does: float32 (C, S, S). Raises DataError: no such image."""
    if getattr(image, "mode", None) not in ("RGB", "L"):
        found = f"an image of mode {image.mode}" if hasattr(image, "mode") else f"a {type(image).__name__}"
        raise DataError(f"preprocess takes an image of Pillow of mode RGB or L, not {found}: try image.convert('RGB')")
    pipeline = Pipeline(spec)
    return pipeline([pipeline.store(image)], seed=0, epoch=0, draws=np.zeros(1, np.int64))[0]
