"""Columns of a table that say which images belong together, such as `patient_id`."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

from common.text import pluralise

THINGS = frozenset((
    "patient", "subject", "person", "individual", "participant", "case", "donor", "identity", "animal", "specimen",
    "mouse", "plant", "tree", "leaf", "lesion", "eye", "slide", "study", "series", "scan", "exam", "visit", "session",
    "sequence", "scene", "video", "clip", "film", "burst", "track", "camera", "trap", "site", "location", "plot",
    "farm", "field", "group", "object", "instance",
))  # fmt: skip
"""Words that name a column of groups, alone or with `id`, `no`, `name` beside it."""
BESIDE = frozenset(("id", "ids", "no", "nr", "num", "number", "name", "index", "idx", "code", "uid", "key"))
LEAST_GROUPS = 5


def group_column(header: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[str, str] | None:
    """The column that names groups of several images, and in words how many and how large; None: there is none, or its
    groups are those of another column, such as the class."""
    for place, name in enumerate(header):
        words = [word for word in re.split(r"[\W_\d]+", name.lower()) if word]
        if not words or not set(words) <= THINGS | BESIDE or not THINGS & set(words):
            continue
        cells = [row[place].strip() for row in rows if row[place].strip()]
        sizes = Counter(cells)
        several = [size for size in sizes.values() if size > 1]
        if len(several) >= LEAST_GROUPS and sum(several) >= 0.5 * len(rows):
            few, many = min(sizes.values()), max(sizes.values())
            images = pluralise(many, "image") if few == many else f"{few:,} to {pluralise(many, 'image')}"
            return name, f"{pluralise(len(sizes), 'group')} of {images}"
    return None


def torn_apart(header: Sequence[str], rows: Sequence[Sequence[str]], name: str, split: str) -> int | None:
    """Number of a column's groups with images in several splits of the table; None where it has no splits."""
    if not split:
        return None
    place, of_split = header.index(name), header.index(split)
    parts: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        if row[of_split].strip() and row[place].strip():
            parts[row[place].strip()].add(row[of_split].strip())
    return sum(len(splits) > 1 for splits in parts.values()) if parts else None
