"""Decoder from a file to pixels, the one of training, evaluation, prediction and `check`."""

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageFile, ImageOps, PngImagePlugin

from common.errors import DataError
from datasets.bit_depth import UnsureValues, is_deep, largest_of, narrow_range, to_8_bits, unsure_tiff
from datasets.bundle import Samples

# As torchvision's ImageFolder. A .gif in a class folder is mostly a web page's leftover: it is reported, and its first
# frame is read only where somebody names the file, on the command line or in a table.
IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""The formats that are decoded, whatever a file is called: for PostScript, Pillow would start a program."""
MOST_BYTES = 1_080_000_000
"""Bytes of memory that decoding one file may take, however small it is. A phone's 12,000 x 9,000 pixels pass."""
BYTES_PER_PIXEL = 10
"""Most bytes that decoding a pixel takes: a progressive JPEG's coefficients, and its pixels. In CMYK or with
transparency 12, of WebP 20."""
# One long text, such as a prompt, is no bomb: what all texts of a picture may take stays bounded.
PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY
Image.MAX_IMAGE_PIXELS = None  # `open_image` has a tighter limit, and says what would work
CUT_OFF = "truncated, its end is missing; copy or download it again"
MAX_ASPECT = 256  # a longer picture has a million pixels once its shorter side is that of a model's input
STRIP = 2**20  # pixels that are converted at once
RESERVE = 2
"""Pixels that a scaled-down JPEG has along each side for each one that is needed; Pillow's own `thumbnail` keeps as
many, so that what is left to the resampling filter is most of its work."""
THE_IMAGE = "the image"
"""Name in messages of a picture without a name."""
BEGINNINGS = {
    b"\xff\xd8\xff": "JPEG", b"\x89PNG": "PNG", b"GIF8": "GIF", b"BM": "BMP", b"II*\0": "TIFF", b"MM\0*": "TIFF",
    b"RIFF": "WebP",
}  # fmt: skip
"""First bytes of a file of each format."""
Size = tuple[int, int]
"""(width, height) in pixels."""


def open_image(file: str | os.PathLike[str] | BinaryIO) -> Image.Image:
    """Open an image of FORMATS that takes up to MOST_BYTES, without decoding it.

    Raises PIL.UnidentifiedImageError: none of these formats. PIL.Image.DecompressionBombError: too many pixels, or a
    line. UnsureValues: a TIFF whose values may mean several things."""
    image = Image.open(getattr(file, "opened", file), formats=FORMATS)  # the first of a member of a shard
    layered = image.mode == "CMYK" or image.has_transparency_data
    most = MOST_BYTES // (20 if image.format == "WEBP" else 12 if layered else BYTES_PER_PIXEL)
    (short, long), size = sorted(image.size), "{:,} x {:,} pixels; ".format(*image.size)
    error: Exception | None = None
    if short * long > most:
        error = Image.DecompressionBombError(f"{size}of such a file at most {most:,} are decoded: make it smaller")
    elif long > MAX_ASPECT * short:
        ratio = f"{long / short:,.0f} to 1, and at most {MAX_ASPECT} to 1 are read"
        error = Image.DecompressionBombError(f"{size}its sides are {ratio}")
    elif image.format == "TIFF" and (fault := unsure_tiff(image)):
        error = UnsureValues(fault)
    if error:
        image.close()
        raise error
    return image


@contextmanager
def naming(file: str | os.PathLike[str] | BinaryIO, name: str | None = None) -> Iterator[None]:
    """Turn whatever Pillow raises (OSError, SyntaxError, struct.error, ...) into a DataError that names the file."""
    label = name or (os.fspath(file) if isinstance(file, str | os.PathLike) else THE_IMAGE)
    try:
        yield
    except Exception as error:
        which = label if label == THE_IMAGE else f"image {label}"
        raise DataError(f"cannot read {which}: {reason_of(error, file)}") from error


def read_image(
    file: str | os.PathLike[str] | BinaryIO,
    *,
    channels: int = 3,
    name: str | None = None,
    least: Callable[[int, int], Size] | None = None,
    alone: bool = False,
) -> Image.Image:
    """Decode one image completely: upright, 8 bits, RGB (`channels=3`) or grey (`channels=1`).

    Transparent pixels are laid over white; 16-bit values are scaled, not clipped; CMYK and palettes are converted; the
    EXIF orientation is applied. `least`: from the size of the upright picture to the least that is needed of it; a JPEG
    of over twice that is decoded at 1/2, 1/4 or 1/8 of its size. `alone`: the image belongs to no set that
    `require_used_range` has checked. Raises DataError: the file is missing, not an image, damaged, truncated, or its
    values may mean several things; the message names it (as `name` if given)."""
    with naming(file, name), open_image(file) as image:
        if least is not None:
            scale_down(image, least)
        deep = alone and is_deep(image)
        image.load()
        if deep and (fault := narrow_range(largest_of(image))):
            raise UnsureValues(fault)
        ImageOps.exif_transpose(image, in_place=True)
        return to_mode(image, "L" if channels == 1 else "RGB")


def scale_down(image: Image.Image, least: Callable[[int, int], Size]) -> None:
    """Let a JPEG be decoded at 1/2, 1/4 or 1/8, with RESERVE times the pixels needed.

    libjpeg then computes only the low frequencies of each block."""
    if isinstance(image, ImageFile.ImageFile) and image.format in ("JPEG", "MPO"):
        upright = upright_size(image)
        needed = [RESERVE * side for side in least(*upright)]
        if upright != image.size:
            needed.reverse()
        if all(2 * wanted <= there for wanted, there in zip(needed, image.size, strict=True)):
            image.draft(None, (needed[0], needed[1]))


def to_mode(image: Image.Image, mode: str) -> Image.Image:
    """Convert any Pillow mode to L or RGB without clipping 16-bit values or inventing colours behind transparency."""
    if image.mode == mode:
        return image
    rows = STRIP // image.width + 1
    if rows < image.height:
        result = Image.new(mode, image.size)
        for top in range(0, image.height, rows):
            strip = image.crop((0, top, image.width, min(top + rows, image.height)))
            result.paste(to_mode(strip, mode), (0, top))
        return result
    if image.mode.startswith("I") or image.mode == "F":
        image = to_8_bits(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert(mode)


def to_array(image: Image.Image) -> np.ndarray:
    """Return the pixels of an image, uint8 (C, H, W), contiguous."""
    array = np.asarray(image)
    return np.ascontiguousarray(array[None] if array.ndim == 2 else array.transpose(2, 0, 1))


def from_array(pixels: np.ndarray, channels: int) -> Image.Image:
    """Make the PIL image of one uint8 (H, W, C) picture held in memory."""
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    return to_mode(image, "L" if channels == 1 else "RGB")


def picture_of(
    samples: Samples, index: int, *, channels: int | None = None, least: Callable[[int, int], Size] | None = None
) -> Image.Image:
    """Read a picture of a set with so many channels.

    By default RGB, or grey where a set held in memory is.

    `least` as for `read_image`."""
    if samples.pixels is not None:
        return from_array(samples.pixels[index], channels or samples.pixels.shape[3])
    return read_image(samples.file(index), channels=channels or 3, least=least)


def is_image_name(name: str) -> bool:
    return name.lower().endswith(IMAGE_EXTENSIONS)


def upright_size(image: Image.Image) -> Size:
    """Return (width, height) as the EXIF orientation shows them."""
    turned = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)
    return (image.height, image.width) if turned else (image.width, image.height)


def reason_of(error: Exception, file: str | os.PathLike[str] | BinaryIO) -> str:
    """Explain why a file cannot be read as a picture."""
    if isinstance(error, FileNotFoundError):
        return "no such file"
    words = " ".join(str(error).split()) or type(error).__name__
    if not isinstance(error, Image.UnidentifiedImageError):
        return CUT_OFF if "truncated" in words.lower() else words
    if isinstance(file, io.BytesIO):
        return f"not an image: {unidentified(file.getvalue())[1]}"
    if isinstance(file, str | os.PathLike):
        with suppress(OSError), open(file, "rb") as content:
            return f"not an image: {unidentified(content.read(512))[1]}"
    return "not an image, or an empty file"


def unidentified(content: bytes) -> tuple[str, str]:
    """Return why Pillow takes a file for no image: the kind of fault and the reason."""
    head = content[:512]
    if not content.strip(b"\0"):
        return "unreadable", "zero bytes alone" if content else "an empty file"
    if name := next((name for beginning, name in BEGINNINGS.items() if head.startswith(beginning)), ""):
        kind = ", or of a kind that is not read, such as floats of 64 bits or five bands" * (name == "TIFF")
        return "unreadable", f"starts like {name}, but the header is damaged{kind}"
    if head[4:8] == b"ftyp":
        return "not_an_image", "HEIC, AVIF or a film; convert it to JPEG or PNG"
    if head.startswith(b"version https://git-lfs"):
        return "not_an_image", "a Git LFS pointer: the image itself was not fetched (`git lfs pull`)"
    if all(byte >= 32 or byte in b"\t\n\r\f" for byte in head):
        return "not_an_image", f"text, such as a web page: {head[:30].decode(errors='replace')!r}"
    return "not_an_image", f"no format that Pillow knows (starts with {head[:4].hex(' ')})"
