"""The image files that a person named: found as a stream, and read as the model will see them."""

import glob
import io
import mimetypes
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

import numpy as np

from common.errors import DataError
from datasets.images import is_image_name, read_image
from datasets.transforms import Pipeline

STDIN = "-"


@dataclass(frozen=True)
class ImageFile:
    """One image to read: a file, or bytes that came over a network."""

    path: str
    content: bytes | None = None

    @property
    def source(self) -> str | BinaryIO:
        """Source that a decoder opens."""
        return self.path if self.content is None else io.BytesIO(self.content)


class Unreadable(NamedTuple):
    """A file that is no image, and one line that names it and says why."""

    path: str
    error: str


def find_images(paths: Iterable[str], stdin: BinaryIO | None = None) -> Iterator[ImageFile]:
    """Yield files as they are; folders with all below them, sorted; globs; `-`: the names in `stdin`, one a line.

    In a folder only images count, also those in formats that cannot be read: they are to be named, not passed over.
    """
    for path in paths:
        if path == STDIN and stdin is not None:
            names = (os.fsdecode(line.rstrip(b"\r\n")) for line in stdin)
            yield from find_images(name for name in names if name)
        elif os.path.isdir(path):
            yield from _below(path)
        elif not os.path.lexists(path) and glob.has_magic(path):
            # Where nothing matches, reading the pattern itself says that there is no such file.
            for match in sorted(glob.iglob(path, recursive=True)) or [path]:
                yield from _below(match) if os.path.isdir(match) else [ImageFile(match)]
        else:
            yield ImageFile(path)


def _below(folder: str) -> Iterator[ImageFile]:
    visited = set()
    empty = True
    for here, folders, files in os.walk(folder, followlinks=True):
        identity = os.stat(here)
        if (identity.st_dev, identity.st_ino) in visited:  # a link back up
            folders.clear()
            continue
        visited.add((identity.st_dev, identity.st_ino))
        folders.sort()
        for name in sorted(files):
            if is_image_name(name) or (mimetypes.guess_type(name)[0] or "").startswith("image/"):
                empty = False
                yield ImageFile(os.path.join(here, name))
    if empty:
        yield ImageFile(folder)


def read_pixels(file: ImageFile, pipeline: Pipeline) -> np.ndarray | Unreadable:
    """Read what the model sees of an image before it is normalised, uint8 (C, S, S).

    A large JPEG is decoded scaled down to about twice what the model needs."""
    if file.content is None and os.path.exists(file.path) and not os.path.isfile(file.path):
        kind = "a folder without images" if os.path.isdir(file.path) else "not a regular file"  # a pipe would block
        return Unreadable(file.path, f"cannot read image {file.path}: {kind}")
    try:
        image = read_image(file.source, channels=pipeline.channels, name=file.path, least=pipeline.least, alone=True)
        return pipeline.store(image)
    except DataError as error:
        return Unreadable(file.path, str(error))
    except (ValueError, MemoryError, OSError) as error:  # a picture of one pixel by a million cannot be resized
        reason = " ".join(str(error).split()) or type(error).__name__
        return Unreadable(file.path, f"cannot read image {file.path}: {reason}")
