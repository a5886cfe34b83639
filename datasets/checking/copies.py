"""Search for pictures that are copies of one another, exactly or nearly: for `check`, and for folds that keep them
together."""

from collections.abc import Collection, Sequence

import numpy as np

from datasets.bundle import Samples
from datasets.checking import LEAST_SIDE
from datasets.checking.inspection import Inspection, inspections
from datasets.checking.near_duplicates import THUMBNAIL_SIZE, near_duplicates
from datasets.components import connected


def near_copies(seen: Sequence[Inspection], places: Collection[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """`near_duplicates` of the pictures at these places, as places (2, m): i < j, how alike, whether j is mirrored; and
    how many pictures are too small to take part."""
    compared = np.array([k for k in places if min(seen[k].width, seen[k].height) >= LEAST_SIDE], np.int64)
    raw = b"".join(seen[k].thumbnail for k in compared)
    thumbnails = np.frombuffer(raw, np.uint8).reshape(-1, THUMBNAIL_SIZE, THUMBNAIL_SIZE)
    pairs, correlation, mirrored = near_duplicates(thumbnails)
    return compared[pairs], correlation, mirrored, len(places) - len(compared)


def groups_of_copies(samples: Samples, rows: np.ndarray, *, workers: int) -> np.ndarray:
    """int64 (len(rows),): the number of the group of each of these rows of `samples`. Pictures with the same bytes, or
    which `near_duplicates` takes for the same picture, are of one group, and so are copies of copies."""
    return groups_of_inspected(inspections(samples, rows.tolist(), workers=workers))


def groups_of_inspected(seen: Sequence[Inspection]) -> np.ndarray:
    """int64 (len(seen),): the same of pictures that were looked at already; one that cannot be read is like no other
    that has other bytes."""
    first: dict[bytes, int] = {}
    same = [first.setdefault(picture.digest, place) for place, picture in enumerate(seen)]
    links = np.concatenate([np.stack([same, np.arange(len(seen))]), near_copies(seen, first.values())[0]], axis=1)
    component = connected(len(seen), links[:, links[0] != links[1]])
    return np.unique(np.where(component < 0, np.arange(len(seen)), component), return_inverse=True)[1].astype(np.int64)
