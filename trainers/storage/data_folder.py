"""Folder of everything that belongs to one set of images: `runs/<name>`, and a folder of its own for each other set of
that name. No torch here.

A marker in the folder says whose it is. A set that was moved keeps its folder as long as its listing is the same.
"""

import glob
import hashlib
import json
import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from common.files import write_text
from datasets.config import data_name, data_place
from trainers.config import OutputConfig

MARKER = ".set.json"
LISTED = 50
"""Entries of a folder by which it is known again."""


def data_folder(output: OutputConfig, source: str) -> Path:
    """The folder of this set: the one whose marker names it, else a new one. Nothing is made yet."""
    plain = output.output_dir / data_name(source)
    beside = sorted(plain.parent.glob(f"{glob.escape(plain.name)}-*/{MARKER}"))
    markers = {marker.parent: _read(marker) for marker in (plain / MARKER, *beside)}
    here = {source, data_place(source)}
    for folder, said in markers.items():
        if said.get("source") in here:
            return folder
    moved = [folder for folder, said in markers.items() if said and not os.path.exists(str(said.get("source")))]
    if moved and (listing := listing_of(source)):
        for folder in moved:
            if markers[folder].get("listing") == listing:
                return folder
    if not markers[plain]:
        return plain
    mark = _digest([data_place(source)])
    names = (plain.with_name(f"{plain.name}-{mark[:length]}") for length in (4, 8, 16))
    return next(folder for folder in names if not markers.get(folder))


def claimed_folder(output: OutputConfig, source: str) -> Path:
    """Make the folder of a set, and mark it as that of this set."""
    folder = data_folder(output, source)
    folder.mkdir(parents=True, exist_ok=True)
    says = {"source": data_place(source), "listing": _listing_at_first(source)}
    if _read(folder / MARKER) != says:
        write_text(folder / MARKER, json.dumps(says, indent=2) + "\n")
    return folder


def release(folder: Path) -> None:
    """Leave nothing of a folder that holds its marker alone."""
    with suppress(OSError):
        if os.listdir(folder) == [MARKER]:
            (folder / MARKER).unlink()
            folder.rmdir()


def listing_of(source: str) -> str:
    """16 hex digits of what a folder or file looks like from outside: names, how much each folder holds, a file's size;
    empty of a set that is no file."""
    place = data_place(source)
    if not os.path.isabs(place):
        return ""
    try:
        if not os.path.isdir(place):
            return _digest([os.path.basename(place), os.path.getsize(place)])
        names = sorted(os.listdir(place))[:LISTED]
        paths = [os.path.join(place, name) for name in names]
        inside = [len(os.listdir(path)) for path in paths if os.path.isdir(path)]
        return _digest([*names, *inside])
    except OSError:
        return ""


@cache
def _listing_at_first(source: str) -> str:
    """Return the listing of a set when this process first asked: a plan marks the folder for each of its runs."""
    return listing_of(source)


def _digest(parts: list[object]) -> str:
    text = "\0".join(map(str, parts)).encode("utf-8", "surrogateescape")
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def _read(marker: Path) -> dict[str, Any]:
    """Read what a marker says; nothing where there is none, or a damaged one."""
    with suppress(OSError, ValueError, RecursionError):
        said = json.loads(marker.read_text("utf-8"))
        return said if isinstance(said, dict) else {}
    return {}
