"""`check`: everything that would make training on a set wrong, or that its owner would want to know, before it starts.

An error is a fault with which training would stop or its numbers would be wrong: pictures that cannot be read, a
picture in two splits or under two labels, class maps that differ. Everything else is a warning.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tqdm import tqdm

from datasets.bit_depth import narrow_range
from datasets.bundle import LEFT_OUT, SPLITS, UNSPLIT, Samples, evenly, split_name
from datasets.checking.shortcuts import MOST_IMAGES, Shortcut, find_shortcuts
from datasets.config import USUAL_COLUMNS, Columns
from datasets.copies import merged, near_copies, units_of
from datasets.fitting import never_seen
from datasets.groups import group_line, torn, with_groups
from datasets.known import BAR, Known, keys_of
from datasets.look import LEAST_SIDE, Looked, look_at, look_at_pixels
from datasets.processes import begin_loader
from datasets.sources import read
from datasets.sources.problems import KINDS, Problem
from datasets.sources.reading import Reading
from datasets.suspect import suspect_groups

SPLIT_ORDER = ("", *SPLITS)
"""Order of the splits: the later one of two equal pictures is out of place."""
_POOL_THRESHOLD = 256  # fewer files are read sooner than processes have started
_CHUNK, _WAITING = 32, 65_536  # files that a process is given at once, and that wait for one
_ALIASES = {"MPO": "JPEG", "DIB": "BMP", "APNG": "PNG"}  # what Pillow calls variants of the same file format


@dataclass(frozen=True)
class CheckReport:
    """Result of `check`: what was checked and what was found, most severe and most frequent kinds first."""

    reading: Reading
    findings: tuple[Problem, ...]
    shortcuts: tuple[Shortcut, ...]
    """Facts that tell the class, the one that tells most first."""
    notes: tuple[str, ...]
    """Limits of the result, and how much of the pictures a model never sees, one line each."""

    @property
    def errors(self) -> int:
        return sum(finding.severity == "error" for finding in self.findings)

    @property
    def exit_code(self) -> int:
        """Return 3 when training would be wrong, else 0."""
        return 3 if self.errors else 0

    @property
    def groups(self) -> str:
        """Return a line on the number of groups; empty where there are none."""
        return group_line(self.reading.samples)

    def kinds(self) -> list[tuple[int, Problem]]:
        """Return the count of each kind and its first finding, in the order of the findings."""
        counts = Counter(finding.kind for finding in self.findings)
        first = {finding.kind: finding for finding in reversed(self.findings)}
        return [(counts[kind], first[kind]) for kind in dict.fromkeys(finding.kind for finding in self.findings)]


def check_source(
    source: str,
    *,
    data_root: Path = Path("data"),
    columns: Columns = USUAL_COLUMNS,
    workers: int = 0,
    sample: int | None = None,
    near: bool = True,
) -> CheckReport:
    """Read images as training does, and inspect those in use, or `sample` of them.

    `near`: look for near duplicates, too."""
    reading = read(source, data_root, columns=columns)
    reading = replace(reading, samples=with_groups(reading.samples, columns.group))
    samples = reading.samples
    used = np.flatnonzero(samples.splits != LEFT_OUT)
    rows = _by_split_and_path(samples, used if sample is None else used[evenly(len(used), sample)])
    known = look_anew(samples, rows, workers=workers, with_facts=MOST_IMAGES)
    contents = _contents(rows, known)
    readable = known.readable(rows)
    distinct = np.flatnonzero(readable & (contents == np.arange(len(rows))))
    large = distinct[known.compared(rows[distinct])] if near else distinct[:0]
    pairs, correlation, mirrored = near_copies(known.thumbnails, rows[large])
    pairs = large[pairs]
    findings = [
        *reading.problems,
        *torn(samples),
        *_own_findings(samples, rows, known),
        *_exact_findings(samples, rows, contents),
        *_near_findings(samples, rows[pairs], correlation, mirrored),
    ]
    suspect = suspect_groups(samples, drawn=bool((samples.splits == UNSPLIT).any()))
    if suspect is not None:
        findings.append(Problem("groups_in_names", samples.paths[int(used[0])], detail=suspect.sentence))
    grouped = samples if suspect is None else with_groups(samples, suspect.option)
    units = merged(contents, units_of(grouped, rows), pairs=pairs)
    shortcuts = find_shortcuts(samples, rows, known, units)
    findings += [_shortcut(samples, one) for one in shortcuts]
    too_small, unread, is_copied = len(distinct) - len(large), len(used) - len(rows), ("duplicate", "near_duplicate")
    sizes, labels = known.sizes[rows[readable]], samples.labels[rows[readable]]
    notes = {
        "no split is given: train keeps duplicates in one split, a split of your own may not": any(
            finding.kind in is_copied and not finding.split for finding in findings
        ),
        f"{too_small:,} pictures are under {LEAST_SIDE} px: only their exact duplicates are found": near and too_small,
        f"{unread:,} pictures were not read: their faults and duplicates are not known": unread,
        "near duplicates were not looked for": not near,
        never_seen(sizes, labels, samples.class_names): True,
    }
    said = tuple(note for note, holds in notes.items() if note and holds)
    return CheckReport(reading, _ordered(findings), tuple(shortcuts), said)


def _shortcut(samples: Samples, found: Shortcut) -> Problem:
    label = samples.class_names[samples.labels[found.row]]
    return Problem("shortcut", samples.paths[found.row], label=label, detail=str(found))


def look_anew(samples: Samples, rows: np.ndarray, *, workers: int, with_facts: int) -> Known:
    """Look at the whole of these images, in so many processes.

    `with_facts`: facts of so many, spread over the rows."""
    known, wanted = Known(samples.splits), np.isin(np.arange(len(rows)), evenly(len(rows), with_facts)).tolist()
    found = _in_processes(samples, rows.tolist(), wanted, workers)
    for row, one in zip(rows.tolist(), tqdm(found, "check", len(rows), unit="image", **BAR), strict=True):
        known.put(row, one)
    return known


def _in_processes(samples: Samples, rows: list[int], with_facts: list[bool], workers: int) -> Iterator[Looked]:
    """Yield what a look at each image finds, in order, from so many processes.

    From this one for 0, or for few files."""
    if samples.pixels is not None:
        for row, facts in zip(rows, with_facts, strict=True):
            yield look_at_pixels(samples.pixels[row], with_facts=facts)
        return
    if workers < 2 or len(rows) < _POOL_THRESHOLD:
        yield from map(_whole, map(samples.file, rows), with_facts)
        return
    # "spawn": a fork would copy torch and its threads where the caller has imported it.
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=begin_loader)
    try:
        for start in range(0, len(rows), _WAITING):
            part = slice(start, start + _WAITING)
            yield from pool.map(_whole, map(samples.file, rows[part]), with_facts[part], chunksize=_CHUNK)
    finally:
        pool.shutdown(cancel_futures=True)


def _whole(file: Any, with_facts: bool) -> Looked:
    return look_at(file, with_facts=with_facts)


def _contents(rows: np.ndarray, known: Known) -> np.ndarray:
    """Return for each place in `rows` the first one of equal content: int64 (n,).

    Itself where it cannot be read."""
    contents, readable = np.arange(len(rows)), np.flatnonzero(known.readable(rows))
    _, first, number = np.unique(keys_of(known.digests[rows[readable]]), return_index=True, return_inverse=True)
    contents[readable] = readable[first[number]]
    return contents


def _by_split_and_path(samples: Samples, rows: np.ndarray) -> np.ndarray:
    """Sort rows by the order of their splits and, within one, by path."""
    by_path = np.array(sorted(rows.tolist(), key=samples.paths.__getitem__), np.int64)
    place = np.array([SPLIT_ORDER.index(split_name(code)) for code in range(-1, len(SPLITS))])
    return by_path[np.argsort(place[samples.splits[by_path] + 1], kind="stable")]


def _picture(samples: Samples, row: int) -> Problem:
    """Name an image in a finding that has no kind yet."""
    label = samples.class_names[samples.labels[row]]
    return Problem("", samples.paths[row], split_name(samples.splits[row]), label)


def _ordered(findings: list[Problem]) -> tuple[Problem, ...]:
    counts, order = Counter(finding.kind for finding in findings), list(KINDS)

    def place(one: Problem) -> tuple[object, ...]:
        return one.severity != "error", -counts[one.kind], order.index(one.kind), SPLIT_ORDER.index(one.split), one.path

    return tuple(sorted(findings, key=place))


def _own_findings(samples: Samples, rows: np.ndarray, known: Known) -> list[Problem]:
    """Find what is wrong with each picture by itself."""
    findings = [
        _picture(samples, row)._replace(kind=fault.kind, detail=fault.detail) for row, fault in known.faults.items()
    ]
    readable = rows[known.readable(rows)]
    for row in readable.tolist():
        found = known.formats[row].decode()
        if found and wrong_extension(samples.paths[row], found):
            findings.append(_picture(samples, row)._replace(kind="wrong_extension", detail=f"holds {found}"))
    blank = [row for row in readable.tolist() if not np.ptp(known.thumbnails[row])]
    for row in blank:
        grey = known.thumbnails[row, 0, 0]
        findings.append(_picture(samples, row)._replace(kind="blank_image", detail=f"grey value {grey}"))
    if len(blank) > 1 and len(blank) == len(readable):
        findings.append(_picture(samples, rows[0])._replace(kind="all_blank", detail=f"{len(blank):,} pictures"))
    if len(rows):
        most = rows[known.largest[rows].argmax()]
        if fault := narrow_range(int(known.largest[most])):
            findings.append(_picture(samples, most)._replace(kind="narrow_range", detail=fault))
    return findings


def wrong_extension(path: str, file_format: str) -> bool:
    """Return whether an extension that Pillow knows promises another format than the file has."""
    promised = Image.registered_extensions().get(Path(path).suffix.lower())
    return promised is not None and promised != _ALIASES.get(file_format, file_format)


def _exact_findings(samples: Samples, rows: np.ndarray, contents: np.ndarray) -> Iterator[Problem]:
    """Yield a finding per picture and kind, with the earliest picture of equal number in `contents`."""
    earlier: dict[int, dict[tuple[str, str], Problem]] = defaultdict(dict)  # the first of each split and label
    for place in np.flatnonzero(np.bincount(contents)[contents] > 1).tolist():
        picture, known = _picture(samples, rows[place]), earlier[contents[place]]
        copies = (problem for other in reversed(known.values()) for problem in _copies(picture, other))
        yield from {problem.kind: problem for problem in copies}.values()
        known.setdefault((picture.split, picture.label), picture)


def _near_findings(samples: Samples, pairs: np.ndarray, correlation: np.ndarray, mirrored: np.ndarray) -> list[Problem]:
    """Return one finding per picture and kind; the other picture is the most similar earlier one."""
    left, right = pairs
    best: dict[tuple[str, int], Problem] = {}
    for k in np.argsort(-correlation, kind="stable"):
        other, picture = _picture(samples, left[k]), _picture(samples, right[k])  # the earlier split first
        near = f"{'mirrored, ' if mirrored[k] else ''}similarity {correlation[k]:.3f}"
        for problem in _copies(picture, other, near):
            best.setdefault((problem.kind, int(right[k])), problem)
    return list(best.values())


def _copies(picture: Problem, other: Problem, near: str = "") -> Iterator[Problem]:
    """Report one picture that is there twice.

    `near` says how alike they are, if they are not the same."""
    pairs = {
        "duplicate_across_splits": (picture.split, other.split),
        "duplicate_with_two_labels": (picture.label, other.label),
    }
    apart = {kind: f"{this} and {that}" for kind, (this, that) in pairs.items() if this != that}
    where = ", ".join(apart.values()) or f"both {picture.label}"
    for kind in apart or ["duplicate"]:
        named, detail = (f"near_{kind}", f"{where}; {near}") if near else (kind, where)
        yield picture._replace(kind=named, detail=detail, other=other.path)
