"""Find the image files that a person named, and read them for a model."""

import glob
import io
import mimetypes
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

import numpy as np

from common.errors import DataError
from common.files import matching
from common.text import pluralise, printable, wrapped
from datasets.images import read_image
from datasets.sources.walk import walk
from datasets.transforms import Pipeline

STDIN = "-"
NAMED, OTHERS = ("unreadable_folder", "unread_picture"), ("unsupported_file", "broken_link")
"""Kinds of what lies in a folder and cannot be read: to be named, and to be named if it is a picture by its name."""


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
    """Yield the files that are named: by path, folder, glob or standard input.

    Folders give all below them, sorted; `-`: the names in `stdin`, one a line. In a folder only images count, as
    training finds them, also those in formats that cannot be read: they are to be named, not passed over. A line on
    standard error says how many hidden ones are left out.
    """
    for path in paths:
        if path == STDIN and stdin is not None:
            names = (os.fsdecode(line.rstrip(b"\r\n")) for line in stdin)
            yield from find_images(name for name in names if name)
        elif os.path.isdir(path):
            yield from _below(path)
        elif not os.path.lexists(path) and glob.has_magic(path):
            # Where nothing matches, reading the pattern itself says that there is no such file.
            for match in matching(path) or [path]:
                yield from _below(match) if os.path.isdir(match) else [ImageFile(match)]
        else:
            yield ImageFile(path)


def _below(folder: str) -> Iterator[ImageFile]:
    """Yield the pictures below a folder, also those that cannot be read."""
    empty, hidden = True, list[str]()
    try:
        for found in walk(folder):
            hidden += found.hidden
            names = [os.path.join(found.path, name) for name in found.images]
            names += [path for kind, path, _ in found.odd if kind in NAMED or (kind in OTHERS and _is_picture(path))]
            empty = empty and not names
            yield from (ImageFile(os.path.join(folder, name)) for name in sorted(names))
    except OSError:
        pass  # it cannot be listed: reading it says so
    if hidden:
        count, first = pluralise(len(hidden), "picture"), printable(os.path.join(folder, hidden[0]))
        line = f"note: {count} with hidden names, or in folders of other programs, left out, such as {first}"
        print(wrapped(line), file=sys.stderr)
    if empty:
        yield ImageFile(folder)


def _is_picture(path: str) -> bool:
    return (mimetypes.guess_type(path)[0] or "").startswith("image/")


def read_pixels(file: ImageFile, pipeline: Pipeline) -> np.ndarray | Unreadable:
    """Read what the model sees of an image, uint8 (C, S, S), not normalised.

    A large JPEG is decoded scaled down to about twice what the model needs."""
    if file.content is None and os.path.exists(file.path) and not os.path.isfile(file.path):
        kind = "not a regular file"  # a pipe would block
        if os.path.isdir(file.path):
            readable = os.access(file.path, os.R_OK | os.X_OK)
            kind = "a folder without images" if readable else "a folder that cannot be listed"
        return Unreadable(file.path, f"cannot read image {file.path}: {kind}")
    try:
        image = read_image(file.source, channels=pipeline.channels, name=file.path, least=pipeline.least, alone=True)
        return pipeline.store(image)
    except DataError as error:
        return Unreadable(file.path, str(error))
    except (ValueError, MemoryError, OSError) as error:  # a picture of one pixel by a million cannot be resized
        reason = " ".join(str(error).split()) or type(error).__name__
        return Unreadable(file.path, f"cannot read image {file.path}: {reason}")
