"""`--exclude`: the images that a table says to leave out, if it was written for this set."""

import os
from collections.abc import Sequence
from pathlib import Path

from common.errors import DataError
from common.shell import command
from common.tables import read_rows
from common.text import plain_path, pluralise
from datasets.bundle import LEFT_OUT, Samples
from datasets.config import DataConfig, data_place, named_set
from datasets.sources.reading import Reading


def without_listed(reading: Reading, config: DataConfig, exclude: Path, *, check: str) -> Samples:
    """Return the usable images without those in the table `exclude`; if it has a column severity, without its errors.

    `check`: the command that lists what is wrong with the images. Raises DataError: as `Reading.usable`; or the table
    was written for another set, or names no image of this one.
    """
    rows = read_rows(exclude, ("path",), what="list of images to exclude")
    here = data_place(config.source)
    there = next((row["data"] for row in rows if row.get("data")), here)
    wanted = [row["path"] for row in rows if row.get("severity", "error").strip().lower() == "error"]
    found = _find(wanted, reading, here)
    nothing = bool(wanted) and not found
    if there != here and (nothing or (os.path.lexists(there) and not _overlap(there, here))):
        writes_one = command("check", *named_set(config))
        raise DataError(f"{exclude} was written for {there}, not for {here}; this writes one: {writes_one}")
    if nothing:
        an_image = next(iter(reading.samples.paths), "none")
        raise DataError(f"{exclude} names no image of {here}: first {wanted[0]!r}; an image here is {an_image!r}")
    listed = frozenset(found.values())
    samples = reading.usable(listed, check=check)
    left_out = [row for row, path in enumerate(samples.paths) if path in listed]
    said = f"{pluralise(len(left_out), 'image')} left out, as {exclude} asks"
    if missing := [path for path in wanted if path not in found]:
        said += f"; {pluralise(len(missing), 'row')} of it name no image here, first {missing[0]!r}"
    if rows and not wanted:
        said += ": no row says error in its column severity"
    return samples.with_splits({LEFT_OUT: left_out}).note(said)


def _find(wanted: Sequence[str], reading: Reading, source: str) -> dict[str, str]:
    """Map each path to the image, or file with a fault, that it means: as written, from here, or from the source."""
    known = {*reading.samples.paths, *(fault.path for fault in reading.problems)}
    found = {path: path for path in wanted if path in known}
    if len(found) == len(wanted):
        return found
    root = reading.samples.root
    roots = [] if root is None else [plain_path(f"{place(root)}/") for place in (os.path.abspath, os.path.realpath)]
    by_plain: dict[str, str] = {}
    for path in known:
        plain = _plain(path, roots)
        by_plain[plain] = "" if plain in by_plain else path  # two spellings of one name: not clear which is meant
    for path in {*wanted} - found.keys():
        ways = (path, os.path.abspath(path.replace("\\", "/")), os.path.join(source, path))
        if meant := next(filter(None, (by_plain.get(_plain(way, roots)) for way in ways)), ""):
            found[path] = meant
    return found


def _plain(path: str, roots: Sequence[str]) -> str:
    path = os.path.normpath(plain_path(path))
    return next((path.removeprefix(root) for root in roots if path.startswith(root)), path)


def _overlap(one: str, other: str) -> bool:
    """Return whether a folder or file lies in the other, as a table in a folder of images does."""
    return os.path.isabs(one) and os.path.isabs(other) and os.path.commonpath([one, other]) in (one, other)
