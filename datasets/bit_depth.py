"""Pictures of more than 8 bits. One whose range or meaning the file does not say is refused: another picture of its set
would be read in another way."""

import re
from typing import Any

import numpy as np
from PIL import Image

from common.errors import DataError
from common.text import pluralise

LEAST_MAXIMUM = 16_384
"""Largest value of 16-bit pictures that are taken as using their range: a quarter of it."""
COLOURS = {2: 3, 5: 4, 6: 3, 8: 3}
"""Number of bands of a TIFF's colours, by PhotometricInterpretation; one of all others."""
REMEDY = "save it in 8 bits, or in 16 bits from 0 to 65,535"


class UnsureValues(DataError):
    """The file does not say what its values mean."""


def unsure_tiff(image: Any) -> str:
    """Say what a TIFF holds, by its header, if Pillow would misread it; else nothing."""
    tag = image.tag_v2.get
    bits, kinds, meaning, bands = max(tag(258, (1,))), set(tag(339, (1,))), tag(262, 0), tag(277, 1)
    own, apart, pages = COLOURS.get(meaning, 1), tag(284) == 2, _has_another_page(image)
    of_8_bits = bits <= 8 and kinds == {1}
    of_16_bits = bits == 16 and kinds == {1} and meaning != 0 and not apart
    of_floats = image.mode == "F" and kinds == {3} and meaning != 0
    known = bands == own or (bands == own + 1 and tag(338) in ((1,), (2,)))  # one of transparency
    if (of_8_bits or of_16_bits or of_floats) and known and not pages:
        return ""
    held = f"{pluralise(bands, 'band')} of {bits} bits{' with a sign' if 2 in kinds else ''}"
    facts = {"0 is white": meaning == 0 and bits > 1, "each band by itself": apart, "several pages": pages}
    found = ", ".join([held, *(fact for fact, there in facts.items() if there)])
    return f"a TIFF of {found}; {REMEDY}, one page of grey, RGB or RGB with transparency"


def _has_another_page(image: Any) -> bool:
    """Return whether a second page is more than a smaller copy of the first."""
    try:
        image.seek(1)
    except EOFError:
        return False
    except Exception:  # Pillow raises OSError, SyntaxError, ...: a page of a kind that it does not know
        return True
    is_copy = image.tag_v2.get(254, 0) & 1
    image.seek(0)
    return not is_copy


def is_deep(image: Any) -> bool:
    """Return whether a picture has 16 bits in each band. To be called before it is decoded, as reading EXIF may do."""
    return image.mode.startswith("I") or bool(re.search(";16[BLN]|'RGB', 65535", str(image.tile)))


def largest_of(image: Any) -> int:
    """Return the largest value of a picture of 16 bits; about, of several bands.

    Pillow keeps 8 bits of each band."""
    if image.mode.startswith("I"):
        return int(image.getextrema()[1])
    return 256 * max(most for _, most in image.convert("RGB").getextrema()) + 255


def narrow_range(largest: int) -> str:
    """Explain what is wrong with 16-bit pictures of no larger value; empty if nothing."""
    if not 0 < largest < LEAST_MAXIMUM:
        return ""
    factor = 65_536 >> largest.bit_length()
    return (
        f"16-bit values up to {largest:,} of 65,535: {round(largest / 257) + 1} grey levels of 256 would remain; "
        f"multiply all by {factor} first: magick mogrify -evaluate multiply {factor} FILES"
    )


def to_8_bits(image: Image.Image) -> Image.Image:
    """Scale 16-bit integers, or floats from 0 to 1. Raises UnsureValues: other floats."""
    values = np.asarray(image).astype(np.float32)
    if image.mode == "F" and not (values.min() >= 0 and values.max() <= 1):
        found = f"{values.min():g} to {values.max():g}"
        raise UnsureValues(f"floats from {found}, of which only those from 0 to 1 have a range; {REMEDY}")
    full = 1 if image.mode == "F" else 65_535
    return Image.fromarray(np.clip(np.rint(values * (255.0 / full)), 0, 255).astype(np.uint8))
