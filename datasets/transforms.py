"""Transforms from decoded images to model input: the one of evaluation, and the augmentation presets, each with its
source; MixUp and CutMix, which the train step adds.

B batch, C channels, S side of the model's input.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from common.errors import DataError, OptionError
from common.image_spec import ImageSpec
from datasets.fitting import border, framed, resized_size
from datasets.images import Size, to_array
from datasets.seeding import AUGMENT, mix, uniforms

SMALL = 64  # up to this input side an image is shifted, not cropped out of a larger one: too few pixels to give away


class Pipeline:
    """Fit and normalise: what validation, test and prediction see; base of all augmentation.

    `store` does the part without chance, once for an image, so that its result can be kept; `pixels` makes a batch of
    stored images, and `normalise` what the model takes. A call does both: float32 (B, C, S, S), normalised by `spec`.
    """

    batched = True  # False: works image by image, which pays for a loader process

    def __init__(self, spec: ImageSpec) -> None:
        self.spec, self.size, self.channels = spec, spec.image_size, spec.in_channels

    def get_ready(self) -> None:
        """Import what the first batch needs, in the process whose loader processes are forked next."""

    def stored_side(self, width: int, height: int) -> int | None:
        """Return the side to which an image is resized and then stored whole.

        None: it is stored as S x S."""
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
        """Return the least size to decode a picture of some size at.

        None where all are decoded in full."""
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
        scale, bias = scale_and_bias(self.spec.mean, self.spec.std, pixels.device)
        return torch.addcmul(bias, pixels.float(), scale)


@cache
def scale_and_bias(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what normalises bytes, each (C, 1, 1) on a device: (x / 255 - mean) / std = x * scale + bias."""
    means, deviations = (torch.tensor(values, device="cpu").view(-1, 1, 1) for values in (mean, std))
    return (1 / (255 * deviations)).to(device), (-means / deviations).to(device)


def preprocess(image: Image.Image, spec: ImageSpec) -> torch.Tensor:
    """Prepare one image of mode RGB or L as evaluation does: float32 (C, S, S). Raises DataError: no such image."""
    if getattr(image, "mode", None) not in ("RGB", "L"):
        found = f"an image of mode {image.mode}" if hasattr(image, "mode") else f"a {type(image).__name__}"
        raise DataError(f"preprocess takes an image of Pillow of mode RGB or L, not {found}: try image.convert('RGB')")
    pipeline = Pipeline(spec)
    return pipeline([pipeline.store(image)], seed=0, epoch=0, draws=np.zeros(1, np.int64))[0]


# Augmentation


class CropFlip(Pipeline):
    """`light`: a random S x S window of a slightly larger image, mirrored with probability one half.

    Where evaluation shows the whole picture (`pad`, `squash`), it is moved by up to a sixteenth of the side, over the
    border's colour: as far as the window moves over a larger image, and no end of it is lost for long. Small pictures
    are moved over black."""

    def __init__(self, spec: ImageSpec, *, mirror: bool) -> None:
        super().__init__(spec)
        self.mirror, self.padding = mirror, 0
        if spec.fit != "crop":
            self.padding, self.around = max(1, self.size // 16), border(spec)
        elif self.size <= SMALL:
            self.padding, self.around = max(1, self.size // 8), [0] * self.channels

    def stored_side(self, width: int, height: int) -> int | None:
        return None if self.padding else round(self.size * 8 / 7)

    def pixels(self, images: Sequence[np.ndarray], *, seed: int, epoch: int, draws: np.ndarray) -> torch.Tensor:
        random, size = uniforms(mix(seed, AUGMENT, epoch), draws, 3), self.size
        out = np.empty((len(images), images[0].shape[0], size, size), np.uint8)
        for row, image in enumerate(self._padded(np.stack(images)) if self.padding else images):
            top = int(random[row, 0] * (image.shape[1] - size + 1))
            left = int(random[row, 1] * (image.shape[2] - size + 1))
            out[row] = image[:, top : top + size, left : left + size]
        batch = torch.from_numpy(out)
        if self.mirror:
            flipped = torch.from_numpy(random[:, 2] < 0.5)
            batch[flipped] = batch[flipped].flip(-1)
        return batch

    def _padded(self, images: np.ndarray) -> np.ndarray:
        """Put a border around pixels (B, C or 1, S, S)."""
        count, channels, side = len(images), images.shape[1], self.size + 2 * self.padding
        colour = self.around if channels == len(self.around) else [round(sum(self.around) / len(self.around))]
        out = np.empty((count, channels, side, side), np.uint8)
        out[:] = np.array(colour, np.uint8).reshape(-1, 1, 1)
        out[..., self.padding : -self.padding, self.padding : -self.padding] = images
        return out


def padded_crop(image: torch.Tensor, spec: ImageSpec) -> torch.Tensor:
    """Cut a random part of a picture and pad it as evaluation pads a whole one: uint8 (C, h, w) -> uint8 (C, S, S).

    As torchvision's RandomResizedCrop it has 8 to 100 % of the area, in the picture's own proportions, up to 3 : 4
    narrower or wider. The whole picture is thus one of the parts; and no part lies in the border alone."""
    from torchvision.transforms import v2

    high, wide, size = *image.shape[1:], spec.image_size
    unit = torch.empty(1, 1000, 1000, dtype=torch.uint8)  # the picture in its own proportions
    drawn = v2.RandomResizedCrop.get_params(unit, scale=[0.08, 1.0], ratio=[3 / 4, 4 / 3])
    top, left, height, width = (round(part * side / 1000) for part, side in zip(drawn, (high, wide) * 2, strict=True))
    top, left, height, width = min(top, high - 1), min(left, wide - 1), max(1, height), max(1, width)
    columns, rows = resized_size(width, height, spec)
    mode = v2.InterpolationMode(spec.interpolation)
    part = v2.functional.resized_crop(image, top, left, height, width, [rows, columns], mode, antialias=True)
    above, before = (size - rows) // 2, (size - columns) // 2
    sides = [before, above, size - columns - before, size - rows - above]
    return v2.functional.pad(part, sides, fill=border(spec))


class SmallAffine(Pipeline):
    """`light` for small pictures whose orientation carries the label: a slight turn, zoom and shift; never a mirror."""

    degrees, zoom, shift = 10.0, 0.1, 0.1

    def pixels(self, images: Sequence[np.ndarray], *, seed: int, epoch: int, draws: np.ndarray) -> torch.Tensor:
        random = torch.from_numpy(uniforms(mix(seed, AUGMENT, epoch), draws, 4) * 2 - 1).float()
        pixels = torch.from_numpy(np.stack(images)).float()
        angle, scale = torch.deg2rad(random[:, 0] * self.degrees), 1 + random[:, 1] * self.zoom
        cos, sin = angle.cos() / scale, angle.sin() / scale
        dx, dy = random[:, 2] * 2 * self.shift, random[:, 3] * 2 * self.shift  # the grid spans [-1, 1]: 2 = one side
        theta = torch.stack((cos, -sin, dx, sin, cos, dy), dim=1).view(-1, 2, 3)
        grid = F.affine_grid(theta, list(pixels.shape), align_corners=False)
        # Nearest, as torchvision's RandomAffine: interpolation would blur every training image and no evaluation image,
        # which cost 8 x 8 digits a quarter of the validation loss.
        return F.grid_sample(pixels, grid, mode="nearest", align_corners=False).byte()


class RandAugment(Pipeline):
    """Crop, mirror and RandAugment (Cubuk et al. 2019, arXiv:1909.13719), then erase a part with probability `erase`.

    Each image has its own seed. They are kept at up to twice the input side, for a crop to start from real pixels. With
    `squash` crops are cut out of the squashed picture, and with `pad` a crop is padded in its turn, so that the whole
    picture, as evaluation shows it, is the largest crop there is.
    """

    batched = False

    def __init__(self, spec: ImageSpec, *, mirror: bool, magnitude: int, erase: float) -> None:
        super().__init__(spec)
        self.mirror, self.magnitude, self.erase = mirror, magnitude, erase

    @cached_property
    def transform(self) -> Callable[[torch.Tensor], torch.Tensor]:
        from torchvision.transforms import v2  # takes a second to import

        mode, grey = v2.InterpolationMode(self.spec.interpolation), border(self.spec)
        crop = v2.RandomResizedCrop(self.size, scale=(0.08, 1.0), interpolation=mode, antialias=True)
        steps = [
            partial(padded_crop, spec=self.spec) if self.spec.fit == "pad" else crop,
            *([v2.RandomHorizontalFlip()] if self.mirror else []),
            v2.RandAugment(num_ops=2, magnitude=self.magnitude, fill=grey),  # where an operation leaves nothing
            *([v2.RandomErasing(self.erase, value=grey)] if self.erase else []),
        ]
        return v2.Compose(steps)

    def get_ready(self) -> None:
        assert self.transform is not None

    def stored_side(self, width: int, height: int) -> int:
        return min(2 * self.size, min(width, height) if self.spec.fit == "crop" else max(width, height))

    def pixels(self, images: Sequence[np.ndarray], *, seed: int, epoch: int, draws: np.ndarray) -> torch.Tensor:
        batch = []
        with torch.random.fork_rng(devices=[]):  # the trainer's own draws must not depend on where a batch was made
            for image, draw in zip(images, draws.tolist(), strict=True):
                torch.default_generator.manual_seed(mix(seed, AUGMENT, epoch, draw))
                pixels = torch.from_numpy(np.require(image, requirements=["C", "W"]))
                batch.append(self.transform(pixels.expand(self.channels, -1, -1)))
        return torch.stack(batch)


def plain(spec: ImageSpec, *, mirror: bool) -> Pipeline:
    """Build the pipeline of evaluation, which changes nothing."""
    return Pipeline(spec)


def light(spec: ImageSpec, *, mirror: bool) -> Pipeline:
    """Build a random crop of the image resized by 8/7, mirrored half the time (Krizhevsky et al. 2012, section 4.1).

    Up to 64 px a shift by an eighth at most (He et al. 2016, section 4.2); where mirroring would change the label,
    rotation by up to 10 degrees, scale 0.9-1.1, shift by up to a tenth (Simard et al. 2003).
    """
    return CropFlip(spec, mirror=mirror) if mirror or spec.image_size > SMALL else SmallAffine(spec)


class Preset(NamedTuple):
    """What happens to training images."""

    pipeline: Callable[..., Pipeline]
    """Builds the augmentation of one image: (spec, *, mirror)."""
    mixup: float = 0.0
    """Alpha of MixUp, which the train step adds; 0: none."""
    cutmix: float = 0.0
    """Alpha of CutMix, likewise."""


PRESETS = {
    "none": Preset(plain),
    "light": Preset(light),
    # torchvision's reference recipe for vit_b_16 (references/classification, 2022): random resized crop (8-100 % of the
    # area), mirror, RandAugment (2 operations, magnitude 9 of 30).
    "standard": Preset(partial(RandAugment, magnitude=9, erase=0.0), mixup=0.2, cutmix=1.0),
    # DeiT (Touvron et al. 2021, table 9): the same with magnitude 27 of 30, random erasing with probability 0.25.
    "strong": Preset(partial(RandAugment, magnitude=27, erase=0.25), mixup=0.8, cutmix=1.0),
}
"""The words of `augment` in `DataConfig`, but for auto."""


def train_pipeline(preset: str, spec: ImageSpec, *, mirror: bool = True) -> Pipeline:
    """Build the augmentation of the training split for a preset of PRESETS."""
    if preset not in PRESETS:
        raise OptionError(f"unknown augmentation preset {preset!r}; known: {', '.join(PRESETS)}")
    return PRESETS[preset].pipeline(spec, mirror=mirror)


@dataclass(frozen=True)
class BatchMix:
    """Blend each image with its neighbour in the batch: MixUp (Zhang et al. 2018) or CutMix (Yun et al. 2019).

    One of the two is chosen per batch, with equal odds when both are on (DeiT). A lone image stays as it is.
    """

    num_classes: int
    mixup_alpha: float = 0.0
    cutmix_alpha: float = 0.0

    def __call__(
        self, images: torch.Tensor, labels: torch.Tensor, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(B, C, S, S) and int64 (B,) -> blended images and soft targets float32 (B, classes), rows summing to one.

        A pure function of its arguments: all draws come from `generator`.
        """
        targets = F.one_hot(labels, self.num_classes).float()
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        random = np.random.default_rng(seed)
        cut = self.cutmix_alpha > 0 and (self.mixup_alpha == 0 or random.random() < 0.5)
        alpha = self.cutmix_alpha if cut else self.mixup_alpha
        if alpha == 0:
            return images, targets
        kept = float(random.beta(alpha, alpha))
        if cut:
            images, kept = _cut(images, kept, random)
        else:
            images = _blend(images, kept)
        return images, torch.lerp(targets.roll(1, 0), targets, kept)


def _blend(images: torch.Tensor, kept: float) -> torch.Tensor:
    """Take the share `kept` of each image, and the rest of its neighbour: lerp(images.roll(1, 0), images, kept) without
    a copy of the batch."""
    mixed = torch.empty_like(images)
    torch.lerp(images[-1:], images[:1], kept, out=mixed[:1])
    torch.lerp(images[:-1], images[1:], kept, out=mixed[1:])
    return mixed


def _cut(images: torch.Tensor, kept: float, random: np.random.Generator) -> tuple[torch.Tensor, float]:
    """Paste a box of the neighbour over each image; also return the share that is kept."""
    height, width = images.shape[-2:]
    x, y = int(random.integers(width)), int(random.integers(height))
    half = 0.5 * np.sqrt(1 - kept)
    left, right = max(0, int(x - half * width)), min(width, int(x + half * width))
    top, bottom = max(0, int(y - half * height)), min(height, int(y + half * height))
    mixed = images.clone()
    mixed[..., top:bottom, left:right] = images[..., top:bottom, left:right].roll(1, 0)
    return mixed, 1 - (bottom - top) * (right - left) / (height * width)
