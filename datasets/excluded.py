"""`--exclude`: the images that a table says to leave out, if it was written for this set."""

import os
from collections.abc import Sequence
from pathlib import Path

from common.errors import DataError
from common.tables import read_rows
from common.text import plain_path, pluralise
from datasets.bundle import LEFT_OUT, Samples
from datasets.config import data_place
from datasets.sources.reading import Reading


def without_listed(reading: Reading, source: str, exclude: Path, *, check: str, only_scored: bool = False) -> Samples:
    """Return the usable images without those in the table `exclude`.

    If it has a column severity, without its errors.

    `check`: the command that lists what is wrong with the images; `only_scored`: none need train. Raises DataError: as
    `Reading.usable`; or the table was written for another set, or names no image of this one.
    """
    rows = read_rows(exclude, ("path",), what="list of images to exclude")
    here = data_place(source)
    there = next((row["data"] for row in rows if row.get("data")), here)
    if there != here and os.path.lexists(there):
        raise DataError(f"{exclude} was written for {there}, not for {here}; this writes one: {check}")
    wanted = [row["path"] for row in rows if row.get("severity", "error").strip().lower() == "error"]
    found = _find(wanted, reading)
    if wanted and not found:
        an_image = next(iter(reading.samples.paths), "none")
        raise DataError(f"{exclude} names no image of {here}: first {wanted[0]!r}; an image here is {an_image!r}")
    listed = frozenset(found.values())
    samples = reading.usable(listed, check=check, only_scored=only_scored)
    left_out = [row for row, path in enumerate(samples.paths) if path in listed]
    said = f"{pluralise(len(left_out), 'image')} left out, as {exclude} asks"
    if missing := [path for path in wanted if path not in found]:
        said += f"; {pluralise(len(missing), 'row')} of it name no image here, first {missing[0]!r}"
    if rows and not wanted:
        said += ": no row says error in its column severity"
    return samples.with_splits({LEFT_OUT: left_out}).note(said)


def _find(wanted: Sequence[str], reading: Reading) -> dict[str, str]:
    """Map each path, in any spelling, to the image or faulty file that it names."""
    known = {*reading.samples.paths, *(fault.path for fault in reading.problems)}
    if known.issuperset(wanted):
        return dict(zip(wanted, wanted, strict=True))
    root = os.path.abspath(reading.samples.root or "")

    def plain(path: str) -> str:
        return os.path.normpath(plain_path(os.path.join(root, path)))

    others = {plain(path): path for path in known}
    found = {path: path if path in known else others.get(plain(path), "") for path in wanted}
    return {path: image for path, image in found.items() if image}
