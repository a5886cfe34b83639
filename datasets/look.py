"""One look at a picture file: all that the program asks of it, found in one read.

How deep it goes is its depth: VALUES of 16 bits, HEADER, COMPARED or WHOLE.
"""

import hashlib
import os
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from common.errors import DataError
from datasets.bit_depth import UnsureValues, is_deep, largest_of
from datasets.facts import Facts, header_facts, is_grey
from datasets.images import Size, from_array, open_image, reason_of, to_mode, unidentified, upright_size

if TYPE_CHECKING:
    from datasets.sources.shards import TarMember

VALUES, HEADER, COMPARED, WHOLE = range(1, 5)
"""Depths: the pixels of 16 bits and of floats; size and format, for which Pillow decodes a PNG; also all pixels of a
picture of LEAST_SIDE and more, or of 16 bits; all of each."""
DIGEST_BYTES = 8
LEAST_SIDE = 32
"""Smaller pictures are not compared: handwritten ones of 28 x 28 pixels look alike without being copies."""
THUMBNAIL_SIZE = 32
"""Side of the grey thumbnails, in pixels."""


class Fault(NamedTuple):
    """Why a file cannot be used as a picture."""

    kind: str
    """Kind of finding of `check`."""
    detail: str
    reason: str
    """Why it cannot be read, in the words of who decodes it."""


class Looked(NamedTuple):
    """What one look at a file found."""

    depth: int
    """0: nothing that will last, as the disk or the memory failed."""
    digest: bytes = b""
    """Hash of the bytes; empty where they were not read, or cannot be."""
    size: Size = (0, 0)
    """(width, height) as shown upright; zeros where the header cannot be read."""
    format: str = ""
    """Pillow's name of the format found inside."""
    largest: int = 0
    """`datasets.bit_depth.largest_of` it; 0 of 8 bits, -1 where it was not decoded."""
    thumbnail: bytes = b""
    """32 x 32 grey values of the upright picture, row by row; empty where it was not decoded."""
    fault: Fault | None = None
    facts: Facts | None = None
    """Facts that are not what the picture shows; None where nobody asked, or the file cannot be read."""


def digest_of(content: bytes) -> bytes:
    """Hash a content to 8 bytes (BLAKE2b)."""
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def file_digest(file: "Path | TarMember") -> bytes:
    """Hash the bytes of a file. Raises DataError: it cannot be read."""
    try:
        return digest_of(file.read_bytes())
    except OSError as error:
        raise DataError(f"cannot read image {file}: {error.strerror or error}") from error


def look_at(file: Any, depth: int = WHOLE, *, with_facts: bool = False, known: set[bytes] | None = None) -> Looked:
    """Read one file and look as deep as asked; never raises. Of contents that are `known` only the hash is found."""
    try:
        content = file.read_bytes()
    except OSError as error:
        is_link = os.path.islink(file) and not os.path.exists(file)
        kind = ("broken_link", f"-> {os.readlink(file)}") if is_link else ("unreadable", error.strerror or str(error))
        return Looked(0, fault=Fault(*kind, reason_of(error, file)))
    digest = digest_of(content)
    if known is not None:
        if digest in known:
            return Looked(0, digest)
        known.add(digest)
    return look_inside(BytesIO(content), depth, with_facts=with_facts)._replace(digest=digest)


def look_inside(file: Any, depth: int, *, with_facts: bool = False) -> Looked:
    """Look at a file, or at its bytes, without hashing it; never raises."""
    found: dict[str, Any] = {"depth": depth}
    try:
        with open_image(file) as image:
            deep = is_deep(image)  # before EXIF is read, which may decode the picture
            has_values, large = deep or image.mode == "F", min(image.size) >= LEAST_SIDE
            if depth == VALUES and not has_values:
                return Looked(VALUES)
            found |= {"size": upright_size(image), "format": image.format or "", "largest": -has_values}
            facts = header_facts(image) if with_facts else None
            if depth == WHOLE or (depth == COMPARED and large) or (depth != HEADER and has_values):
                found["depth"] = WHOLE
                found |= _decoded(image, deep, facts)
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error, ... for damaged files
        found["fault"] = _fault_of(error, file)
        if isinstance(error, MemoryError) or getattr(error, "errno", None):
            found["depth"] = 0
    return Looked(**found)


def _decoded(image: Image.Image, deep: bool, facts: Facts | None) -> dict[str, Any]:
    if isinstance(image, ImageFile.ImageFile) and image.format in ("JPEG", "MPO"):
        # Decodes at 1/2, 1/4 or 1/8 size, grey only: the inverse DCT is saved, yet every coefficient is still read
        # from the stream, so a truncated file fails exactly where the full decode does (tested byte by byte).
        # The first plane of YCbCr is the same grey; its other planes are wanted for facts alone.
        image.draft("YCbCr" if facts else "L", (2 * THUMBNAIL_SIZE, 2 * THUMBNAIL_SIZE))
    image.load()
    largest = largest_of(image) if deep else 0
    ImageOps.exif_transpose(image, in_place=True)
    small = thumbnail(image.getchannel(0) if image.mode == "YCbCr" else image)
    return {"largest": largest, "thumbnail": small, "facts": facts and facts._replace(is_grey=is_grey(image))}


def look_at_pixels(pixels: np.ndarray, *, with_facts: bool = False) -> Looked:
    """Look at a picture that is held in memory, uint8 (H, W, C)."""
    height, width, channels = pixels.shape
    image = from_array(pixels, channels)
    facts = Facts(image.mode, is_grey=is_grey(image)) if with_facts else None
    return Looked(WHOLE, digest_of(pixels.tobytes()), (width, height), thumbnail=thumbnail(image), facts=facts)


def thumbnail(image: Image.Image) -> bytes:
    """Return 32 x 32 grey values of a decoded, upright picture, row by row."""
    factor = min(image.size) // (2 * THUMBNAIL_SIZE)
    if factor > 1 and image.mode in ("L", "RGB"):
        image = image.reduce(factor)
    grey = to_mode(image, "L")
    shrinks = min(grey.size) >= THUMBNAIL_SIZE
    resampling = Image.Resampling.BOX if shrinks else Image.Resampling.BILINEAR
    return grey.resize((THUMBNAIL_SIZE, THUMBNAIL_SIZE), resampling).tobytes()


def _fault_of(error: Exception, file: Any) -> Fault:
    """Describe an error of opening or decoding a file, or its bytes."""
    detail = str(error)
    if isinstance(error, UnidentifiedImageError):
        content = file.getvalue() if isinstance(file, BytesIO) else b""
        kind, detail = unidentified(content) if content else ("zero_bytes", "0 bytes")
    elif isinstance(error, UnsureValues):
        kind = "unsure_values"
    elif isinstance(error, Image.DecompressionBombError):
        kind = "decompression_bomb"
    else:
        detail = " ".join(detail.split()) or type(error).__name__
        kind = "truncated" if "truncated" in detail.lower() else "unreadable"
    return Fault(kind, detail, reason_of(error, file))
