"""Folder of everything that belongs to one set of images: `runs/<name>`. No torch here.

A file in it names the set, so that another set of that name gets a folder of its own.
"""

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from common.errors import OptionError
from common.files import cut_name, write_text
from datasets.config import data_name, data_place
from trainers.config import OutputConfig

MARKER = ".set"


def data_folder(output: OutputConfig, source: str) -> Path:
    """Return the folder of a set: `runs/<name>`, unless that is another's. Nothing is made yet.

    Raises OptionError: it lies in the folder of images, which would be another set with it."""
    plain, place = output.output_dir / cut_name(data_name(source)), data_place(source)
    if os.path.isdir(place) and Path(os.path.realpath(plain)).is_relative_to(place):
        raise OptionError(
            f"{plain} lies in {source}, among the images: name another folder with --output-dir; for check, clean and"
            " next with --output"
        )
    mark = hashlib.blake2b(place.encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()
    own = plain.with_name(f"{plain.name}-{mark}")
    return own if own.exists() or owner(plain) not in ("", place) else plain


def claimed_folder(output: OutputConfig, source: str) -> Path:
    """Make the folder of a set, and mark it as that of this set."""
    folder = data_folder(output, source)
    folder.mkdir(parents=True, exist_ok=True)
    if not owner(folder):
        write_text(folder / MARKER, data_place(source))
    return folder


def owner(folder: Path) -> str:
    """Return the place of the set whose folder this is; empty where nothing says so."""
    with suppress(OSError):
        return os.fsdecode((folder / MARKER).read_bytes())  # as the place is decoded, also in a locale without UTF-8
    return ""
