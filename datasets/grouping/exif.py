"""EXIF data of photographs: their camera, their day, and bursts, which one camera took within seconds."""

from collections.abc import Iterator, Sequence
from datetime import date, datetime
from itertools import pairwise

import numpy as np
from PIL import ExifTags

from datasets.bundle import Samples
from datasets.facts import ImageFacts, file_facts
from datasets.images import open_image

SECONDS = 3.0
"""Seconds between two photographs of a burst. Whoever walks on to the next thing takes longer."""
LOOKED_AT, BLOCK = 96, 12
"""Files whose EXIF data are read to see whether there are bursts: neighbours in the order of their names."""
LEAST_SHARE = 0.2
"""Share of the images in bursts from which on they are worth a word."""
_TIMES = (
    (ExifTags.Base.DateTimeOriginal, ExifTags.Base.SubsecTimeOriginal),
    (ExifTags.Base.DateTime, ExifTags.Base.SubsecTime),
)
_CAMERA = (ExifTags.Base.Make, ExifTags.Base.Model, ExifTags.Base.BodySerialNumber)


def bursts(samples: Samples, rows: Sequence[int]) -> list[str | None]:
    """Find for each of these rows the path of the first photograph of its burst; None where it is in none."""
    moments = [_moment(samples, row) for row in rows]
    order = sorted((moment, place) for place, moment in enumerate(moments) if moment is not None)
    names: list[str | None] = [None] * len(rows)
    for (earlier, before), (later, place) in pairwise(order):
        if earlier[0] == later[0] and later[1] - earlier[1] <= SECONDS:
            names[before] = names[before] or samples.paths[rows[before]]
            names[place] = names[before]
    return names


def cameras(samples: Samples, rows: Sequence[int]) -> list[str | None]:
    """Read for each of these rows the camera, make and model; None where the file does not say."""
    return [facts.camera or None for facts in _headers(samples, rows)]


def days(samples: Samples, rows: Sequence[int]) -> list[str | None]:
    """Read for each of these rows the day of the photograph, such as 2026-07-31; None where the file does not say."""
    return [str(date.fromordinal(facts.day)) if facts.day else None for facts in _headers(samples, rows)]


def _headers(samples: Samples, rows: Sequence[int]) -> Iterator[ImageFacts]:
    for row in rows:
        try:
            with open_image(samples.file(row)) as image:
                yield file_facts(image, 0)
        except Exception:  # as for _moment
            yield ImageFacts()


def has_bursts(samples: Samples, rows: np.ndarray) -> bool:
    """Return whether a look at some files finds bursts."""
    starts = np.linspace(0, max(0, len(rows) - BLOCK), LOOKED_AT // BLOCK).astype(int)
    some = np.unique(np.concatenate([rows[start : start + BLOCK] for start in starts]))
    found = [name for name in bursts(samples, some.tolist()) if name is not None]
    return len(found) >= LEAST_SHARE * len(some) and len(set(found)) > 1


def _moment(samples: Samples, row: int) -> tuple[str, float] | None:
    """The camera, and when it took a photograph, in seconds; None where the file does not say."""
    try:
        with open_image(samples.file(row)) as image:
            exif = image.getexif()
            more = exif.get_ifd(ExifTags.IFD.Exif)
    except Exception:  # whatever Pillow raises for damaged files: this is not the place to report them
        return None
    told = {**exif, **more}
    for time, fraction in _TIMES:
        try:
            moment = datetime.strptime(str(told[time]).strip("\0 "), "%Y:%m:%d %H:%M:%S")
        except (KeyError, ValueError):
            continue
        digits = str(told.get(fraction, "")).strip("\0 ")
        seconds = (moment - datetime(1970, 1, 1)).total_seconds() + (
            float(f"0.{digits}") if digits.isdecimal() else 0.0
        )
        return " ".join(str(told.get(part, "")) for part in _CAMERA), seconds
    return None
