"""Pictures of 16 bits that use little of their range, such as 12-bit medical ones: of 4,095 in 65,535 ten grey levels
would remain. They are refused, with the factor that helps, because one factor has to serve the whole set."""

from typing import Any

import numpy as np
from PIL import Image

from datasets.bundle import LEFT_OUT, Samples
from datasets.errors import DataError
from datasets.images import open_image
from datasets.text import printable

LOOKED_AT = 16
"""Pictures, spread over a set, whose values are looked at before a run; `check` looks at all."""
LEAST_MAXIMUM = 16_384
"""Largest value of a set of 16-bit pictures that is taken as using its range: a quarter of it."""


def narrow_range(largest: int) -> str:
    """Say what is wrong with 16-bit pictures of no larger value than this, and what helps; empty where nothing is
    wrong."""
    if not 0 < largest < LEAST_MAXIMUM:
        return ""
    factor = 65_536 >> largest.bit_length()
    return (
        f"16-bit values up to {largest:,} of 65,535: {round(largest / 257) + 1} grey levels of 256 would remain; "
        f"multiply all by {factor} first: magick mogrify -evaluate multiply {factor} FILES"
    )


def require_used_range(samples: Samples) -> Samples:
    """The samples. Raises DataError: some of the pictures looked at have 16 bits, and all these use little of them."""
    rows = np.flatnonzero(samples.splits != LEFT_OUT)
    if samples.pixels is not None or samples.root is None or not len(rows):
        return samples
    places = np.unique(np.linspace(0, len(rows) - 1, LOOKED_AT).astype(int))
    found = [(largest_value(samples.file(row)), row) for row in rows[places].tolist()]
    largest, row = max(found)
    if fault := narrow_range(largest):
        raise DataError(f"{samples.name}: {printable(samples.paths[row])!r} and others hold {fault}")
    return samples


def largest_value(file: object) -> int:
    """`largest_of` the picture in a file; 0 of one that cannot be read, which whoever reads it later names."""
    try:
        with open_image(file) as image:  # type: ignore[arg-type]
            return largest_of(image)
    except Exception:  # Pillow raises OSError, SyntaxError, ValueError, struct.error, ... for damaged files
        return 0


def largest_of(image: Image.Image) -> int:
    """The largest value of a picture of more than 8 bits; 0 of any other, and of mode I with the values of 8 bits."""
    if not image.mode.startswith("I"):
        return 0
    largest: Any = image.getextrema()[1]
    return 0 if image.mode == "I" and largest <= 255 else int(largest)
