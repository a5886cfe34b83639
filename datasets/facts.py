"""Facts about an image that are not its content: how the file was made, and how light, sharp and framed the picture is.

They are read in the pass that decodes a file for `check`, at a size that may be smaller than the image's own.
"""

import math
from array import array
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
from PIL import ExifTags, Image, JpegImagePlugin

from datasets.images import to_mode

EDGES = tuple(f"{place} edge{what}" for place in ("top", "bottom", "left", "right") for what in ("", "'s spread"))
CORNERS = tuple(
    f"{place} corner{what}" for place in ("top left", "top right", "bottom left", "bottom right")
    for what in ("", "'s spread")
)  # fmt: skip
LIGHT = ("mean level", "contrast", "darkest level", "lightest level")
HUE = ("colourfulness", "blue", "red")
FRAME = ("frame on all sides", "bars above and below", "level of the frame")
PIXELS = (*LIGHT, *HUE, "coarse detail", "sharpness", "most colour", *EDGES, *CORNERS, *FRAME)
"""Names of the numbers in `ImageFacts.pixels`, in their order."""
EVEN = 12
"""Largest distance between the levels of a frame: JPEG does not keep it quite even."""
FRAMED, BAR = 0.6, 0.9
"""Share of the pixels just inside a frame that have another level; inside bars, which drawn things resemble."""
GREY = 6
"""Colour of a picture, from 0 to 255, up to which it counts as grey: JPEG makes a little colour of none."""
MIDDLE = 96
"""Side of the part in the middle whose detail is measured, in pixels."""
_TIMES = (ExifTags.Base.DateTimeOriginal, ExifTags.Base.DateTime)


class ImageFacts(NamedTuple):
    """Facts that one file tells beside its content; empty or 0 where it does not."""

    file_size: int = 0
    """Size of the file in bytes."""
    mode: str = ""
    """Pillow's name of how a pixel is stored: L, RGB, P, RGBA, CMYK, I;16, ..."""
    tables: str = ""
    """The JPEG quantisation: quality as libjpeg counts it, and how colours are stored: `quality 75, 4:2:0`."""
    camera: str = ""
    """Make and model, as EXIF has them."""
    day: int = 0
    """Days from year 1 to that of the photograph, as EXIF has it."""
    pixels: bytes = b""
    """float32 (len(PIXELS),)."""


def file_facts(image: Image.Image, size: int) -> ImageFacts:
    """The facts in the header of an image that is open and not decoded; `size`: bytes of the file."""
    exif: dict[int, Any] = {}
    if raw := image.getexif():
        exif = {**raw, **raw.get_ifd(ExifTags.IFD.Exif)}
    names = [_text(exif.get(tag)) for tag in (ExifTags.Base.Make, ExifTags.Base.Model)]
    if names[1].startswith(names[0]):  # NIKON, NIKON D90
        names = names[1:]
    tables = jpeg_tables(image) if isinstance(image, JpegImagePlugin.JpegImageFile) else ""
    return ImageFacts(size, image.mode, tables, " ".join(filter(None, names)), _day(exif))


def _text(value: Any) -> str:
    return " ".join(str(value).replace("\0", " ").split()) if value is not None else ""


def _day(exif: dict[int, Any]) -> int:
    for tag in _TIMES:
        try:
            return datetime.strptime(_text(exif[tag])[:10], "%Y:%m:%d").toordinal()
        except (KeyError, ValueError):
            continue
    return 0


def jpeg_tables(image: JpegImagePlugin.JpegImageFile) -> str:
    """The quality of the tables, as the mean of the first over that of libjpeg's own; sampling; and whether it is
    progressive."""
    tables = image.quantization
    if not tables:
        return ""
    scale = 100 * sum(tables[min(tables)]) / _STANDARD  # in percent of quality 50
    quality = 100 - scale / 2 if scale <= 100 else 5000 / scale
    sampling = {0: ", 4:4:4", 1: ", 4:2:2", 2: ", 4:2:0"}.get(JpegImagePlugin.get_sampling(image), "")
    return f"quality {quality:.0f}{sampling}{', progressive' * bool(image.info.get('progressive'))}"


_STANDARD = 3688
"""Sum of the table of luminance in annex K of the JPEG standard, which libjpeg takes for quality 50."""


def pixel_facts(image: Image.Image, grey: Image.Image | None = None) -> bytes:
    """float32 (len(PIXELS),) of a decoded image: levels from 0 to 255, logarithms of detail, and the spread of its
    edges and corners. `grey`: its first channel, of a YCbCr one, where that is at hand."""
    if image.mode not in ("L", "RGB", "YCbCr"):
        image = to_mode(image, "L" if image.mode.startswith("I") or image.mode in _GREY else "RGB")
    image = image.convert("YCbCr") if image.mode == "RGB" else image
    levels = np.asarray(image if image.mode == "L" else grey or image.getchannel(0))
    counts = np.frombuffer(array("i", image.histogram()), np.int32).reshape(-1, 256) / levels.size
    (brightness, *chroma), (square, *_) = (counts @ _POWERS).T.tolist()
    contrast = math.sqrt(max(0.0, square - brightness * brightness))
    blue, red = chroma or (128.0, 128.0)
    blue, red = blue - 128, red - 128
    finest, coarser = _octaves(levels)
    numbers = [brightness, contrast, *_shares(counts[0], (0.02, 0.98)), (abs(blue) + abs(red)) / 2, blue, red]
    numbers += [math.log(coarser + 0.5), math.log((finest + 0.25) / (coarser + 0.25)), _most_colour(counts[1:])]
    return np.array([*numbers, *_spreads(_edges_and_corners(levels)), *_frame(levels)], np.float32).tobytes()


def _edges_and_corners(levels: np.ndarray) -> list[np.ndarray]:
    """The first and the last row, the first and the last column, and the four corners, of an eighth of each side."""
    height, width = levels.shape
    tall, wide = max(1, height // 8), max(1, width // 8)
    corners = [levels[rows, columns].ravel() for rows in (slice(tall), slice(height - tall, None))
               for columns in (slice(wide), slice(width - wide, None))]  # fmt: skip
    return [levels[0], levels[-1], levels[:, 0], levels[:, -1], *corners]


def _spreads(parts: list[np.ndarray]) -> list[float]:
    """Mean and standard deviation of each part, one part after the other."""
    counts = np.array([len(part) for part in parts])
    starts = counts.cumsum() - counts
    values = np.concatenate(parts, dtype=np.int64)
    means, squares = (np.add.reduceat(numbers, starts) / counts for numbers in (values, values * values))
    return np.stack([means, np.sqrt(np.maximum(squares - means * means, 0))], axis=1).ravel().tolist()


def _frame(levels: np.ndarray) -> tuple[float, float, float]:
    """Width of an even frame, as a share of the side; height of bars above and below; and their level. A frame ends
    along a straight line on which most pixels have another level: the even ground of a drawing has no such end."""
    top = _even_lines(levels)
    if not top[0]:  # most pictures
        return 0.0, 0.0, 0.0
    sides = [top, *(_even_lines(plane) for plane in (levels[::-1], levels.T, levels.T[::-1]))]
    around = min(depth for depth, _ in sides)
    bars = min(depth * (ends > BAR) for depth, ends in sides[:2])
    return around, bars, float(levels[0, 0]) if around or bars else 0.0


def _even_lines(plane: np.ndarray) -> tuple[float, float]:
    """The share of the lines, from the first on, that all have one level, if on the next more than FRAMED of the pixels
    have another; and how many."""
    if int(plane[0].max()) - int(plane[0].min()) > 4 * EVEN:  # most pictures: the rest need not be looked at
        return 0.0, 0.0
    outer = plane[: max(3, len(plane) // 4)].astype(np.int16)
    level = int(outer[0, 0])
    apart = np.abs(outer - level) > EVEN
    shares = apart.mean(axis=1)
    depth = int((shares > 0.05).argmax())  # 0 where all lines are even, too
    ends = float(shares[depth : depth + 2].max())
    return (depth / len(plane), ends) if ends > FRAMED else (0.0, ends)


_POWERS = np.stack([np.arange(256.0), np.arange(256.0) ** 2], axis=1)
_GREY = ("1", "F", "LA", "La")


def _shares(counts: np.ndarray, shares: tuple[float, ...]) -> list[int]:
    """The levels below which these shares of the pixels lie."""
    found: list[int] = counts.cumsum().searchsorted(shares).tolist()
    return [min(level, 255) for level in found]


def _most_colour(counts: np.ndarray) -> int:
    """The distance of colour differences from grey that 1 in 100 pixels exceeds; 0 of a grey picture."""
    if not len(counts):
        return 0
    folded = counts[:, 128:].sum(axis=0)
    folded[1:] += counts[:, 127:0:-1].sum(axis=0)
    return _shares(folded / folded.sum(), (0.99,))[0]


def _octaves(levels: np.ndarray) -> tuple[float, float]:
    """Mean absolute difference of neighbours, and of pixels two apart once pairs are averaged, in the middle: of
    photographs their ratio hardly depends on what they show (Field 1987), and blur lowers it."""
    if min(levels.shape) < 4:
        return 0.0, 0.0
    top, left = (max(0, (side - MIDDLE) // 2) for side in levels.shape)
    plane = levels[top : top + MIDDLE, left : left + MIDDLE]
    plane = plane[: len(plane) // 2 * 2, : plane.shape[1] // 2 * 2].astype(np.int16)
    pairs = plane[::2] + plane[1::2]
    return _roughness(plane), _roughness(pairs[:, ::2] + pairs[:, 1::2]) / 4


def _roughness(plane: np.ndarray) -> float:
    """Mean absolute difference of neighbours, down and across, of a plane (H, W) that is contiguous."""
    (height, width), flat = plane.shape, plane.ravel()
    down, along = np.abs(flat[width:] - flat[:-width]), np.abs(flat[1:] - flat[:-1])
    across = int(along.sum()) - int(along[width - 1 :: width].sum())  # without those from one row to the next
    return (int(down.sum()) / down.size + across / (height * (width - 1))) / 2
