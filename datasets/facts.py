"""Read facts of an image file that are not what the picture shows: how it was made, by which camera, on which day."""

from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
from PIL import ExifTags, Image, JpegImagePlugin

from datasets.images import to_mode

GREY = 6
"""Largest distance from grey, of 128, in a grey picture: JPEG adds a little colour."""
_QUALITY_50 = 3688
"""Sum of the luminance table in annex K of the JPEG standard, which libjpeg takes for quality 50."""


class Facts(NamedTuple):
    """Facts of one file; empty, 0 or False where it does not say."""

    mode: str = ""
    """Pillow's name of how a pixel is stored: L, RGB, P, RGBA, CMYK, I;16, ..."""
    jpeg: str = ""
    """Quality as libjpeg counts it, and how colours are sampled: `quality 75, 4:2:0`."""
    camera: str = ""
    """Make and model, by EXIF."""
    day: int = 0
    """Days from year 1 to that of the photograph, by EXIF."""
    is_grey: bool = False


def header_facts(image: Image.Image) -> Facts:
    """Return what the header of an image tells; it need not be decoded."""
    exif: dict[int, Any] = {}
    if raw := image.getexif():
        exif = {**raw, **raw.get_ifd(ExifTags.IFD.Exif)}
    make, model = (_text(exif.get(tag)) for tag in (ExifTags.Base.Make, ExifTags.Base.Model))
    camera = model if model.startswith(make) else f"{make} {model}".strip()  # NIKON, NIKON D90
    jpeg = jpeg_quality(image) if isinstance(image, JpegImagePlugin.JpegImageFile) else ""
    return Facts(image.mode, jpeg, camera, _day(exif))


def _text(value: Any) -> str:
    return " ".join(str(value).replace("\0", " ").split()) if value is not None else ""


def _day(exif: dict[int, Any]) -> int:
    for tag in (ExifTags.Base.DateTimeOriginal, ExifTags.Base.DateTime):
        try:
            return datetime.strptime(_text(exif[tag])[:10], "%Y:%m:%d").toordinal()
        except (KeyError, ValueError):
            continue
    return 0


def jpeg_quality(image: JpegImagePlugin.JpegImageFile) -> str:
    """Return the quality as libjpeg counts it, and the sampling of colours.

    By the mean of the luminance table over that of libjpeg."""
    if not image.quantization:
        return ""
    percent = 100 * sum(image.quantization[min(image.quantization)]) / _QUALITY_50
    quality = 100 - percent / 2 if percent <= 100 else 5000 / percent
    sampling = {0: ", 4:4:4", 1: ", 4:2:2", 2: ", 4:2:0"}.get(JpegImagePlugin.get_sampling(image), "")
    return f"quality {quality:.0f}{sampling}{', progressive' * bool(image.info.get('progressive'))}"


def is_grey(image: Image.Image) -> bool:
    """Return whether a decoded picture has no colour, at a size of 32 x 32."""
    if image.mode in ("1", "L", "LA", "F") or image.mode.startswith("I"):
        return True
    small = image if image.mode == "YCbCr" else to_mode(image, "RGB")
    small = small.resize((32, 32), Image.Resampling.BOX).convert("YCbCr")
    return bool((np.abs(np.asarray(small, np.int16)[..., 1:] - 128) <= GREY).all())
