"""Inspect one file at a time: whether it decodes to the end, is what its name says, and what it looks like.

Runs in a pool of processes that import Pillow and NumPy only: they start in a fifth of a second and stay small.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from io import BytesIO
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError
from tqdm import tqdm

from datasets.bit_depth import UnsureValues, is_deep, largest_of
from datasets.bundle import Samples, evenly
from datasets.checking.facts import Facts, header_facts, is_grey
from datasets.copies import LEAST_SIDE, THUMBNAIL_SIZE, near_copies, thumbnail, united
from datasets.images import from_array, open_image, unidentified, upright_size
from datasets.processes import begin_loader

_ALIASES = {"MPO": "JPEG", "DIB": "BMP", "APNG": "PNG"}  # what Pillow calls variants of the same file format
_POOL_THRESHOLD = 256  # fewer files are read sooner than the processes have started
_CHUNK = 32


@dataclass(frozen=True, slots=True)
class Inspection:
    """Result of reading one file. `fault` is a kind of finding that makes it unusable, or None."""

    digest: bytes = b""
    """BLAKE2b-128 of the bytes; empty where they could not be read."""
    fault: str | None = None
    detail: str = ""
    format: str = ""
    """Pillow's name of the format found inside."""
    width: int = 0
    height: int = 0
    """Height in pixels, as seen upright."""
    largest: int = 0
    """`datasets.bit_depth.largest_of` it; 0 of 8 bits."""
    thumbnail: bytes = b""
    """32 x 32 grey values of the upright picture, row by row."""
    facts: Facts | None = None
    """Facts that are not what the picture shows; None where nobody asked, or the file cannot be read."""

    @property
    def compared(self) -> bytes:
        """Return the thumbnail; empty of a picture that is too small to be compared."""
        return self.thumbnail if min(self.width, self.height) >= LEAST_SIDE else b""


def inspections(samples: Samples, rows: Sequence[int], *, workers: int, with_facts: int = 0) -> list[Inspection]:
    """Inspect these rows of `samples` behind a progress bar; `with_facts`: facts of so many, spread over the rows."""
    wanted = np.isin(np.arange(len(rows)), evenly(len(rows), with_facts)).tolist()
    if samples.pixels is None:
        seen = inspect_files([samples.file(row) for row in rows], wanted, workers=workers)
    else:
        seen = map(_inspect_pixels, (samples.pixels[row] for row in rows), wanted)
    return list(tqdm(seen, desc="check", total=len(rows), unit="image", disable=None, leave=False))


def groups_of_copies(seen: Sequence[Inspection]) -> np.ndarray:
    """Number inspected pictures, int64 (len(seen),): copies, exact and near, share a number.

    One that cannot be read is like no other that has other bytes.
    """
    _, first, contents = np.unique([picture.digest for picture in seen], return_index=True, return_inverse=True)
    return united(contents, pairs=first[near_copies([seen[place].compared for place in first])[0]])


def inspect_files(files: Sequence[Any], with_facts: Sequence[bool], *, workers: int) -> Iterator[Inspection]:
    """Yield one Inspection per file, in order, from so many processes; from this one for 0, or few files."""
    if workers < 2 or len(files) < _POOL_THRESHOLD:
        yield from map(inspect_file, files, with_facts)
        return
    # "spawn": a fork would copy torch and its threads where the caller has imported it.
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=begin_loader)
    try:
        yield from pool.map(inspect_file, files, with_facts, chunksize=_CHUNK)
    finally:
        pool.shutdown(cancel_futures=True)


def inspect_file(file: Any, with_facts: bool = False) -> Inspection:
    """Read and decode one file completely; never raises."""
    try:
        data = file.read_bytes()
    except OSError as error:
        if os.path.islink(file) and not os.path.exists(file):
            return Inspection(fault="broken_link", detail=f"-> {os.readlink(file)}")
        return Inspection(fault="unreadable", detail=error.strerror or str(error))
    digest = blake2b(data, digest_size=16).digest()
    if not data:
        return Inspection(digest, "zero_bytes", "0 bytes")
    try:
        return _decode(data, digest, with_facts)
    except UnidentifiedImageError:
        return Inspection(digest, *unidentified(data))
    except UnsureValues as error:
        return Inspection(digest, "unsure_values", str(error))
    except Image.DecompressionBombError as error:
        return Inspection(digest, "decompression_bomb", str(error))
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error, ... for damaged files
        detail = " ".join(str(error).split()) or type(error).__name__
        return Inspection(digest, "truncated" if "truncated" in detail.lower() else "unreadable", detail)


def _inspect_pixels(pixels: np.ndarray, with_facts: bool) -> Inspection:
    """Inspect a picture that is held in memory, uint8 (H, W, C)."""
    height, width, channels = pixels.shape
    image = from_array(pixels, channels)
    return Inspection(
        blake2b(pixels.tobytes(), digest_size=16).digest(),
        width=width,
        height=height,
        thumbnail=thumbnail(image),
        facts=Facts(image.mode, is_grey=is_grey(image)) if with_facts else None,
    )


def _decode(data: bytes, digest: bytes, with_facts: bool) -> Inspection:
    with open_image(BytesIO(data)) as image:
        deep, file_format, (width, height) = is_deep(image), image.format or "", upright_size(image)
        facts = header_facts(image) if with_facts else None
        if isinstance(image, ImageFile.ImageFile) and file_format in ("JPEG", "MPO"):
            # Decodes at 1/2, 1/4 or 1/8 size, grey only: the inverse DCT is saved, yet every coefficient is still read
            # from the stream, so a truncated file fails exactly where the full decode does (tested byte by byte).
            # The first plane of YCbCr is the same grey; its other planes are wanted for facts alone.
            image.draft("YCbCr" if with_facts else "L", (2 * THUMBNAIL_SIZE, 2 * THUMBNAIL_SIZE))
        image.load()
        largest = largest_of(image) if deep else 0
        ImageOps.exif_transpose(image, in_place=True)
        small = thumbnail(image.getchannel(0) if image.mode == "YCbCr" else image)
        facts = facts and facts._replace(is_grey=is_grey(image))
    return Inspection(digest, None, "", file_format, width, height, largest, small, facts)


def wrong_extension(path: str, file_format: str) -> bool:
    """Return whether an extension that Pillow knows promises another format than the file has."""
    promised = Image.registered_extensions().get(Path(path).suffix.lower())
    return promised is not None and promised != _ALIASES.get(file_format, file_format)
