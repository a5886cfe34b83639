"""Images that belong together: copies of one picture, and members of one group. A split never tears such a unit apart.

Splitting the slices of one patient, or a picture and its copy, lets a model recognise in the test what it has learnt by
heart (Yagis et al. 2021, Scientific Reports 11: up to 96 % on random labels).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tqdm import tqdm

from common.files import NO_DOWNLOADS, replacing
from common.text import pluralise
from datasets.bundle import LEFT_OUT, SPLITS, Samples
from datasets.checking import LEAST_SIDE
from datasets.components import connected
from datasets.identity import CONTENT_HASH, identified, keys_of

if TYPE_CHECKING:
    from datasets.checking.inspection import Inspection

SEARCHED_UP_TO = 20_000
"""Images. Near copies are not looked for in larger sets before a run; `check` does that."""
KEPT_FROM = 256
"""Images. The near copies among so many are kept below --data-root: a later start does not look for them again."""
COPIES = "copies-"
"""Beginning of the name of a group of copies that nobody has named; the hash of the first of them follows."""


def are_copies(group: str) -> bool:
    """Return whether a group is one of copies that nobody has named."""
    return re.fullmatch(COPIES + "[0-9a-f]{16}", group) is not None


def units_of(samples: Samples, rows: np.ndarray) -> np.ndarray:
    """int64 (len(rows),): the number of the unit of each of these rows; an image that stands alone is one by itself."""
    if samples.groups is None:
        return rows.astype(np.int64)
    groups = samples.groups[rows].astype(np.int64)
    return np.where(groups >= 0, groups, len(samples.group_names) + rows)


def united(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """int64 (n,): the number of the unit of each image, where those with one number in `first` or in `second` belong
    together."""
    component = connected(len(first), np.concatenate([_links(first), _links(second)], axis=1))
    return np.where(component < 0, np.arange(len(first)), component)


def joined(samples: Samples, names: Sequence[str]) -> Samples:
    """The samples in these groups as well as in those they have: one name per image, empty where it stands alone.

    Groups that share an image become one group, with the first of their names.
    """
    numbers: dict[str, int] = {}
    codes = np.array([numbers.setdefault(name, len(numbers)) if name else -1 for name in names], np.int64)
    if not numbers:
        return samples
    links = [_links(codes)] + ([] if samples.groups is None else [_links(samples.groups)])
    return _grouped(samples, np.concatenate(links, axis=1), [names])


def with_copies(samples: Samples, data_root: Path | None = None) -> Samples:
    """The samples with copies of a picture in one group. Notes say how many there are, what is wrong with them, and
    whether they were not looked for."""
    samples = identified(samples, data_root)
    copies, images = copies_of(samples, data_root), int((samples.splits != LEFT_OUT).sum())
    notes: list[str] = []
    if copies is None:
        if samples.root is not None:
            notes.append("copies were not looked for: the set is too large to be read at the start; `check` finds them")
        return samples.note(*notes)
    if images > SEARCHED_UP_TO:
        notes.append(f"near copies were not looked for among {images:,} images; `check` finds them")
    if (copies < 0).all():
        return samples.note(*notes)
    notes += _about_copies(samples, copies)
    links = [_links(copies)] + ([] if samples.groups is None else [_links(samples.groups)])
    return _grouped(samples, np.concatenate(links, axis=1), []).note(*notes)


def copies_of(samples: Samples, data_root: Path | None = None) -> np.ndarray | None:
    """int64 (N,): a number for each picture that is there more than once, -1 for others; None: contents are not read.

    Copies have equal contents or, up to SEARCHED_UP_TO images, are near copies as `near_duplicates` finds them.
    """
    samples = identified(samples, data_root)
    if samples.hash_kind != CONTENT_HASH or samples.digests is None:
        return None
    rows = np.flatnonzero(samples.splits != LEFT_OUT)
    keys = np.full(len(samples), -1, np.int64)
    keys[rows] = np.unique(keys_of(samples.digests[rows]), return_inverse=True)[1]
    links = _links(keys)
    if len(rows) <= SEARCHED_UP_TO:
        links = np.concatenate([links, _near_links(samples, rows, data_root)], axis=1)
    return connected(len(samples), links)


def _about_copies(samples: Samples, copies: np.ndarray) -> Iterable[str]:
    """One line on the copies of a set, and one for each fault that they are; `copies`: number of the picture, or -1."""
    members = np.flatnonzero(copies >= 0)
    order = members[np.argsort(copies[members], kind="stable")]
    pictures = np.split(order, np.flatnonzero(np.diff(copies[order])) + 1)
    drawn = samples.splits[members[0]] < 0
    stay = "; each picture stays in one split with its copies" if drawn else ""
    yield f"{pluralise(len(members), 'image')} are copies of one another, {pluralise(len(pictures), 'picture')}{stay}"
    for kind, column, what in (("label", samples.labels, "two labels"), ("split", samples.splits, "two splits")):
        torn = [rows for rows in pictures if len(set(column[rows].tolist())) > 1]
        if torn:
            names = samples.class_names if kind == "label" else SPLITS
            pair = (f"{samples.paths[row]!r} ({names[column[row]]})" for row in _two_of(torn[0], column))
            first = " and ".join(pair)
            yield f"{pluralise(len(torn), 'picture')} in {what}, first {first}: scores are wrong; `check` lists them"


def _two_of(rows: np.ndarray, column: np.ndarray) -> tuple[int, int]:
    """The first of these rows, and the first that differs from it in this column."""
    differs = column[rows] != column[rows[0]]
    return int(rows[0]), int(rows[np.argmax(differs)])


def _links(codes: np.ndarray) -> np.ndarray:
    """int64 (2, m): each image of a code, -1 aside, linked to the first one of it."""
    rows = np.flatnonzero(codes >= 0)
    _, first, number = np.unique(codes[rows], return_index=True, return_inverse=True)
    links = np.stack([rows[first[number]], rows])
    return links[:, links[0] != links[1]]


def _grouped(samples: Samples, links: np.ndarray, named: Sequence[Sequence[str]]) -> Samples:
    """The samples in the groups that these links make, each with the first name that a member has."""
    component = connected(len(samples), links)
    # A group of one image is a group too: its name is kept for images that join it later.
    lone = np.zeros(len(samples), bool)
    for names in named:
        lone |= np.array([bool(name) for name in names])
    if samples.groups is not None:
        lone |= samples.groups >= 0
    component = np.where((component < 0) & lone, np.arange(len(samples)), component)
    first, groups = np.unique(component, return_inverse=True)
    offset = int(first[0] < 0)
    groups = (groups - offset).astype(np.int32)
    names_of: list[str] = [""] * (len(first) - offset)
    for row in np.flatnonzero(groups >= 0).tolist():
        candidates = [names[row] for names in named] + [samples.group_of(row)]
        own = [name for name in candidates if name and not are_copies(name)]
        place = int(groups[row])
        if own and (not names_of[place] or min(own) < names_of[place]):
            names_of[place] = min(own)
    unnamed = [place for place, name in enumerate(names_of) if not name]
    if unnamed:
        smallest = _smallest(samples, groups, len(names_of))
        for place in unnamed:
            names_of[place] = f"{COPIES}{smallest[place]:016x}"
    return samples.replace(groups=groups, group_names=tuple(names_of))


def _smallest(samples: Samples, groups: np.ndarray, count: int) -> list[int]:
    """The smallest hash in each group, as a number."""
    digests = identified(samples).digests
    assert digests is not None
    smallest, rows = np.full(count, np.iinfo(np.uint64).max, np.uint64), np.flatnonzero(groups >= 0)
    np.minimum.at(smallest, groups[rows], keys_of(digests[rows]))
    return smallest.tolist()


def _near_links(samples: Samples, rows: np.ndarray, data_root: Path | None) -> np.ndarray:
    """int64 (2, m): pairs of near copies, from an earlier start where it saw the same images."""
    if samples.pixels is not None and min(samples.pixels.shape[1:3]) < LEAST_SIDE:
        return np.empty((2, 0), np.int64)
    from datasets.checking.copies import near_copies
    from datasets.checking.inspection import inspect_file, inspect_pixels
    from datasets.image_dataset import cpu_count

    assert samples.digests is not None
    _, first = np.unique(keys_of(samples.digests[rows]), return_index=True)
    distinct = rows[first]  # in the order of their hashes: the pairs hold for these contents, whatever their paths
    mark = hashlib.blake2b(b"1" + samples.digests[distinct].tobytes(), digest_size=8).hexdigest()
    place = None if data_root is None or len(rows) < KEPT_FROM else data_root / "index" / f"near-{mark}.npz"
    pairs = None if place is None else _opened(place, len(distinct))
    if pairs is None:

        def look(row: int) -> Inspection:
            if samples.pixels is not None:
                return inspect_pixels(samples.pixels[row], hashed=False)
            return inspect_file(samples.file(row), hashed=False)  # they have their hashes already

        # Threads, for Pillow decodes without the interpreter's lock; processes would import the caller's program anew.
        with ThreadPoolExecutor(cpu_count()) as pool:
            seen = list(tqdm(pool.map(look, distinct.tolist()), "copies", len(distinct), disable=None, leave=False))
        pairs = near_copies(seen, range(len(distinct)))[0]
        if place is not None and not NO_DOWNLOADS.get():
            _keep(place, pairs)
    return distinct[pairs]


def _opened(place: Path, count: int) -> np.ndarray | None:
    """The pairs that an earlier start has kept; None where there are none, or not whole."""
    try:
        with open(place, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            pairs = file["pairs"]
    except Exception:  # missing; or BadZipFile, ValueError, zlib.error, ...: whatever a damaged archive raises
        return None
    whole = pairs.ndim == 2 and len(pairs) == 2 and pairs.dtype == np.int64
    return pairs if whole and (not pairs.size or (pairs.min() >= 0 and pairs.max() < count)) else None


def _keep(place: Path, pairs: np.ndarray) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with replacing(place) as aside:
            np.savez(aside, pairs=pairs.astype(np.int64))
    except OSError:
        pass  # a disk that is full or cannot be written to: they are looked for again at the next start
