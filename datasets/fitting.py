"""Fitting of a picture to a model's square input: what is resized, cut off or filled, and the way back.

A model's input has S x S pixels. `crop` fills it with the middle of the picture, `squash` with the whole picture, its
proportions lost, and `pad` with the whole picture and a plain border. Pictures are upright: as their EXIF orientation
shows them.
"""

from typing import Literal, NamedTuple

from common.image_spec import ImageSpec

Fit = Literal["crop", "pad", "squash"]


class Box(NamedTuple):
    """A rectangle in pixels, which may begin and end between two of them."""

    left: float
    top: float
    right: float
    bottom: float


def resized_size(width: int, height: int, spec: ImageSpec) -> tuple[int, int]:
    """(width, height) that a picture has once it is resized, before anything is cut off or filled."""
    side = spec.image_size
    if spec.fit == "squash":
        return side, side
    if spec.fit == "pad":
        return padded_size(width, height, side)
    short = min(width, height)
    side = round(side / spec.crop_fraction)
    return side * width // short, side * height // short  # the longer side is cut to whole pixels, as in torchvision


def padded_size(width: int, height: int, side: int) -> tuple[int, int]:
    """(width, height) of a picture whose longer side becomes `side`, at least one pixel each."""
    long = max(width, height)
    return max(1, (2 * side * width + long) // (2 * long)), max(1, (2 * side * height + long) // (2 * long))


def view_of(width: int, height: int, spec: ImageSpec) -> Box:
    """The part of a picture that the model's whole input shows, in pixels of the picture.

    The input's column x, 0 to S, is the picture's `left + x / S * (right - left)`, and rows likewise; so a map over the
    input covers just this box, whatever its own resolution. With `crop` the box lies within the picture; with `squash`
    it is the picture; with `pad` it reaches beyond two of its edges, where the border is.
    """
    wide, high = resized_size(width, height, spec)
    left, top = offset(wide, spec), offset(high, spec)
    across, down = width / wide, height / high
    side = spec.image_size
    return Box(left * across, top * down, (left + side) * across, (top + side) * down)


def offset(length: int, spec: ImageSpec) -> int:
    """Pixels of a side of the resized picture that lie before the input; below 0 where the input begins earlier."""
    if spec.fit == "pad":
        return -((spec.image_size - length) // 2)
    return round((length - spec.image_size) / 2)


def seen_share(width: int, height: int, spec: ImageSpec) -> float:
    """The share of a picture's pixels that the model ever sees outside of random crops: 1 but for `crop`."""
    box = view_of(width, height, spec)
    across = min(box.right, width) - max(box.left, 0.0)
    down = min(box.bottom, height) - max(box.top, 0.0)
    return across * down / (width * height)
