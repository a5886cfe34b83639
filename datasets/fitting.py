"""Fitting of a picture to a model's square input: what is resized, cut off or filled, the way back, and the choice.

A model's input has S x S pixels. `crop` fills it with the middle of the picture, `squash` with the whole picture, its
proportions lost, and `pad` with the whole picture and a plain border. Pictures are upright: as their EXIF orientation
shows them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image

from common.image_spec import Fit, ImageSpec
from datasets.bundle import LEFT_OUT, TEST, Samples, evenly
from datasets.images import Size
from datasets.known import look
from datasets.look import HEADER

HEADERS_READ = 500
"""Pictures, spread over a set, whose sizes are read from their headers."""
LOST = 0.4
"""Share of a picture that is much to lose: `crop` cuts it off beyond 5 : 3."""
MANY = 0.25
"""Share of the pictures that lose much from which the whole of each is shown, at a smaller scale."""
ALIKE = 1.5
"""Factor within which nine tenths of the pictures' proportions must lie: squashing then distorts all of them alike."""
MILD = 2.2
"""Largest ratio of the sides at which pictures are squashed: docs/results.md."""


class Box(NamedTuple):
    """A rectangle in pixels, which may begin and end between two of them."""

    left: float
    top: float
    right: float
    bottom: float


def resized_size(width: int, height: int, spec: ImageSpec, side: int | None = None) -> Size:
    """Return (width, height) of a picture once it is resized, before anything is cut off or filled.

    `side` is its shorter side for `crop`, its longer one for `pad`, both for `squash`; by default that of the input.
    """
    if spec.fit == "crop":
        short, side = min(width, height), side or round(spec.image_size / spec.crop_fraction)
        return side * width // short, side * height // short  # the longer side is cut to whole pixels, as torchvision's
    side = side or spec.image_size
    if spec.fit == "squash":
        return side, side
    long = max(width, height)
    return max(1, (2 * side * width + long) // (2 * long)), max(1, (2 * side * height + long) // (2 * long))


def framed(image: Image.Image, spec: ImageSpec) -> Image.Image:
    """Return the middle of a resized picture, or all of it on a border: S x S."""
    side = spec.image_size
    if image.size == (side, side):
        return image
    left, top = offset(image.width, spec), offset(image.height, spec)
    if spec.fit == "crop":
        return image.crop((left, top, left + side, top + side))
    square = Image.new(image.mode, (side, side), border(spec)[0] if image.mode == "L" else tuple(border(spec)))
    square.paste(image, (-left, -top))
    return square


def border(spec: ImageSpec) -> list[int]:
    """Return the colour that normalises to zero, but for rounding."""
    return [round(255 * value) for value in spec.mean]


def offset(length: int, spec: ImageSpec) -> int:
    """Return the pixels of a resized side that lie before the input.

    Below 0 where the input begins earlier."""
    if spec.fit == "pad":
        return -((spec.image_size - length) // 2)
    return round((length - spec.image_size) / 2)


def view_of(width: int, height: int, spec: ImageSpec) -> Box:
    """Return the part of a picture that the model's whole input shows, in pixels of the picture.

    The input's column x, 0 to S, is the picture's `left + x / S * (right - left)`, and rows likewise; so a map over the
    input covers just this box, whatever its own resolution. With `crop` the box lies within the picture; with `squash`
    it is the picture; with `pad` it reaches beyond two of its edges, where the border is.
    """
    wide, high = resized_size(width, height, spec)
    left, top = offset(wide, spec), offset(high, spec)
    across, down = width / wide, height / high
    side = spec.image_size
    return Box(left * across, top * down, (left + side) * across, (top + side) * down)


def chosen_fit(samples: Samples) -> Fit:
    """Choose the fit for all but the test images: `crop`, unless much were lost of many."""
    if samples.pixels is not None:
        return choose(np.array([samples.pixels.shape[2:0:-1]]))
    rows = np.flatnonzero((samples.splits != LEFT_OUT) & (samples.splits != TEST))
    rows = rows[evenly(len(rows), HEADERS_READ)]
    sizes = look(samples, rows, HEADER).sizes[rows].astype(np.int64)
    return choose(sizes[sizes.all(axis=1)])  # who decodes the others names them


def choose(sizes: np.ndarray) -> Fit:
    """Choose the fit for pictures of these sizes (n, 2)."""
    if not len(sizes) or (seen_by_crop(sizes) <= 1 - LOST).mean() < MANY:
        return "crop"
    low, high = np.quantile(sizes[:, 0] / sizes[:, 1], (0.05, 0.95))
    ratio = float(np.median(sizes.max(axis=1) / sizes.min(axis=1)))
    return "squash" if high <= ALIKE * low and ratio <= MILD else "pad"


def seen_by_crop(sizes: np.ndarray) -> np.ndarray:
    """Return the share of each picture that `crop` keeps, outside of random crops: float64 (n,)."""
    side = ImageSpec().image_size
    return side / (side * sizes.max(axis=1) // sizes.min(axis=1))  # as `resized_size` rounds


def in_words(fit: str, sizes: np.ndarray) -> str:
    """Describe what a fit does to pictures of these sizes (n, 2); empty if square."""
    cut = 1 - seen_by_crop(sizes).mean()
    if cut < 0.01:
        return ""
    if fit == "crop":
        return f"fit crop cuts off {cut:.0%}, pad or squash nothing"
    return f"fit {fit} shows all, crop would cut off {cut:.0%}"


def never_seen(sizes: np.ndarray, labels: np.ndarray, class_names: Sequence[str]) -> str:
    """Describe what `crop` cuts off pictures of these sizes (n, 2); empty if little."""
    cropped = seen_by_crop(sizes)
    if not len(sizes) or cropped.mean() > 0.95:
        return ""
    counts = np.bincount(labels, minlength=len(class_names))
    shares = np.bincount(labels, cropped, minlength=len(class_names)) / np.maximum(counts, 1)
    many = np.flatnonzero((counts > 0) & (shares <= 1 - LOST)).tolist()
    hit = sorted((shares[label], class_names[label]) for label in many)
    most = ", ".join(f"{label!r} ({1 - share:.0%})" for share, label in hit[:3])
    worst = f", most of {most}{f' and {len(hit) - 3} more' if len(hit) > 3 else ''}" if hit else ""
    fit = choose(sizes)
    line = f"--fit crop cuts off {1 - cropped.mean():.0%} of the pixels{worst}; `train` chooses {fit}"
    return line + ("" if fit == "crop" else ", which shows whole pictures")
