"""Near-duplicate pictures among a million: 64-bit perceptual hashes, those that are close, and a second look.

1. `perceptual_hashes`: the signs of the lowest 63 DCT coefficients of a 32 × 32 grey thumbnail (Zauner, "Implementation
   and benchmarking of perceptual image hash functions", 2010). Signs, not a comparison with the median: mirroring a
   picture then flips exactly the coefficients of odd horizontal frequency, so a mirrored copy costs one XOR.
2. `candidates`: for every picture the earlier ones at a small Hamming distance, block by block in bounded memory. Many
   are compared only where a sixth of their bits almost agrees (Norouzi et al., "Fast search in Hamming space", 2012).
3. `registered_similarity`: lays one thumbnail over the other (a scale and a shift per axis) and correlates them. Hashes
   of different pictures collide; pictures that still agree after that are the same picture.
"""

from collections.abc import Iterator, Mapping
from itertools import product

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from datasets.components import connected

Floats = NDArray[np.float32]
Mask = NDArray[np.bool_]
Words = NDArray[np.uint64]  # hashes
Places = NDArray[np.int64]  # of pictures in their table

THUMBNAIL_SIZE = 32
"""Side of the grey thumbnails, in pixels."""

RADII = (4_000, 17), (49_999, 14), (2**62, 11)
"""Pictures, and the largest Hamming distance of two candidates among so many, of 63 bits. What each
finds and leaves to the second look: docs/evidence/benchmarks.md, "Thresholds"."""

CROP_VIEW = 0.05
"""Every picture is also looked up as it would be with this share of each side cut off."""

LEAST_CORRELATION, LEAST_DETAIL = 0.90, 0.70
"""Thresholds for one picture twice: correlation of the registered thumbnails, and of their fine detail alone.
What copies and others have: docs/evidence/benchmarks.md, "Thresholds"."""

LOOK_ALIKE = 0.05
"""Ratio of the pairs that almost pass, and that no chain of copies connects, to those that pass. From it on copies have
to be surer: pictures of one kind, such as digits or X-rays, resemble one another without being copies."""
_PASSED = LEAST_CORRELATION, LEAST_DETAIL
_ALMOST = 0.75, 0.40
_SURE = 0.98, 0.90
_FIRST = 4
"""Candidates of each picture, the nearest, that tell whether pictures look alike; others are farther from passing."""
_NEVER_SURE = {0: 0.5, 3: 0.95}
"""Step of the registration, and correlation of the smooth thumbnails below which no pair ended above `_SURE`."""

_NEAREST = 32  # candidates looked at per picture: frames of a film have thousands
_ROWS, _COLUMNS = 64, 2048  # of the distances computed at a time: what fits into a processor's cache
_PARTS = [sum(1 << bit for bit in range(start, 63, 6)) for start in range(6)]  # of a hash; every sixth bit
_MANY = 50_000  # hashes; fewer are compared each with each in less time
_WAITING = 1_000_000  # close pairs that are kept, before those which are not of the nearest go
_VERIFY_BLOCK = 128  # candidate pairs registered at a time, 4 KiB each as float32: what fits into a processor's cache
_BAR = {"disable": None, "leave": False}  # silent unless a terminal watches


def near_duplicates(thumbnails: NDArray[np.uint8]) -> tuple[Places, Floats, Mask]:
    """All pairs i < j (2, m) of (n, 32, 32) thumbnails that show one picture; their correlation; whether j is mirrored.

    Pictures of one colour match nothing here. Pairs come sorted by i, then j, each once.
    """
    parts = np.array_split(thumbnails.reshape(-1, THUMBNAIL_SIZE**2), len(thumbnails) // 4096 + 1)  # float64 each
    textured = np.flatnonzero(np.concatenate([part.std(axis=1) for part in parts]) >= 2)
    kept = thumbnails[textured]
    i, j, mirrored = candidates(kept)
    scores = np.full((2, len(i)), -1, np.float32)

    def look(places: Places, *, sure: bool = False) -> bool:
        """Look at these candidates a second time; whether different pictures look alike, by all that were looked at."""
        for start in tqdm(range(0, len(places), _VERIFY_BLOCK), desc="near duplicates, second look", **_BAR):
            block = places[start : start + _VERIFY_BLOCK]
            right = kept[j[block]]
            right = np.where(mirrored[block, None, None], right[:, :, ::-1], right)
            scores[:, block] = registered_similarity(kept[i[block]], right, sure=sure)
        return _look_alike(len(kept), np.stack([i, j]), _above(scores, _PASSED), _above(scores, _ALMOST))

    rank = np.arange(len(j)) - np.searchsorted(j, j)
    alike = look(np.flatnonzero(rank < _FIRST))
    alike |= look(np.flatnonzero(rank >= _FIRST), sure=alike)
    same = np.flatnonzero(_above(scores, _SURE if alike else _PASSED))
    same = same[np.lexsort((-scores[0, same], j[same], i[same]))]
    new = np.ones(len(same), bool)  # symmetric pictures match themselves mirrored too: keep the better
    new[1:] = (np.diff(i[same]) != 0) | (np.diff(j[same]) != 0)
    same = same[new]
    return textured[np.stack([i[same], j[same]])], scores[0, same], mirrored[same]


def _above(scores: Floats, least: tuple[float, float]) -> Mask:
    return (scores[0] >= least[0]) & (scores[1] >= least[1])


def _look_alike(count: int, pairs: Places, passed: Mask, almost: Mask) -> bool:
    """Return whether different pictures of this set are hard to tell from copies."""
    component = connected(count, pairs[:, passed])
    i, j = pairs[:, almost]
    apart = (component[i] != component[j]) | (component[i] < 0)
    return int(apart.sum()) > max(3, LOOK_ALIKE * int(passed.sum()))


def candidates(thumbnails: NDArray[np.uint8]) -> tuple[Places, Places, Mask]:
    """Pairs i < j to look at, as they are or with j mirrored; for every j the few i with the nearest hashes."""
    hashes, cropped = perceptual_hashes(thumbnails), perceptual_hashes(thumbnails, margin=CROP_VIEW)
    lookups = (hashes, hashes, 0), (cropped, hashes, 0), (hashes, cropped, 0), (mirrored_hashes(hashes), hashes, 1)
    radius = next(radius for most, radius in RADII if len(hashes) <= most)
    parts, waiting = [np.empty((4, 0), np.int64)], 0
    steps = [*product(lookups, _PARTS if len(hashes) >= _MANY else (0,))]
    for (words, earlier, mirrored), part in tqdm(steps, desc="near duplicates, hashes", **_BAR):
        for rows, columns in _blocks(words, earlier, part):
            distances = np.bitwise_count(words[rows, None] ^ earlier[columns])
            places = np.flatnonzero(distances <= radius)
            j, i = np.divmod(places, len(columns))
            parts.append(np.stack([columns[i], rows[j], np.full_like(i, mirrored), distances.ravel()[places]]))
            waiting += len(places)
            if waiting > max(_WAITING, parts[0].shape[1]):
                parts, waiting = [_nearest(np.concatenate(parts, axis=1))], 0
    i, j, mirrored, _ = _nearest(np.concatenate(parts, axis=1))
    return i, j, mirrored.astype(bool)


def _blocks(words: Words, earlier: Words, part: int) -> Iterator[tuple[Places, Places]]:
    """Places in `words`, and such places before them in `earlier` as may be within 11 of them by this part of their
    bits. Eleven different bits leave one of `_PARTS` with one at most, so only such groups are compared."""
    flips = [0] + [1 << bit for bit in range(64) if part >> bit & 1]
    groups = _groups(earlier & np.uint64(part))
    for value, members in _groups(words & np.uint64(part)).items():
        columns = np.sort(np.concatenate([groups.get(value ^ flip, members[:0]) for flip in flips]))
        for start in range(0, len(members), _ROWS):
            rows = members[start : start + _ROWS]
            for first in range(0, int(np.searchsorted(columns, rows[-1])), _COLUMNS):
                yield rows, columns[first : first + _COLUMNS]


def _groups(words: Words) -> dict[int, Places]:
    """The places of each word, in their order."""
    order = np.argsort(words, kind="stable")
    values, starts = np.unique(words[order], return_index=True)
    return dict(zip(values.tolist(), np.split(order, starts)[1:], strict=True))


def _nearest(pairs: Places) -> Places:
    """Keep of (i, j, mirrored, distance) with i < j for each j the `_NEAREST` with the smallest distance, lower i
    first."""
    pairs = pairs[:, pairs[0] < pairs[1]]
    pairs = pairs[:, np.lexsort((pairs[3], pairs[2], pairs[0], pairs[1]))]
    pairs = pairs[:, np.diff(pairs[:3], axis=1, prepend=-1).any(axis=0)]  # each once, as near as it comes
    pairs = pairs[:, np.lexsort((pairs[2], pairs[0], pairs[3], pairs[1]))]
    rank = np.arange(pairs.shape[1]) - np.searchsorted(pairs[1], pairs[1])
    return pairs[:, rank < _NEAREST]


def perceptual_hashes(thumbnails: NDArray[np.uint8], *, margin: float = 0.0) -> Words:
    """Hash (n, 32, 32) grey thumbnails to (n,) 64-bit words; `margin` is the share cut off each side first."""
    basis = np.cos(np.pi * np.arange(8)[:, None] * (np.arange(THUMBNAIL_SIZE) + 0.5) / THUMBNAIL_SIZE)
    basis = basis.astype(np.float32)  # (8, 32): frequency, position
    hashes = np.empty(len(thumbnails), np.uint64)
    for start in range(0, len(thumbnails), 4096):
        block = thumbnails[start : start + 4096].astype(np.float32)
        if margin:
            block, _ = _sample(block, np.tile(np.array([1 - 2 * margin, 0], np.float32), (len(block), 2)))
        block -= block.mean(axis=(1, 2), keepdims=True)  # brightness is no evidence; also keeps float32 exact enough
        spectrum = basis @ block @ basis.T  # (b, 8, 8): [vertical, horizontal] frequency
        bits = (spectrum > 0).reshape(len(block), 64)
        bits[:, 0] = False  # the mean
        hashes[start : start + 4096] = np.packbits(bits, axis=1).view(">u8").ravel()
    return hashes


def mirrored_hashes(hashes: Words) -> Words:
    """The hashes of the same pictures, left and right exchanged."""
    return hashes ^ np.uint64(0x5555555555555555)  # the coefficients of odd horizontal frequency


def registered_similarity(left: NDArray[np.uint8], right: NDArray[np.uint8], *, sure: bool = False) -> Floats:
    """(2, m): correlation in [-1, 1] of (m, 32, 32) thumbnails, `left` laid over `right`; and of their fine detail.

    Gauss-Newton over a scale and a shift per axis (Lucas and Kanade, 1981; four unknowns), with brightness and contrast
    removed in every step. A scale beyond ±20 % or a shift beyond 4 pixels counts as no match. With `sure`, -1 for pairs
    of which a few steps show that they will not agree almost wholly, which saves most of the time.
    """
    a, b = left.astype(np.float32), right.astype(np.float32)
    scores = _scores(a, b, np.ones((1, THUMBNAIL_SIZE, THUMBNAIL_SIZE), np.float32))
    apart = (scores[0] < 0.98) | (scores[1] < 0.9)  # the others lie well enough as they are
    if apart.any():
        scores[:, apart] = _register(a[apart], b[apart], never=_NEVER_SURE if sure else {})
    return scores


def _scores(left: Floats, right: Floats, inside: Floats) -> Floats:
    """(2, m): correlation over the pixels inside, and correlation of what is left when smoothing is taken away."""
    detail = left - _blur(_blur(left)), right - _blur(_blur(right))
    return np.stack([_correlation(left, right, inside), _correlation(*detail, inside)])


def _register(left: Floats, right: Floats, steps: int = 15, *, never: Mapping[int, float]) -> Floats:
    """(2, m) scores after registration, -1 where it ended somewhere implausible, or was given up: `never` says below
    which correlation at a step."""
    found = np.full((2, len(left)), -1, np.float32)
    places = np.arange(len(left))
    smooth_left, smooth_right = _blur(left), _blur(right)
    axis = np.arange(THUMBNAIL_SIZE, dtype=np.float32) - (THUMBNAIL_SIZE - 1) / 2
    params = np.tile(np.array([1, 0, 1, 0], np.float32), (len(left), 1))  # scale_x, shift_x, scale_y, shift_y
    for step in range(steps):
        sampled, inside = _sample(smooth_left, params)
        if step in never:
            kept = _correlation(sampled, smooth_right, inside) >= never[step]
            places, params, sampled, inside = places[kept], params[kept], sampled[kept], inside[kept]
            smooth_left, smooth_right = smooth_left[kept], smooth_right[kept]
            if not len(places):
                return found
        m = len(places)
        grad_y, grad_x = np.gradient(sampled, axis=(1, 2))
        moved, spread = _standardise(sampled, inside)
        target, _ = _standardise(smooth_right, inside)
        grad_x, grad_y = grad_x / spread, grad_y / spread
        grad_x, grad_y, residual = grad_x * inside, grad_y * inside, ((target - moved) * inside).reshape(m, -1, 1)
        jacobian = np.stack([grad_x * axis, grad_x, grad_y * axis[:, None], grad_y], axis=1).reshape(m, 4, -1)
        normal = jacobian @ jacobian.transpose(0, 2, 1)
        normal += (1e-3 * np.trace(normal, axis1=1, axis2=2)[:, None, None] + 1e-6) * np.eye(4, dtype=np.float32)
        params += np.linalg.solve(normal, jacobian @ residual)[..., 0].clip(-1, 1)
        params[:, 0::2] = params[:, 0::2].clip(0.75, 1.3)
        params[:, 1::2] = params[:, 1::2].clip(-5, 5)
    sampled, inside = _sample(left[places], params)
    scores = _scores(sampled, right[places], inside)
    plausible = (np.abs(np.log(params[:, 0::2])) < np.log(1.2)).all(1) & (np.abs(params[:, 1::2]) < 4).all(1)
    found[:, places] = np.where(plausible, scores, -1)
    return found


def _sample(images: Floats, params: Floats) -> tuple[Floats, Floats]:
    """Images under (m, 4) scales and shifts, and 1 for a pixel from inside, else 0: both (m, 32, 32)."""
    last = THUMBNAIL_SIZE - 1
    axis = np.arange(THUMBNAIL_SIZE, dtype=np.float32)
    x, y = (params[:, k : k + 1] * (axis - last / 2) + params[:, k + 1 : k + 2] + last / 2 for k in (0, 2))  # (m, 32)
    # Linear interpolation as a product: row i of `rows` holds the weights of the pixels beside y[i].
    columns, rows = (np.maximum(0, 1 - np.abs(p.clip(0, last)[:, :, None] - axis)) for p in (x, y))  # (m, 32, 32)
    inside_x, inside_y = ((p >= -0.5) & (p <= last + 0.5) for p in (x, y))
    return rows @ images @ columns.transpose(0, 2, 1), (inside_y[:, :, None] & inside_x[:, None, :]).astype(np.float32)


def _blur(images: Floats) -> Floats:
    """A [1 2 1] / 4 filter along both axes: widens the basin of the registration."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)), mode="edge")
    lines = padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]
    return (lines[:, :, :-2] + 2 * lines[:, :, 1:-1] + lines[:, :, 2:]) / 16


def _standardise(images: Floats, inside: Floats) -> tuple[Floats, Floats]:
    """Mean 0, deviation 1 over the pixels inside; and the deviation, (m, 1, 1)."""
    count = inside.sum(axis=(1, 2), keepdims=True).clip(1)
    centred = images - (images * inside).sum(axis=(1, 2), keepdims=True) / count
    spread = np.sqrt((centred**2 * inside).sum(axis=(1, 2), keepdims=True) / count) + np.float32(1e-3)
    return centred / spread, spread


def _correlation(left: Floats, right: Floats, inside: Floats) -> Floats:
    product = _standardise(left, inside)[0] * _standardise(right, inside)[0] * inside
    return product.sum(axis=(1, 2)) / inside.sum(axis=(1, 2)).clip(1)
