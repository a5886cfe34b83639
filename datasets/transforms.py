"""From stored pixels to model input: one evaluation transform, and the augmentation presets with their sources.

B batch, C channels, S side of the model's input. A `Pipeline` says in which form an image is stored (`resize`, `crop`),
so that a decoded image can be kept, and turns a list of stored images into one normalised batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from datasets.bundle import ImageSpecLike
from datasets.images import fit, to_array
from datasets.seeding import AUGMENT, mix, uniforms

SMALL = 64  # up to this input side an image is shifted, not cropped out of a larger one: too few pixels to give away


@dataclass(frozen=True)
class Preset:
    """An augmentation preset as a card: what it does, where it comes from, what the train step adds."""

    name: str
    does: str
    source: str
    mixup_alpha: float = 0.0
    cutmix_alpha: float = 0.0


PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("none", "The evaluation transform: resize, centre crop.", "no augmentation"),
        Preset(
            "light",
            "A random crop of the image resized by 8/7, mirrored half the time. Up to 64 px: a random shift by an "
            "eighth at most. Up to 64 px and where mirroring would change the label: rotation by up to 10 degrees, "
            "scale 0.9-1.1, shift by up to a tenth.",
            "Krizhevsky et al. 2012, section 4.1 (crop, mirror); He et al. 2016, section 4.2 (shift of small images); "
            "Simard et al. 2003 (affine distortions of digits)",
        ),
        Preset(
            "recolour",
            "For grey drawings that shall teach shapes alone: rotation by up to 10 degrees, scale 0.75-1.25, shift by "
            "up to an eighth, then black and white each become a random colour.",
            "domain randomisation: Tobin et al. 2017, section III; Simard et al. 2003 (affine distortions)",
        ),
        Preset(
            "standard",
            "Random resized crop (8-100 % of the area), mirror, RandAugment (2 operations, magnitude 9 of 30); in the "
            "step MixUp 0.2 or CutMix 1.0.",
            "torchvision's reference recipe for vit_b_16 (references/classification, 2022)",
            mixup_alpha=0.2,
            cutmix_alpha=1.0,
        ),
        Preset(
            "strong",
            "Random resized crop (8-100 % of the area), mirror, RandAugment (2 operations, magnitude 27 of 30), random "
            "erasing with probability 0.25; in the step MixUp 0.8 or CutMix 1.0.",
            "DeiT: Touvron et al. 2021, table 9 (RandAugment 9 of 10 is 27 of torchvision's 30)",
            mixup_alpha=0.8,
            cutmix_alpha=1.0,
        ),
    )
}


class Pipeline:
    """Evaluation, and the base of all augmentation: stored images in, float32 (B, C, S, S) normalised by `spec` out."""

    batched = True  # False: works image by image, worth a loader process

    def __init__(self, spec: ImageSpecLike) -> None:
        self.size = spec.image_size
        self.interpolation = spec.interpolation
        self.channels = spec.in_channels
        self.resize: int = round(spec.image_size / spec.crop_fraction)
        self.crop: int | None = spec.image_size
        mean, std = torch.tensor(spec.mean).view(-1, 1, 1), torch.tensor(spec.std).view(-1, 1, 1)
        self._scale, self._bias = 1 / (255 * std), -mean / std  # (x / 255 - mean) / std = x * scale + bias

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


class CropFlip(Pipeline):
    """`light`: a random S x S window of a slightly larger image, mirrored with probability one half."""

    def __init__(self, spec: ImageSpecLike, *, mirror: bool) -> None:
        super().__init__(spec)
        self.mirror = mirror
        self.padding = 0
        if self.size <= SMALL:
            self.padding = max(1, self.size // 8)
        else:
            self.resize, self.crop = round(self.size * 8 / 7), None

    def __call__(self, images: Sequence[np.ndarray], *, seed: int, epoch: int, draws: np.ndarray) -> torch.Tensor:
        random = uniforms(mix(seed, AUGMENT, epoch), draws, 3)
        size, pad = self.size, self.padding
        out = np.empty((len(images), images[0].shape[0] if images else self.channels, size, size), np.uint8)
        for row, image in enumerate(_padded(np.stack(images), pad) if pad else images):
            top = int(random[row, 0] * (image.shape[1] - size + 1))
            left = int(random[row, 1] * (image.shape[2] - size + 1))
            out[row] = image[:, top : top + size, left : left + size]
        batch = torch.from_numpy(out)
        if self.mirror:
            flipped = torch.from_numpy(random[:, 2] < 0.5)
            batch[flipped] = batch[flipped].flip(-1)
        return self.normalise(batch)


class SmallAffine(Pipeline):
    """`light` for small pictures whose orientation carries the label: a slight turn, zoom and shift; never a mirror."""

    degrees, zoom, shift = 10.0, 0.1, 0.1

    def __call__(self, images: Sequence[np.ndarray], *, seed: int, epoch: int, draws: np.ndarray) -> torch.Tensor:
        random = torch.from_numpy(uniforms(mix(seed, AUGMENT, epoch), draws, 4) * 2 - 1).float()
        return self.normalise(self.warp(images, random))

    def warp(self, images: Sequence[np.ndarray], random: torch.Tensor) -> torch.Tensor:
        """Float pixels 0-255 (B, C or 1, S, S), moved as `random` (B, 4) in [-1, 1) says."""
        pixels = torch.from_numpy(np.stack(images)).float()
        angle, scale = torch.deg2rad(random[:, 0] * self.degrees), 1 + random[:, 1] * self.zoom
        cos, sin = angle.cos() / scale, angle.sin() / scale
        dx, dy = random[:, 2] * 2 * self.shift, random[:, 3] * 2 * self.shift  # the grid spans [-1, 1]: 2 = one side
        theta = torch.stack((cos, -sin, dx, sin, cos, dy), dim=1).view(-1, 2, 3)
        grid = F.affine_grid(theta, list(pixels.shape), align_corners=False)
        # Nearest, as torchvision's RandomAffine: interpolation would blur every training image and no evaluation image,
        # which cost 8 x 8 digits a quarter of the validation loss.
        return F.grid_sample(pixels, grid, mode="nearest", align_corners=False)


class Recolour(SmallAffine):
    """`recolour`: a grey drawing in random colours, so that neither polarity nor contrast tells anything."""

    zoom, shift = 0.25, 0.125
    contrast = 0.4  # least mean distance of the two colours, of 1

    def __call__(self, images: Sequence[np.ndarray], *, seed: int, epoch: int, draws: np.ndarray) -> torch.Tensor:
        random = torch.from_numpy(uniforms(mix(seed, AUGMENT, epoch), draws, 4 + 2 * self.channels)).float()
        grey = self.warp(images, random[:, :4] * 2 - 1).mean(dim=1, keepdim=True) / 255
        black, white = random[:, 4:].view(len(images), 2, self.channels, 1, 1).unbind(dim=1)
        too_close = (white - black).abs().mean(dim=1, keepdim=True) < self.contrast
        white = torch.where(too_close, (black < 0.5).float(), white)
        return self.normalise(255 * (black + (white - black) * grey))


def train_pipeline(preset: str, spec: ImageSpecLike, *, mirror: bool = True) -> Pipeline:
    """The augmentation of the training split under a preset of PRESETS."""
    if preset == "none":
        return Pipeline(spec)
    if preset == "light":
        return CropFlip(spec, mirror=mirror) if mirror or spec.image_size > SMALL else SmallAffine(spec)
    if preset == "recolour":
        return Recolour(spec)
    if preset in ("standard", "strong"):
        from datasets.randaugment import standard, strong  # torchvision takes a second to import

        return (standard if preset == "standard" else strong)(spec, mirror=mirror)
    raise ValueError(f"unknown augmentation preset {preset!r}; known: {', '.join(PRESETS)}")


def eval_pipeline(spec: ImageSpecLike) -> Pipeline:
    """Resize, centre crop, normalise: what validation, test and prediction see."""
    return Pipeline(spec)


def preprocess(image: Image.Image, spec: ImageSpecLike) -> torch.Tensor:
    """One image of mode RGB or L -> float32 (C, S, S), exactly as in evaluation."""
    pipeline = eval_pipeline(spec)
    return pipeline([pipeline.store(image)], seed=0, epoch=0, draws=np.zeros(1, np.int64))[0]


def _padded(pictures: np.ndarray, pad: int) -> np.ndarray:
    """(B, C, S, S) with a black frame of `pad` pixels; np.pad takes ten times as long."""
    count, channels, height, width = pictures.shape
    framed = np.zeros((count, channels, height + 2 * pad, width + 2 * pad), np.uint8)
    framed[:, :, pad:-pad, pad:-pad] = pictures
    return framed
