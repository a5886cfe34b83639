"""Ways to read groups out of image names: which pieces may name what several images show, and what speaks for it.

A name such as `p012_03.jpg` suggests groups if its first pieces recur, each with several others: the rest counts from
the start for each of them, or they are what people number (`video7`), or too long to recur by chance (`10253`).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

LEAST_GROUPS = 5
"""Fewer are a handful of sources or cameras, whose images cannot be divided."""
LEAST_COVERED = 0.6
"""Share of the images, of those that have a key, that lie in a group of several."""
MOST_COPIES = 12
"""Images that an augmentation makes of one."""
LARGEST = 0.4
"""Share of the images that the largest group may have."""
NUMBER = re.compile(r"\d+")
_LABELLED = re.compile(r"(?<!\d)([^\W\d_]+)[\W_]*(\d+|[^\W\d_])$")
_DAY = re.compile(
    r"(?<!\d)(?:(?:19|20)\d\d(?:([-_. ]?)(?:0[1-9]|1[0-2])(?:\1(?:0[1-9]|[12]\d|3[01]))?)?"
    r"|[0-3]?\d[-_. ][0-3]?\d[-_. ](?:19|20)\d\d)$"
)


@dataclass(frozen=True, eq=False)
class CandidateGrouping:
    """One way to read groups out of N names."""

    keys: Sequence[str | None]
    """The group of each name; None where it is not read, being of another shape."""
    rests: Sequence[str]
    """Rest of each name."""
    labels: np.ndarray
    """int (N,)"""
    kind: str
    """Pieces that are the key: the first (`prefix`, `left`), the last (`suffix`), one (`piece`), all but the last
    (`right`); `shapes`: the first ones of each shape of name; `copies`, `prefixed`: the name of another image, to
    which something is added."""
    place: int = 0
    """Number of pieces, from the left or the right."""
    parts: Sequence[CandidateGrouping] = ()
    """Candidates of each shape, where names have several."""

    @cached_property
    def codes(self) -> np.ndarray:
        """int (N,): the number of the group, -1 where there is none."""
        numbers: dict[str, int] = {}
        return np.array([-1 if key is None else numbers.setdefault(key, len(numbers)) for key in self.keys])

    @cached_property
    def members(self) -> list[np.ndarray]:
        """The rows of each group of several images."""
        order = np.argsort(self.codes, kind="stable")
        rows = np.split(order, np.flatnonzero(np.diff(self.codes[order])) + 1)
        return [part for part in rows if len(part) > 1 and self.codes[part[0]] >= 0]

    @cached_property
    def possible(self) -> bool:
        """True if there are enough groups, none with most of the images, and several in most classes."""
        sizes, used = np.array([len(rows) for rows in self.members]), self.codes >= 0
        count = int(used.sum())
        if len(sizes) < LEAST_GROUPS or sizes.sum() < LEAST_COVERED * count or sizes.max() > LARGEST * count:
            return False
        pairs = np.unique(np.stack([self.labels[used], self.codes[used]]), axis=1)
        return bool(np.median(np.bincount(pairs[0])[np.unique(pairs[0])]) >= 2)

    @cached_property
    def covered(self) -> float:
        """Share of the images in groups of several."""
        return sum(map(len, self.members)) / int((self.codes >= 0).sum())

    def covers_as(self, other: CandidateGrouping) -> bool:
        """Return whether it is no weaker than another one, and has about as many images in groups."""
        return self.strong >= other.strong and self.covered >= other.covered - 0.1

    @cached_property
    def worth(self) -> float:
        """Score by which one of several candidates is chosen."""
        return self.covered + self.counts_anew + max(0.0, self.agreement) + 0.5 * self.of_one_size + 2 * self.strong

    @cached_property
    def across_classes_only(self) -> bool:
        """True if no two images of a group have one class, as where each class is numbered by itself."""
        return all(len(set(self.labels[rows].tolist())) == len(rows) for rows in self.members)

    @cached_property
    def agreement(self) -> float:
        """Agreement of labels within groups above chance: 0 as for any two images, 1 if it is always one label."""
        return above_chance(self.members, self.labels)

    @cached_property
    def counts_anew(self) -> float:
        """Share of the images whose rest some other group has, too."""
        groups = defaultdict(set)
        for rows in self.members:
            for row in rows:
                groups[self.rests[row]].add(self.codes[row])
        rows = np.concatenate(self.members)
        return float(np.mean([len(groups[self.rests[row]]) > 1 for row in rows]))

    @cached_property
    def from_the_start(self) -> float:
        """Share of the images in groups whose rests are the first ones that there are: 1, 2, 3 and not 2, 5, 9."""
        ranks = {rest: rank for rank, rest in enumerate(sorted(set(self.rests), key=_as_number))}
        whole = sum(len(rows) for rows in self.members if max(ranks[self.rests[row]] for row in rows) < len(rows))
        return whole / sum(map(len, self.members))

    @cached_property
    def runs(self) -> float:
        """Share of the steps from image to image of a group that are the usual step of a counter."""
        places = [place for rest in self.rests[:200] for place, _ in enumerate(NUMBER.findall(rest))]
        best = 0.0
        for place in range(min(4, max(places, default=-1) + 1)):
            steps: Counter[int] = Counter()
            for rows in self.members:
                found = (NUMBER.findall(self.rests[row]) for row in rows)
                numbers = sorted(int(number[place]) for number in found if len(number) > place)
                if len(set(numbers)) == len(numbers) > 2:  # else it is no counter, or of too few images to tell
                    steps.update(np.diff(np.array(numbers, dtype=object)).tolist())
            if steps.total() >= LEAST_GROUPS:
                best = max(best, steps.most_common(1)[0][1] / steps.total())
        return best

    @cached_property
    def of_one_size(self) -> bool:
        """True if nearly all groups have equally many images, as after an augmentation."""
        sizes = Counter(len(rows) for rows in self.members)
        size, count = sizes.most_common(1)[0]
        return size <= MOST_COPIES and count >= 0.8 * sizes.total() and len(self.members) > MOST_COPIES

    @cached_property
    def names_things(self) -> bool:
        """True if the keys are what people number: one word with many numbers or letters, a number, or a code."""
        keys = list(dict.fromkeys(key for key in self.keys if key is not None))
        ends = [NUMBER.sub("0", key) for key in keys]
        if self.labelled or len(set(ends)) <= max(2, 0.1 * len(ends)):
            return True
        return sum(any(sign.isdigit() for sign in key) for key in keys) >= 0.8 * len(keys)

    @cached_property
    def long_codes(self) -> bool:
        """True if the piece that tells groups apart is a number or code too long to recur by chance."""
        pieces = [re.split(r"[\W_]+", key)[-1] for key in dict.fromkeys(self.keys) if key is not None]
        return sum(len(piece) >= 4 and not _is_attribute(piece) for piece in pieces) >= 0.8 * len(pieces)

    @cached_property
    def labelled(self) -> bool:
        """True if all keys end in one word with a number or a letter: `video7`, `vid_A`."""
        found = [_LABELLED.search(key) for key in dict.fromkeys(self.keys) if key is not None]
        words, codes = ({match and match.group(part) for match in found} for part in (1, 2))
        return None not in words and len(words) == 1 < len(codes)

    @cached_property
    def strong(self) -> bool:
        """True if names alone are reason enough to speak of groups."""
        if self.kind in ("copies", "prefixed"):
            return True
        if self.parts:
            return all(part.strong for part in self.parts)
        if self.across_classes_only or not self.names_things or is_date(self.keys):
            return False
        known = self.labelled or self.long_codes
        if self.kind in ("piece", "suffix") and not known:
            return False  # a number at the end counts images
        return known or self.counts_anew >= 0.5 or self.runs >= 0.8 or self.of_one_size


def above_chance(members: Sequence[np.ndarray], labels: np.ndarray) -> float:
    """Agreement of labels within groups above chance: 0 as for any two images, 1 if it is always one label."""
    if not members:
        return 0.0
    base = float(np.square(np.bincount(labels) / len(labels)).sum())
    sizes = np.array([len(rows) for rows in members])
    pairs = np.array([np.square(np.bincount(labels[rows])).sum() - len(rows) for rows in members])  # of one label
    same = float((pairs / (sizes - 1)).sum() / sizes.sum())
    return (same - base) / max(1e-9, 1 - base)


def is_date(keys: Sequence[str | None]) -> bool:
    """Return whether the keys end in a day, month or year, without a time: many images are of one for no other
    reason."""
    texts = [key for key in dict.fromkeys(keys) if key is not None]
    return sum(bool(_DAY.search(text)) for text in texts) >= 0.95 * len(texts)


def _is_attribute(piece: str) -> bool:
    """Return whether a piece is a year or a size in pixels, which have nothing to do with one another."""
    return bool(re.fullmatch(r"(?:19|20)\d\d|\d+x\d+", piece))


def _as_number(text: str) -> tuple[object, ...]:
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", text) if part)
