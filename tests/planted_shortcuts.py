"""Sets of images with a shortcut planted in them, and sets without: what the tests and `benchmarks.shortcuts` try."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter

LARGEST = 320
"""Pixels of the longer side of a picture that something is planted in."""


class Picture(NamedTuple):
    """One image before it is written."""

    label: str
    image: Image.Image


class Planted(NamedTuple):
    """How one image is written."""

    image: Image.Image
    options: dict[str, Any]
    folder: str = ""
    low: bool | None = None
    """Whether its number is one of the low ones; None: any."""


def _jpeg(image: Image.Image, **options: object) -> Planted:
    return Planted(image, {"format": "JPEG", "quality": 90, **options})


def _webp(image: Image.Image, quality: int) -> Planted:
    return Planted(image, {"format": "WEBP", "quality": quality})


def _exif(image: Image.Image, tag: int, value: str) -> Planted:
    exif = Image.Exif()
    exif[tag] = value
    return _jpeg(image, exif=exif.tobytes())


def _blurred(image: Image.Image) -> Planted:
    return _jpeg(image.filter(ImageFilter.GaussianBlur(max(0.8, min(image.size) / 160))))


def _framed(image: Image.Image) -> Planted:
    image = image.copy()
    width = max(1, round(min(image.size) / 40))
    ImageDraw.Draw(image).rectangle((0, 0, image.width - 1, image.height - 1), outline=(0,) * 3, width=width)
    return _jpeg(image)


def _tagged(image: Image.Image) -> Planted:
    image, side = image.copy(), max(3, round(min(image.size) / 10))
    ImageDraw.Draw(image).rectangle((image.width - side, 0, image.width - 1, side - 1), fill=(250, 250, 60))
    return _jpeg(image)


def _scaled(image: Image.Image) -> Planted:
    return _jpeg(image.resize([max(8, round(side * 0.8)) for side in image.size], Image.Resampling.BICUBIC))


def _narrowed(image: Image.Image) -> Planted:
    cut = round(image.width * 0.08)
    return _jpeg(image.crop((cut, 0, image.width - cut, image.height)))


_CAMERAS, _DATES = ("Canon EOS 5D", "NIKON D90"), ("2021:0{}:1{} 10:00:00", "2022:0{}:1{} 10:00:00")

PLANTS: dict[str, tuple[str, Callable[[Image.Image, bool, np.random.Generator], Planted]]] = {
    "bytes per pixel": ("bytes per pixel", lambda image, has, _: _webp(image, 40 if has else 90)),
    "JPEG quality": ("JPEG quality", lambda image, has, _: _jpeg(image, quality=80 if has else 90)),
    "file type": ("file type", lambda image, has, _: Planted(image, {"format": "PNG"}) if has else _jpeg(image)),
    "size": ("size", lambda image, has, _: _scaled(image) if has else _jpeg(image)),
    "aspect ratio": ("aspect ratio", lambda image, has, _: _narrowed(image) if has else _jpeg(image)),
    "grey": ("grey or colour", lambda image, has, _: _jpeg(image.convert("L").convert("RGB") if has else image)),
    "brightness": ("brightness", lambda image, has, _: _jpeg(
        ImageEnhance.Brightness(image).enhance(0.65) if has else image)),
    "blur": ("sharpness", lambda image, has, _: _blurred(image) if has else _jpeg(image)),
    "border": ("frame", lambda image, has, _: _framed(image) if has else _jpeg(image)),
    "corner": ("corners", lambda image, has, _: _tagged(image) if has else _jpeg(image)),
    "camera": ("camera", lambda image, has, _: _exif(image, 0x0110, _CAMERAS[has])),
    "date": ("date", lambda image, has, rng: _exif(
        image, 0x0132, _DATES[has].format(rng.integers(1, 10), rng.integers(0, 10)))),
    "number in the name": ("number in the name", lambda image, has, _: _jpeg(image)._replace(low=has)),
    "folder": ("folder", lambda image, has, _: _jpeg(image)._replace(folder="north" if has else "south")),
}  # fmt: skip
"""Shortcut -> the fact that `check` has to name, and how an image is written that has the trait, or has it not."""


def write(pictures: list[Picture], target: Path, plant: str | None, strength: float, seed: int) -> None:
    """Write class folders. In the first half of the classes a share `strength` of the images has the trait, in the
    others as many have it not. None: all are written in one way."""
    rng = np.random.default_rng(seed)
    classes = sorted({picture.label for picture in pictures})
    first = set(classes[: len(classes) // 2])
    low, high = (list(rng.permutation(len(pictures)) + offset) for offset in (1, 1 + len(pictures)))
    for picture in pictures:
        has = bool(rng.random() < strength) == (picture.label in first)
        image = picture.image.convert("RGB")
        planted = PLANTS[plant][1](image, has, rng) if plant else _jpeg(image)
        lower = bool(rng.random() < 0.5) if planted.low is None else planted.low
        number = int((low if lower else high).pop())
        folder = target / picture.label / planted.folder
        folder.mkdir(parents=True, exist_ok=True)
        ending = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp"}[str(planted.options["format"])]
        planted.image.save(folder / f"img_{number:05}.{ending}", **planted.options)


def of_folder(root: Path, classes: list[str], each: int, seed: int) -> list[Picture]:
    """Images of class folders, as many of each class."""
    rng, found = np.random.default_rng(seed), []
    for label in classes:
        files = sorted(path for path in (root / label).rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
        for at in rng.permutation(len(files))[:each]:
            image = Image.open(io.BytesIO(files[at].read_bytes())).convert("RGB")
            image.thumbnail((LARGEST, LARGEST))
            found.append(Picture(label, image))
    return found


def drawn_letters(letters: str, each: int, seed: int) -> Iterator[Picture]:
    """Letters in Pillow's own face, on grounds of random colours and sizes."""
    from PIL import ImageFont

    rng = np.random.default_rng(seed)
    for letter in letters:
        for _ in range(each):
            ground, ink = (tuple(rng.integers(low, low + 100, 3).tolist()) for low in rng.permutation([20, 140]))
            image = Image.new("RGB", (64, 64), ground)
            size = int(rng.integers(28, 52))
            place = tuple(rng.integers(4, 64 - size, 2).tolist())
            ImageDraw.Draw(image).text(place, letter, ink, ImageFont.load_default(size))
            yield Picture(letter, image)
