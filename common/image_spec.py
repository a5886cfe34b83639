"""Preprocessing as a value that models, data and exports share. No torch."""

from dataclasses import dataclass
from typing import Literal

from common.errors import OptionError
from common.options import require, require_counts, require_finite, take_types

HALF = (0.5, 0.5, 0.5)
MAX_SIDE = 4096
"""Pixels: a batch of 32 such pictures takes 6 GB."""
Fit = Literal["crop", "pad", "squash"]


@dataclass(frozen=True)
class ImageSpec:
    """How an image becomes a model's input, in training, evaluation and exports alike.

    An image is fitted to `image_size` x `image_size` pixels, scaled to [0, 1] and normalised as `(x - mean) / std` per
    channel.
    """

    image_size: int = 224
    mean: tuple[float, ...] = HALF
    std: tuple[float, ...] = HALF
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    in_channels: int = 3
    crop_fraction: float = 1.0
    """Share kept by `crop`: the middle of a picture whose shorter side is `image_size / crop_fraction` pixels."""
    fit: Fit = "crop"
    """How a picture becomes square: keep its middle (crop), fill the border with `mean` (pad), or change its
    proportions (squash)."""
    decoding: Literal["full", "scaled"] = "full"
    """scaled: a JPEG that is much larger than needed is decoded at 1/2, 1/4 or 1/8 of its size."""

    def __post_init__(self) -> None:
        take_types(self)
        require_finite(self)
        if not 1 <= self.image_size <= MAX_SIDE:
            raise OptionError(f"image_size={self.image_size} must be at least 1 pixel, at most {MAX_SIDE}")
        require_counts(self, "in_channels")
        require(self, "be positive", lambda deviations: min(deviations, default=1) > 0, "std")
        if not len(self.mean) == len(self.std) == self.in_channels:
            raise OptionError(
                f"mean has {len(self.mean)} values, std {len(self.std)}; in_channels={self.in_channels} needs as many"
            )
        require(self, "lie in (0, 1]", lambda share: 0 < share <= 1, "crop_fraction")
