"""Even parts out of uneven units: units change parts until every class has its share in every part, as far as it goes.

U units, C classes, P parts. Ordering units by a hash gives each part its share of every class where units are small and
of one class. Larger ones, or ones of several classes, need a few moves more; units are moved one by one or exchanged,
always the move that helps most, and none once every share is within `TOLERANCE`.
"""

import numpy as np

TOLERANCE = 0.02
"""Largest deviation of a share that is left alone; one image is always left alone."""
MOST_CELLS = 50_000_000
"""Units times classes, above which nothing is evened out."""
_SWAPPED = 64
"""Units of each part that are tried for an exchange: those whose move alone would do least harm."""


def deviations(counts: np.ndarray, parts: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """float64 (P, C): images that a part has too many of a class; counts (U, C), parts (U,), targets (P, C)."""
    return np.stack([counts[parts == part].sum(axis=0) for part in range(len(targets))]) - targets


def balanced(counts: np.ndarray, parts: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The part of each unit, int64 (U,): `parts`, but for as many units as have to move."""
    if (counts.sum(axis=1) <= 1).all():
        return parts
    parts, totals = parts.copy(), targets.sum(axis=0)
    weights = np.where(totals > 0, 1 / np.maximum(totals, 1) ** 2, 0)
    allowed = np.maximum(TOLERANCE * totals, 1)
    weighted, squares = counts * weights, (counts**2 * weights).sum(axis=1)
    surplus = deviations(counts, parts, targets)
    for _ in range(2 * len(parts)):
        if (np.abs(surplus) <= allowed).all():
            break
        gains = _gains(weighted, squares, parts, surplus)
        gains[_needed(counts, parts, targets)] = np.inf
        unit, part = divmod(int(gains.argmin()), len(targets))
        moves = [(unit, part)]
        if gains[unit, part] > -1e-12:
            moves = _exchange(counts, weighted, parts, gains)
        if not moves:
            break
        for unit, part in moves:
            surplus[parts[unit]] -= counts[unit]
            surplus[part] += counts[unit]
            parts[unit] = part
    return parts


def _gains(weighted: np.ndarray, squares: np.ndarray, parts: np.ndarray, surplus: np.ndarray) -> np.ndarray:
    """float64 (U, P): change of the sum of squared shares when a unit goes to a part; infinite where it is there."""
    towards = weighted @ surplus.T  # (U, P)
    gains = 2 * (squares[:, None] + towards - towards[np.arange(len(parts)), parts][:, None])
    gains[np.arange(len(parts)), parts] = np.inf
    return gains


def _needed(counts: np.ndarray, parts: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """bool (U,): units that are the only one of some class in their part, where every part could have one."""
    there = counts > 0
    holders = np.stack([there[parts == part].sum(axis=0) for part in range(len(targets))])  # (P, C)
    sole = (holders == 1) & (targets >= 1) & (holders.sum(axis=0) >= len(targets))
    return (there & sole[parts]).any(axis=1)


def _exchange(counts: np.ndarray, weighted: np.ndarray, parts: np.ndarray, gains: np.ndarray) -> list[tuple[int, int]]:
    """The two moves of the best exchange of two units; none where no exchange helps."""
    best, moves = -1e-12, []
    for here in range(gains.shape[1]):
        for there in range(here + 1, gains.shape[1]):
            ours, theirs = np.flatnonzero(parts == here), np.flatnonzero(parts == there)
            ours = ours[np.argsort(gains[ours, there], kind="stable")[:_SWAPPED]]
            theirs = theirs[np.argsort(gains[theirs, here], kind="stable")[:_SWAPPED]]
            if not len(ours) or not len(theirs):
                continue
            # Moving both adds to the two gains what they do to each other: -4 times their product, for two parts.
            both = gains[ours, there][:, None] + gains[theirs, here] - 4 * weighted[ours] @ counts[theirs].T
            place = np.unravel_index(int(both.argmin()), both.shape)
            if both[place] < best:
                best = float(both[place])
                moves = [(int(ours[place[0]]), there), (int(theirs[place[1]]), here)]
    return moves


def shares_note(counts: np.ndarray, parts: np.ndarray, targets: np.ndarray, class_names: tuple[str, ...]) -> str:
    """One line on the class that is farthest from its share, where that is more than five points; else empty."""
    totals = targets.sum(axis=0)
    off = np.abs(deviations(counts, parts, targets)) / np.maximum(totals, 1)
    part, label = np.unravel_index(int(off.argmax()), off.shape)
    if off[part, label] <= 0.05 or off[part, label] * totals[label] <= 1:
        return ""
    has, wanted = counts[parts == part, label].sum() / totals[label], targets[part, label] / totals[label]
    name = ("train", "val", "test")[part]
    return f"groups are too large for even shares: {name} has {has:.0%} of {class_names[label]!r}, {wanted:.0%} asked"
