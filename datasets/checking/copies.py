"""Which pictures of a set are copies of one another, exactly or nearly: for folds that keep them together."""

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from tqdm import tqdm

from datasets.bundle import Samples
from datasets.checking.inspection import inspect_all
from datasets.checking.near_duplicates import LEAST_SIDE, THUMBNAIL_SIZE, near_duplicates


def groups_of_copies(samples: Samples, rows: np.ndarray, *, workers: int) -> np.ndarray:
    """int64 (len(rows),): the number of the group of each of these rows of `samples`. Pictures with the same bytes, or
    which `near_duplicates` takes for the same picture, are of one group, and so are copies of copies."""
    seen = list(
        tqdm(inspect_all(samples, rows.tolist(), workers=workers), desc="copies", total=len(rows), disable=None)
    )
    first: dict[bytes, int] = {}
    same = [first.setdefault(picture.digest, place) for place, picture in enumerate(seen)]
    compared = [k for k in first.values() if min(seen[k].width, seen[k].height) >= LEAST_SIDE]
    raw = b"".join(seen[k].thumbnail for k in compared)
    thumbnails = np.frombuffer(raw, np.uint8).reshape(-1, THUMBNAIL_SIZE, THUMBNAIL_SIZE)
    near = np.array(compared, np.int64)[np.stack(near_duplicates(thumbnails)[0])]
    left, right = np.concatenate([np.stack([same, np.arange(len(seen))]), near], axis=1)
    graph = coo_array((np.ones(len(left), bool), (left, right)), shape=(len(seen), len(seen)))
    return connected_components(graph, directed=False)[1].astype(np.int64)
