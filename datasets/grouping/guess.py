"""The guess: groups that names of files or folders suggest, what their pictures say about it, and the option to type.

Nothing is grouped by a guess: it is said, and a person decides.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from common.errors import DataError
from common.shell import quoted
from common.text import pluralise, printable
from datasets.bundle import LEFT_OUT, Samples
from datasets.grouping.candidates import CandidateGrouping
from datasets.grouping.evidence import Likeness, Thumbnails, likeness, looked_at
from datasets.grouping.exif import has_bursts
from datasets.grouping.option import BURST, FOLDER, folders, normal, with_groups
from datasets.grouping.pattern import pattern_of
from datasets.grouping.search import candidates, of_each_class

NAMES_LOOKED_AT, BLOCK = 20_000, 1_000
"""Names that are looked at, of a larger set in blocks of neighbours, for names of one group lie side by side."""


MOST_KNOWN = 8
_KNOWN: "dict[bytes, Guess | None]" = {}
"""Guesses of sets that were read: a command may read one many times."""


@dataclass(frozen=True)
class Guess:
    """Groups that a set seems to have."""

    option: str
    """Value of `--group` that makes them."""
    sentence: str
    """Sentence that says which groups they seem to be, with three examples, without its end."""
    alike: Likeness | None
    """Evidence of the pictures; None where they could not be compared."""

    @property
    def words(self) -> str:
        """The option as it is typed into a shell."""
        return f"--group {quoted(self.option)}"


def guess_of(samples: Samples, option: str, alike: Likeness | None) -> Guess:
    """The guess that the images belong together as this option says."""
    grouped = with_groups(samples, option)
    rows = _members(grouped)
    few, many = min(map(len, rows)), max(map(len, rows))
    sizes = f"{few} to {many}" if few < many else f"{many}"
    suggest = {FOLDER: "folders suggest", BURST: "the times in EXIF suggest"}.get(option, "names suggest")
    shown = "; ".join(_example(grouped, part, with_folder=option == FOLDER) for part in _usual(rows))
    sentence = f"{suggest} {pluralise(len(rows), 'group')} of {sizes} images, such as {shown}"
    return Guess(option, f"{sentence}{_what_pictures_say(alike)}", alike)


def _what_pictures_say(alike: Likeness | None) -> str:
    if alike is None:
        return ""
    more = f"in {alike.often:.0%} of the cases two pictures of one group are more alike than two of different groups"
    return f" ({more})" if alike.more else " (their pictures are no more alike than others)"


def _members(samples: Samples) -> list[NDArray[np.int64]]:
    """The rows of each group of several images."""
    assert samples.groups is not None
    groups = np.where(samples.splits == LEFT_OUT, -1, samples.groups)
    order = np.argsort(groups, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)
    return [part for part in parts if len(part) > 1 and groups[part[0]] >= 0]


def _usual(rows: Sequence[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    """Three groups of about the usual size."""
    middle = np.median([len(part) for part in rows])
    return sorted(rows, key=lambda part: abs(len(part) - middle))[:3]


def _example(samples: Samples, rows: NDArray[np.int64], *, with_folder: bool) -> str:
    paths = [samples.paths[row] for row in rows[:2]]
    return printable(" and ".join(paths if with_folder else [PurePosixPath(path).name for path in paths]))


def guessed(samples: Samples, thumbnails: Thumbnails) -> Guess | None:
    """The groups that these images seem to have; None for most sets, and for one that has groups or no names of its
    own. `thumbnails` is asked for a few images, and only where names give a reason to."""
    if samples.root is None or samples.grouped_by:
        return None
    what = (os.fsencode(str(samples.root)), samples.paths.characters, samples.labels, samples.splits == LEFT_OUT)
    mark = hashlib.blake2b(b"\0".join(map(bytes, what))).digest()
    if mark not in _KNOWN:
        if len(_KNOWN) > MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN[mark] = _guessed(samples, thumbnails)
    return _KNOWN[mark]


def _guessed(samples: Samples, thumbnails: Thumbnails) -> Guess | None:
    rows = _some_rows(np.flatnonzero(samples.splits != LEFT_OUT))
    found = _by_folder(samples, rows, thumbnails) or _by_name(samples, rows, thumbnails)
    return guess_of(samples, BURST, None) if found is None and has_bursts(samples, rows) else found


def _some_rows(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    if len(rows) <= NAMES_LOOKED_AT:
        return rows
    starts = np.linspace(0, len(rows) - BLOCK, NAMES_LOOKED_AT // BLOCK).astype(int)
    return np.unique(np.concatenate([rows[start : start + BLOCK] for start in starts]))


def _by_folder(samples: Samples, rows: NDArray[np.int64], thumbnails: Thumbnails) -> Guess | None:
    """Folders below each class, or above: enough of them, with several images each."""
    try:
        keys, _ = folders(samples, rows.tolist())
    except DataError:
        return None
    candidate = CandidateGrouping(keys, [""] * len(keys), samples.labels[rows].astype(np.int64), "folder")
    if not candidate.possible:
        return None
    return guess_of(samples, FOLDER, _alike(candidate, rows, thumbnails))


def _by_name(samples: Samples, rows: NDArray[np.int64], thumbnails: Thumbnails) -> Guess | None:
    """Choose from what names suggest the likeliest that pictures support, else the likeliest where names say enough."""
    paths, labels = [normal(samples.paths[row]) for row in rows.tolist()], samples.labels[rows].astype(np.int64)
    first: tuple[str, Likeness | None] | None = None
    for candidate in candidates(paths, labels):
        option = pattern_of(candidate, paths)
        if option is None:
            continue
        alike = _alike(candidate, rows, thumbnails)
        if alike is not None and alike.clear:
            return guess_of(samples, _of_each_class(candidate, rows, paths, thumbnails) or option, alike)
        if candidate.strong and first is None:
            first = option, alike
    return None if first is None else guess_of(samples, *first)


def _of_each_class(
    candidate: CandidateGrouping, rows: NDArray[np.int64], paths: Sequence[str], thumbnails: Thumbnails
) -> str | None:
    """The option for the same groups of each class by itself, where pictures of two classes do not belong together."""
    apart = of_each_class(candidate, paths)
    across = _alike(candidate, rows, thumbnails, across=True) if apart is not None else None
    return pattern_of(apart, paths) if apart is not None and across is not None and not across.more else None


def _alike(
    candidate: CandidateGrouping, rows: NDArray[np.int64], thumbnails: Thumbnails, *, across: bool = False
) -> Likeness | None:
    places = looked_at(candidate)
    seen = thumbnails(rows[places].tolist())
    across = across or candidate.across_classes_only
    return likeness(seen, candidate.codes[places], candidate.labels[places], across=across)
