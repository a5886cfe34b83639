"""Groups that image names suggest, such as `p012_03.jpg` or `video7_frame0041.png`. Nothing here reads a file."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePosixPath

import numpy as np

from datasets.grouping.candidates import LEAST_COVERED, LEAST_GROUPS, CandidateGrouping, above_chance
from datasets.grouping.names import Name, names_of

ONE_SHAPE = 0.9
"""Share of the names that must have the same signs between words for pieces to be compared place by place."""
PURE, BY_CHANCE = 0.9, 0.2
"""Agreement of labels above chance: nearly always, as for one patient; or hardly, as for one clinic."""
FROM_THE_START = 0.95
"""Share of the images in groups that are numbered from the start, without gaps."""
LEAST_COPIES = 0.05
"""Share of the images that are copies or edits of another, by their names."""
OF_EACH_CLASS = " of each class"
"""Ending of the kind of a candidate whose names count within the folder of a class."""


def candidates(paths: Sequence[str], labels: np.ndarray) -> list[CandidateGrouping]:
    """The ways to read groups out of the names of these files, the likeliest first; none for most sets."""
    if len(paths) < 2 * LEAST_GROUPS:
        return []
    names = names_of(tuple(map(stem, paths)))
    shape, count = Counter(name.seps for name in names).most_common(1)[0]
    if count >= ONE_SHAPE * len(names):
        found = _by_place([name if name.seps == shape else None for name in names], labels)
    else:
        found = _by_side(names, labels)
        found = [whole for whole in _by_shape(names, labels) if all(whole.covers_as(side) for side in found)] + found
    found += _copies(paths, names, labels)
    return sorted(found, key=lambda candidate: not candidate.strong)


def _by_place(names: Sequence[Name | None], labels: np.ndarray) -> list[CandidateGrouping]:
    """Yield for names of one shape the coarsest pieces from the left that make groups, and what else may be meant."""
    whole = [name for name in names if name is not None]
    places = range(len(whole[0].pieces))
    kept = labels[[name is not None for name in names]]
    telling = [place for place in places if not _is_given([name.pieces[place] for name in whole], kept)]
    if not telling:
        return []
    ends = [place + 1 for place in telling if place + 1 < len(places)]
    prefixes = [candidate for end in ends if (candidate := _prefix(names, labels, end)).possible]
    left = _best_prefix(prefixes, names)
    others = [_piece(names, labels, place) for place in telling[1:-1]]
    if len(telling) > 1:
        others.append(_suffix(names, labels, telling[-2] + 1))
    others = [other for other in others if other.possible and other.strong]
    if left is None:
        others = [other for other in others if other.agreement >= PURE]
        return sorted(others, key=lambda other: len(other.members))[:1]
    for other in others:
        if _is_better(other, left):
            return [other, left]
    return [left, *others[:1]]


def _is_given(pieces: Sequence[str], labels: np.ndarray) -> bool:
    """Return whether a piece says no more than the label does, which may be nothing."""
    pairs = len(set(zip(pieces, labels.tolist(), strict=True)))
    return pairs <= len(set(labels.tolist()))


def _best_prefix(prefixes: Sequence[CandidateGrouping], names: Sequence[Name | None]) -> CandidateGrouping | None:
    """The coarsest, which keeps the finer ones whole, too; unless a finer one alone explains the labels, or is a code
    that lies in one of the coarse ones each time: then these are an attribute of it, such as the clinic of a patient.
    """
    if not prefixes:
        return None
    best, *finer = prefixes
    for other in finer:
        explains = other.agreement >= PURE > best.agreement and _agreement_between(best, other) < BY_CHANCE
        is_code = not best.strong and other.long_codes and not other.labelled
        if explains or (is_code and _determines(other, best, names)):
            best = other
    return best


def _agreement_between(coarse: CandidateGrouping, fine: CandidateGrouping) -> float:
    """Agreement of labels above chance between two images of one coarse group that are of two fine ones."""
    pairs = []
    for rows in coarse.members:
        _, first = np.unique(fine.codes[rows], return_index=True)
        pairs.append(rows[np.sort(first)])
    return above_chance([rows for rows in pairs if len(rows) > 1], coarse.labels)


def _determines(fine: CandidateGrouping, coarse: CandidateGrouping, names: Sequence[Name | None]) -> bool:
    """Return whether the last piece of the fine key alone tells the coarse group."""
    last = [name.pieces[fine.place - 1] if name else None for name in names]
    pairs = {(piece, key) for piece, key in zip(last, coarse.keys, strict=True) if piece is not None}
    return len(pairs) <= 1.05 * len({piece for piece, _ in pairs})


def _is_better(other: CandidateGrouping, left: CandidateGrouping) -> bool:
    """Return whether a piece further right names the groups, and what stands left of it only numbers their images."""
    if other.kind == "suffix":
        counts_from_the_start = other.from_the_start >= FROM_THE_START > left.from_the_start
        return counts_from_the_start or (other.agreement >= PURE and left.agreement < BY_CHANCE)
    # Each of a few trials has all the subjects. That each trial has subjects of its own, numbered anew, looks the same;
    # whoever keeps both together is on the safe side.
    crossed = other.place == left.place - 1 and len(other.members) < 0.7 * len(left.members)
    return crossed and other.labelled and other.agreement > left.agreement - 0.3


def _prefix(names: Sequence[Name | None], labels: np.ndarray, stop: int) -> CandidateGrouping:
    keys = [name and name.text(0, stop) for name in names]
    rests = [name.text(stop, len(name.pieces)) if name else "" for name in names]
    return CandidateGrouping(keys, rests, labels, "prefix", stop)


def _piece(names: Sequence[Name | None], labels: np.ndarray, place: int) -> CandidateGrouping:
    keys = [name and name.pieces[place] for name in names]
    rests = [f"{name.text(0, place)} {name.text(place + 1, len(name.pieces))}" if name else "" for name in names]
    return CandidateGrouping(keys, rests, labels, "piece", place)


def _suffix(names: Sequence[Name | None], labels: np.ndarray, place: int) -> CandidateGrouping:
    keys = [name and name.text(place, len(name.pieces)) for name in names]
    rests = [name.text(0, place) if name else "" for name in names]
    return CandidateGrouping(keys, rests, labels, "suffix", place)


def _by_side(names: Sequence[Name], labels: np.ndarray) -> list[CandidateGrouping]:
    """Yield for names of several shapes all but the last pieces, or only the first ones."""
    found = []
    for count in (1, 2, 3, 4):
        left = [name.text(0, min(count, len(name.pieces))) for name in names]
        after = [name.text(count, len(name.pieces)) for name in names]
        found.append(CandidateGrouping(left, after, labels, "left", count))
        right = [name.text(0, _without_last(name, count)) for name in names]
        before = [name.text(_without_last(name, count), len(name.pieces)) for name in names]
        found.append(CandidateGrouping(right, before, labels, "right", count))
    found = [candidate for candidate in found if candidate.possible]
    return sorted(found, key=lambda candidate: -candidate.worth)[:1]


def _without_last(name: Name, count: int) -> int:
    """Number of pieces that are left without the last ones; all where that would leave none."""
    return len(name.pieces) - count if len(name.pieces) > count else len(name.pieces)


def _by_shape(names: Sequence[Name], labels: np.ndarray) -> list[CandidateGrouping]:
    """Yield for names of a few shapes, as of two hospitals, the first pieces that make groups in each of them."""
    shapes = [shape for shape, count in Counter(name.seps for name in names).items() if count >= 0.1 * len(names)]
    parts = []
    for shape in shapes:
        found = _by_place([name if name.seps == shape else None for name in names], labels)
        parts += [candidate for candidate in found[:1] if candidate.kind == "prefix"]
    if len(parts) < 2:
        return []
    keys = [next(filter(None, of_name), None) for of_name in zip(*(part.keys for part in parts), strict=True)]
    rests = [max(of_name, key=len) for of_name in zip(*(part.rests for part in parts), strict=True)]
    whole = CandidateGrouping(keys, rests, labels, "shapes", parts=parts)
    read = sum(key is not None for key in keys)
    return [whole] if whole.possible and read >= LEAST_COVERED * len(keys) else []


def _copies(paths: Sequence[str], names: Sequence[Name], labels: np.ndarray) -> list[CandidateGrouping]:
    """Files whose name is another one's with something after it, or before it, always of the same few forms: `-2`,
    ` copy`, `flip_`."""
    files = [path.rpartition("/")[0] + "/" + stem(path) for path in paths]
    ends = [range(1, len(name.pieces)) for name in names]
    starts = [file[: file.rfind("/") + 1] + name.seps[0] for file, name in zip(files, names, strict=True)]
    after = [
        [start + name.text(0, stop) for stop in stops] for start, name, stops in zip(starts, names, ends, strict=True)
    ]
    found = _with_added(files, after, labels, "copies")
    stems = [file.rpartition("/")[2] for file in files]
    if found or len(set(stems)) < len(stems):  # classes that are numbered by themselves have many names twice
        return found
    before = [
        [name.text(first, len(name.pieces)) + name.seps[-1] for first in stops]
        for name, stops in zip(names, ends, strict=True)
    ]
    return _with_added(stems, before, labels, "prefixed")


def _with_added(
    files: Sequence[str], shorter: Sequence[Sequence[str]], labels: np.ndarray, kind: str
) -> list[CandidateGrouping]:
    """Files that are one of their `shorter` names, which is there, with something of a few usual forms added."""
    there = set(files)
    originals = [
        next((name for name in names if name in there), file) for file, names in zip(files, shorter, strict=True)
    ]
    before = kind == "prefixed"
    added = [
        file[: len(file) - len(original)] if before else file[len(original) :]
        for file, original in zip(files, originals, strict=True)
    ]
    forms = Counter(added_form(rest) for rest in added if rest)
    usual = {form for form, count in forms.most_common(6) if count >= max(2, 0.05 * forms.total())}
    rests = [rest if added_form(rest) in usual else "" for rest in added]
    keys = [original if rest else file for file, original, rest in zip(files, originals, rests, strict=True)]
    sizes = Counter(keys)
    several = sum(size > 1 for size in sizes.values())
    enough = several >= LEAST_GROUPS and len(files) - rests.count("") >= LEAST_COPIES * len(files)
    return [CandidateGrouping(keys, rests, labels, kind)] if enough and max(sizes.values()) <= 0.4 * len(files) else []


def added_form(suffix: str) -> str:
    """Return what is added to a name as a regular expression for all numbers in its place."""
    return re.sub(r"\d+", _as_many_digits, plain(suffix))


def _as_many_digits(found: re.Match[str]) -> str:
    return rf"\d{{{len(found.group())}}}" if len(found.group()) > 2 else r"\d{1,2}"


def plain(text: str) -> str:
    """A regular expression for this very text, without signs that only guard against other uses."""
    return re.sub(r"\\([- #&~])", r"\1", re.escape(text))


def stem(path: str) -> str:
    """The name of a file without its ending."""
    name = path.rpartition("/")[2]
    return name.rpartition(".")[0] or name


def of_each_class(candidate: CandidateGrouping, paths: Sequence[str]) -> CandidateGrouping | None:
    """Return the same groups, where each class folder may have numbered its own; None where no group lies in two
    folders."""
    folders = [PurePosixPath(path).parent.name for path in paths]
    of_one_class = len(set(zip(folders, candidate.labels.tolist(), strict=True))) == len(set(folders))
    if candidate.kind not in ("prefix", "left") or not of_one_class:
        return None
    keys = [key and f"{folder}/{key}" for folder, key in zip(folders, candidate.keys, strict=True)]
    apart = CandidateGrouping(keys, candidate.rests, candidate.labels, candidate.kind + OF_EACH_CLASS, candidate.place)
    return apart if apart.possible and len(set(keys)) > len(set(candidate.keys)) else None
