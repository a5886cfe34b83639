"""Copies of one picture, exact and near; and units: images that no split may tear apart, copies and groups.

A model that has learnt a picture by heart recognises its copy, or another slice of the same patient, in the test (Yagis
et al. 2021, Scientific Reports 11: up to 96 % on random labels).

Near duplicates of a million pictures are found in three steps:
1. `perceptual_hashes`: the signs of the lowest 63 DCT coefficients of a 32 x 32 grey thumbnail (Zauner, "Implementation
   and benchmarking of perceptual image hash functions", 2010). Signs, not a comparison with the median: mirroring a
   picture then flips exactly the coefficients of odd horizontal frequency, so a mirrored copy costs one XOR.
2. `candidates`: for every picture the earlier ones at a small Hamming distance, block by block in bounded memory.
3. `similarity`: the correlation of the two thumbnails and of their fine detail. Hashes of different pictures collide.
"""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from common.text import pluralise
from common.versions import versions_of
from datasets.bundle import LEFT_OUT, SPLITS, Samples
from datasets.known import BAR, CONTENT_HASH, KEPT_FROM, SEARCHED_UP_TO, identified, keys_of, known_of, look
from datasets.look import COMPARED, LEAST_SIDE, THUMBNAIL_SIZE, WHOLE
from datasets.remembered import remembered

Floats = NDArray[np.float32]
Mask = NDArray[np.bool_]
Words = NDArray[np.uint64]  # hashes
Places = NDArray[np.int64]  # of pictures in their table

COPIES = "copies-"
"""Beginning of the name of a group of copies that nobody has named; the hash of the first of them follows."""
RADIUS = 14
"""Largest Hamming distance of two candidates, of 63 bits; of _MANY pictures 11, and some of the others."""
_PASSED, _SURE, _ALMOST = (0.90, 0.70), (0.98, 0.90), (0.75, 0.40)
"""Least correlation of two thumbnails and of their fine detail: of copies, of copies among pictures that look alike,
and of pictures that look alike."""
LOOK_ALIKE = 0.05
"""Ratio of the pairs that almost pass, and that no chain of copies connects, to those that pass. From it on copies have
to be surer: pictures of one kind, such as digits or X-rays, resemble one another without being copies."""
MIRROR = np.uint64(0x5555555555555555)
"""Bits that differ in the hash of the mirrored picture: the coefficients of odd horizontal frequency."""
_NEAREST = 32  # candidates looked at per picture: frames of a film have thousands
_ROWS, _COLUMNS = 64, 2048  # of the distances computed at a time: what fits into a processor's cache
_PARTS = [sum(1 << bit for bit in range(start, 63, 6)) for start in range(6)]  # of a hash; every sixth bit
_MANY = 50_000  # hashes; fewer are compared each with each in less time
_WAITING = 1_000_000  # close pairs that are kept, before those which are not of the nearest go
_THUMBNAILS = 4096  # thumbnails that are hashed at a time
_BLOCK = 1024  # pairs whose thumbnails are compared at a time, 4 KiB each as float32


# Units: which images belong together


def are_copies(group: str) -> bool:
    """Return whether a group is one of copies that nobody has named."""
    return re.fullmatch(COPIES + "[0-9a-f]{16}", group) is not None


def units_of(samples: Samples, rows: np.ndarray) -> np.ndarray:
    """Number the units of these rows: int64 (len(rows),).

    An image that stands alone is a unit by itself."""
    if samples.groups is None:
        return rows.astype(np.int64)
    groups = samples.groups[rows].astype(np.int64)
    return np.where(groups >= 0, groups, len(samples.group_names) + rows)


def components(count: int, links: np.ndarray) -> Places:
    """Return for each place the smallest that links (2, m) lead to: int64 (count,).

    Itself where none do.

    scipy's `connected_components` needs 0.2 s to be imported, as long as a start with 1,400 photographs.
    """
    smallest = np.arange(count)
    while True:
        before, lower = smallest.copy(), np.tile(smallest[links].min(axis=0), 2)
        np.minimum.at(smallest, links.ravel(), lower)
        np.minimum.at(smallest, before[links].ravel(), lower)  # what both ends led to follows
        smallest = smallest[smallest]
        if np.array_equal(smallest, before):
            return smallest


def merged(first: np.ndarray, *others: np.ndarray, pairs: np.ndarray | None = None) -> Places:
    """Number the units of n images that share a number or are a pair: int64 (n,).

    Numbers are int64 (n,) each, pairs (2, m); -1 stands alone."""
    links = [_links(codes) for codes in (first, *others)]
    return components(len(first), np.concatenate(links if pairs is None else [*links, pairs], axis=1))


def with_more_groups(samples: Samples, names: Sequence[str]) -> Samples:
    """Return the samples in more groups; groups that share an image become one.

    One name per image, empty where it stands alone. A group keeps the first of its names, in alphabetical order; copies
    without one are called by the smallest hash among them, so that the name stays when copies come or go.
    """
    numbers: dict[str, int] = {}
    codes = np.array([numbers.setdefault(name, len(numbers)) if name else -1 for name in names], np.int64)
    if not numbers:
        return samples
    own = np.full(len(samples), -1) if samples.groups is None else samples.groups
    rows = np.flatnonzero((codes >= 0) | (own >= 0))  # one image may be a group, too: others may join it later
    units, groups = np.unique(merged(codes, own)[rows], return_inverse=True)
    named: list[set[str]] = [set() for _ in units]
    for row, group in zip(rows.tolist(), groups.tolist(), strict=True):
        named[group] |= {names[row], samples.group_of(row)}
    digests = identified(samples).digests
    assert digests is not None
    smallest = np.full(len(units), np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(smallest, groups, keys_of(digests[rows]))
    group_names = tuple(
        min((name for name in found if name and not are_copies(name)), default=f"{COPIES}{key:016x}")
        for found, key in zip(named, smallest.tolist(), strict=True)
    )
    of_rows = np.full(len(samples), -1, np.int32)
    of_rows[rows] = groups
    return samples.replace(groups=of_rows, group_names=group_names)


def _links(codes: np.ndarray) -> Places:
    """Link each image of a code, -1 aside, to the first one of it: (2, m)."""
    rows = np.flatnonzero(codes >= 0)
    _, first, number = np.unique(codes[rows], return_index=True, return_inverse=True)
    links = np.stack([rows[first[number]], rows])
    return links[:, links[0] != links[1]]


# Copies in a set


def with_copies(samples: Samples, data_root: Path | None = None) -> Samples:
    """Return the samples with copies of a picture in one group, and notes on them."""
    samples = identified(samples, data_root)
    copies = copies_of(samples, data_root)
    if copies is None:
        why = "the set is too large to be read at the start; `check` finds them"
        return samples if samples.root is None else samples.note(f"duplicates were not looked for: {why}")
    images = int((samples.splits != LEFT_OUT).sum())
    if images <= SEARCHED_UP_TO:
        samples = samples.replace(copies=copies)
    else:
        samples = samples.note(f"near duplicates were not looked for among {images:,} images; `check` finds them")
    if (copies < 0).all():
        return samples
    names = [f"{COPIES}{number:016x}" if number >= 0 else "" for number in copies.tolist()]
    return with_more_groups(samples.note(*_about_copies(samples, copies)), names)


def copies_of(samples: Samples, data_root: Path | None = None, *, any_size: bool = False) -> Places | None:
    """Number each picture that is there more than once, int64 (N,), -1 for others.

    None: contents are not read.

    Copies have equal contents or, up to SEARCHED_UP_TO images, are near duplicates. `any_size`: larger sets
    are read, and near duplicates are looked for in them, too.
    """
    if samples.copies is not None:
        return samples.copies
    samples = identified(samples, data_root)
    rows = np.flatnonzero(samples.splits != LEFT_OUT)
    digests = samples.digests
    if samples.hash_kind != CONTENT_HASH:
        if not any_size:
            return None
        known = look(samples, rows, WHOLE)
        rows, digests = rows[known.hashed[rows]], known.digests
    assert digests is not None
    _, first, number = np.unique(keys_of(digests[rows]), return_index=True, return_inverse=True)
    links = rows[_links(number)]
    if any_size or len(rows) <= SEARCHED_UP_TO:
        links = np.concatenate([links, _near_links(samples, digests, rows[first], data_root)], axis=1)
    component = components(len(samples), links)
    return np.where(np.bincount(component)[component] > 1, component, -1)


def _near_links(samples: Samples, digests: np.ndarray, distinct: np.ndarray, data_root: Path | None) -> Places:
    """Return pairs of near duplicates (2, m) among images that lie in hash order."""
    if samples.pixels is not None and min(samples.pixels.shape[1:3]) < LEAST_SIDE:
        return np.empty((2, 0), np.int64)

    def search() -> dict[str, np.ndarray]:
        known = look(samples, distinct, COMPARED, thumbnails=True)
        compared = np.flatnonzero(known.compared(distinct))
        return {"pairs": compared[near_copies(known.thumbnails, distinct[compared])[0]]}

    key = str(samples.root or samples.name)
    stamps = json.dumps(versions_of("pillow", "numpy")).encode() + digests[distinct].tobytes()
    place = data_root if len(distinct) >= KEPT_FROM else None
    pairs = distinct[remembered("copies", key, stamps, search, data_root=place)["pairs"]]
    known_of(samples).drop_thumbnails()
    return pairs


def _about_copies(samples: Samples, copies: np.ndarray) -> Iterator[str]:
    """Yield one line on the copies of a set, and one for each fault that they are."""
    members = np.flatnonzero(copies >= 0)
    order = members[np.argsort(copies[members], kind="stable")]
    pictures = np.split(order, np.flatnonzero(np.diff(copies[order])) + 1)
    stay = "; each stays in one split" if samples.splits[members[0]] < 0 else ""
    yield f"{pluralise(len(members), 'image')} are duplicates, of {pluralise(len(pictures), 'picture')}{stay}"
    for what, column, names in (("labels", samples.labels, samples.class_names), ("splits", samples.splits, SPLITS)):
        torn = [rows for rows in pictures if np.ptp(column[rows])]
        if torn:
            codes = column[torn[0]]
            two = torn[0][[0, int(np.argmax(codes != codes[0]))]]
            first = " and ".join(f"{samples.paths[row]!r} ({names[column[row]]})" for row in two)
            count = pluralise(len(torn), "picture")
            yield f"{count} in two {what}, first {first}: scores are wrong; `check` lists them"


# Near copies among thumbnails


def near_copies(thumbnails: NDArray[np.uint8], rows: Places) -> tuple[Places, Floats, Mask]:
    """Find pairs of one picture among rows of thumbnails, uint8 (N, 32, 32).

    Returns places i < j in `rows`, (2, m), their correlations, and whether j is mirrored. Pictures of one colour match
    nothing. Pairs come sorted by i, then j, each once.
    """
    textured = [np.empty(0, np.int64)]
    for start in range(0, len(rows), _THUMBNAILS):
        values = thumbnails[rows[start : start + _THUMBNAILS]].reshape(-1, THUMBNAIL_SIZE**2)
        textured.append(start + np.flatnonzero(values.std(axis=1) >= 2))
    places = np.concatenate(textured)
    kept = rows[places]
    i, j, mirrored = candidates(perceptual_hashes(thumbnails, kept))
    scores = np.empty((2, len(i)), np.float32)
    for start in tqdm(range(0, len(i), _BLOCK), desc="near duplicates, second look", **BAR):
        block = slice(start, start + _BLOCK)
        right = thumbnails[kept[j[block]]]
        right = np.where(mirrored[block, None, None], right[:, :, ::-1], right)
        scores[:, block] = similarity(thumbnails[kept[i[block]]], right)
    passed, sure, almost = ((scores[0] >= least[0]) & (scores[1] >= least[1]) for least in (_PASSED, _SURE, _ALMOST))
    component = components(len(kept), np.stack([i, j])[:, passed])
    if (almost & (component[i] != component[j])).sum() > max(3, LOOK_ALIKE * passed.sum()):
        passed = sure  # different pictures of this set are hard to tell from copies
    same = np.flatnonzero(passed)
    same = same[np.lexsort((-scores[0, same], j[same], i[same]))]
    pairs = np.stack([i[same], j[same]])
    new = np.diff(pairs, axis=1, prepend=-1).any(axis=0)  # symmetric pictures match themselves mirrored, too
    return places[pairs[:, new]], scores[0, same[new]], mirrored[same[new]]


def perceptual_hashes(thumbnails: NDArray[np.uint8], rows: Places | None = None) -> Words:
    """Hash grey thumbnails (N, 32, 32), or these rows of them, to (n,) 64-bit words."""
    basis = np.cos(np.pi * np.arange(8)[:, None] * (np.arange(THUMBNAIL_SIZE) + 0.5) / THUMBNAIL_SIZE)
    basis = basis.astype(np.float32)  # (8, 32): frequency, position
    rows = np.arange(len(thumbnails)) if rows is None else rows
    hashes = np.empty(len(rows), np.uint64)
    for start in range(0, len(rows), _THUMBNAILS):
        block = thumbnails[rows[start : start + _THUMBNAILS]].astype(np.float32)
        block -= block.mean(axis=(1, 2), keepdims=True)  # brightness is no evidence; also keeps float32 exact enough
        spectrum = basis @ block @ basis.T  # (b, 8, 8): [vertical, horizontal] frequency
        bits = (spectrum > 0).reshape(len(block), 64)
        bits[:, 0] = False  # the mean
        hashes[start : start + _THUMBNAILS] = np.packbits(bits, axis=1).view(">u8").ravel()
    return hashes


def candidates(hashes: Words) -> tuple[Places, Places, Mask]:
    """Return pairs i < j to compare, as they are or with j mirrored.

    For every j these are the few i with the nearest hashes."""
    looks = ((hashes, 0), (hashes ^ MIRROR, 1))
    steps = [(*look, part) for look in looks for part in (_PARTS if len(hashes) >= _MANY else (0,))]
    found, waiting = [np.empty((4, 0), np.int64)], 0
    for words, mirrored, part in tqdm(steps, desc="near duplicates, hashes", **BAR):
        for rows, columns in _blocks(words, hashes, part):
            distances = np.bitwise_count(words[rows, None] ^ hashes[columns])
            j, i = np.nonzero(distances <= RADIUS)
            pairs = np.stack([rows[j], distances[j, i], columns[i], np.full_like(i, mirrored)])
            found.append(pairs[:, pairs[2] < pairs[0]])
            waiting += len(i)
            if waiting > max(_WAITING, found[0].shape[1]):
                found, waiting = [_nearest(found)], 0
    j, _, i, mirrored = _nearest(found)
    return i, j, mirrored.astype(bool)


def _blocks(words: Words, earlier: Words, part: int) -> Iterator[tuple[Places, Places]]:
    """Yield places in `words`, and earlier ones in `earlier` that may be within 11 of them.

    They may by this part of their bits.

    Eleven different bits leave one of `_PARTS` with one at most, so only such groups are compared (Norouzi et al.,
    "Fast search in Hamming space", 2012)."""
    flips = [0] + [1 << bit for bit in range(64) if part >> bit & 1]
    groups = _groups(earlier & np.uint64(part))
    for value, members in _groups(words & np.uint64(part)).items():
        columns = np.sort(np.concatenate([groups.get(value ^ flip, members[:0]) for flip in flips]))
        for start in range(0, len(members), _ROWS):
            rows = members[start : start + _ROWS]
            for first in range(0, int(np.searchsorted(columns, rows[-1])), _COLUMNS):
                yield rows, columns[first : first + _COLUMNS]


def _groups(words: Words) -> dict[int, Places]:
    """Return the places of each word, in their order."""
    order = np.argsort(words, kind="stable")
    values, starts = np.unique(words[order], return_index=True)
    return dict(zip(values.tolist(), np.split(order, starts)[1:], strict=True))


def _nearest(found: Sequence[Places]) -> Places:
    """Keep of (j, distance, i, mirrored), each once, for every j the `_NEAREST` with the smallest distance."""
    pairs = np.concatenate(found, axis=1)
    pairs = pairs[:, np.lexsort(pairs[::-1])]
    pairs = pairs[:, np.diff(pairs, axis=1, prepend=-1).any(axis=0)]
    return pairs[:, np.arange(pairs.shape[1]) - np.searchsorted(pairs[0], pairs[0]) < _NEAREST]


def similarity(left: NDArray[np.uint8], right: NDArray[np.uint8]) -> Floats:
    """Correlate (m, 32, 32) thumbnails, and their fine detail: (2, m), in [-1, 1]."""
    a, b = _standardised(left.astype(np.float32)), _standardised(right.astype(np.float32))
    fine = _standardised(a - _blur(_blur(a))), _standardised(b - _blur(_blur(b)))
    return np.stack([np.einsum("mij,mij->m", *pair) for pair in ((a, b), fine)])


def _standardised(images: Floats) -> Floats:
    """Return the images with mean 0 and sum of squares 1; zeros for one of one colour."""
    images = images - images.mean(axis=(1, 2), keepdims=True)
    return images / np.sqrt(np.square(images).sum(axis=(1, 2), keepdims=True) + np.float32(1e-9))


def _blur(images: Floats) -> Floats:
    """Filter by [1 2 1] / 4 along both axes."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)), mode="edge")
    lines = padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]
    return (lines[:, :, :-2] + 2 * lines[:, :, 1:-1] + lines[:, :, 2:]) / 16
