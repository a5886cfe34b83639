"""`check`: everything that would make training on a set wrong, or that its owner would want to know, before it starts.

An error is a fault with which training would stop or its numbers would be wrong: pictures that cannot be read, a
picture in two splits or under two labels, class maps that differ. Everything else is a warning.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from datasets.checking.inspection import Inspection, expected_format, inspect_files, same_format
from datasets.checking.layout import SPLIT_ORDER, Finding, Layout, Picture, class_findings
from datasets.checking.near_duplicates import LEAST_SIDE, THUMBNAIL_SIZE, near_duplicates

Severity = Literal["error", "warning"]

KINDS: dict[str, tuple[Severity, str]] = {
    # files
    "unreadable": ("error", "the image is damaged, or the file cannot be opened"),
    "truncated": ("error", "the file ends before the picture does"),
    "zero_bytes": ("error", "an empty file"),
    "not_an_image": ("error", "something else under an image's name"),
    "decompression_bomb": ("error", "the header claims more pixels than Pillow agrees to decode"),
    "missing_file": ("error", "the table names a file that is not there"),
    "broken_link": ("error", "a link that leads nowhere, or in a circle"),
    "unreadable_folder": ("error", "a folder that cannot be listed"),
    "wrong_extension": ("warning", "a readable image whose name promises another format"),
    "unsupported_file": ("warning", "a file in a class folder that is not read"),
    "hidden_file": ("warning", "a hidden file in a class folder; not read"),
    "tiny_image": ("warning", "far smaller than the rest"),
    "huge_image": ("warning", "so large that decoding it holds up every epoch"),
    "blank_image": ("warning", "one colour all over"),
    # folders and tables
    "stray_image": ("warning", "an image outside every class folder; not read"),
    "stray_folder": ("warning", "a folder beside the split folders; not read"),
    "hidden_folder": ("warning", "a hidden folder where class folders are; not read"),
    "empty_split": ("error", "a split without class folders"),
    "two_split_folders": ("error", "two folders for the same split"),
    "split_without_classes": ("warning", "a split folder whose images have no labels; not read"),
    "empty_label": ("error", "a row of the table without a label"),
    "unknown_split": ("error", "a split the application does not know"),
    "duplicate_row": ("error", "the same file twice in the table: the loader refuses it"),
    "row_in_two_splits": ("error", "the same file in two splits of the table"),
    "row_with_two_labels": ("error", "the same file under two labels in the table"),
    "outside_root": ("warning", "the table names a file outside its own folder: it does not move with it"),
    # classes
    "empty_class": ("error", "a class without one training image"),
    "one_class": ("error", "there is only one class"),
    "class_not_in_train": ("error", "a class of val or test that is never trained"),
    "class_names_differ_in_spaces": ("error", "two classes whose names look the same"),
    "class_names_differ_in_case": ("warning", "two classes whose names differ in upper and lower case only"),
    "class_missing": ("warning", "a class that val or test does not have"),
    "few_images": ("warning", "a class with very few training images"),
    "imbalance": ("warning", "the largest class has many times the images of the smallest"),
    # pictures that are there more than once
    "duplicate_across_splits": ("error", "the same file in two splits: the score would be too good"),
    "duplicate_with_two_labels": ("error", "the same file under two labels"),
    "duplicate": ("warning", "the same file twice in one split"),
    "near_duplicate_across_splits": ("error", "the same picture in two splits: the score would be too good"),
    "near_duplicate_with_two_labels": ("warning", "nearly the same picture under two labels"),
    "near_duplicate": ("warning", "nearly the same picture twice in one split"),
}
"""Every kind of finding: its severity and what it means."""

HUGE_PIXELS = 50_000_000
TINY_SIDE = 32  # and less than a quarter of the median: a set of 8 x 8 digits has no tiny images

Progress = Callable[[Iterable[Inspection], int], Iterable[Inspection]]


@dataclass(frozen=True)
class CheckReport:
    """What was checked and what was found, most severe and most frequent kinds first."""

    layout: Layout
    findings: tuple[Finding, ...]
    too_small: int
    """Pictures that did not take part in the search for near duplicates."""

    @property
    def errors(self) -> int:
        return sum(severity(finding) == "error" for finding in self.findings)

    @property
    def exit_code(self) -> int:
        """3 when training would be wrong, else 0."""
        return 3 if self.errors else 0

    def notes(self) -> list[str]:
        """What limits the result, one line each."""
        notes = []
        if any(finding.kind in ("duplicate", "near_duplicate") and not finding.split for finding in self.findings):
            notes.append("no split is given: a random one may put a picture into train and its copy into val")
        if self.too_small:
            notes.append(f"{self.too_small:,} pictures are under {LEAST_SIDE} px: only exact copies of them are found")
        return notes

    def kinds(self) -> list[tuple[str, int, Finding]]:
        """(kind, count, first finding), in the order of the findings."""
        counts = Counter(finding.kind for finding in self.findings)
        first = {finding.kind: finding for finding in reversed(self.findings)}
        kinds = dict.fromkeys(finding.kind for finding in self.findings)
        return [(kind, counts[kind], first[kind]) for kind in kinds]


def severity(finding: Finding) -> Severity:
    return KINDS[finding.kind][0]


def check(layout: Layout, *, workers: int = 0, progress: Progress = lambda items, total: items) -> CheckReport:
    """Inspect every picture of a layout on disk, and compare them all. `progress` wraps the stream of inspections."""
    paths = [picture.path for picture in layout.pictures]
    inspections = list(progress(inspect_files(layout.root, paths, workers=workers), len(paths)))
    return report(layout, inspections)


def report(layout: Layout, inspections: Sequence[Inspection]) -> CheckReport:
    """Draw the conclusions from a layout and one inspection per picture of it."""
    findings = layout.findings + class_findings(layout)
    findings += _file_findings(layout.pictures, inspections)
    findings += _size_findings(layout.pictures, inspections)
    unique = _first_of_each(layout.pictures, inspections, findings)
    compared = [k for k in unique if min(inspections[k].width, inspections[k].height) >= LEAST_SIDE]
    findings += _near_findings([layout.pictures[k] for k in compared], [inspections[k] for k in compared])
    return CheckReport(layout, _ordered(findings), len(unique) - len(compared))


def _ordered(findings: list[Finding]) -> tuple[Finding, ...]:
    counts = Counter(finding.kind for finding in findings)
    order = list(KINDS)
    return tuple(
        sorted(
            findings,
            key=lambda f: (severity(f) != "error", -counts[f.kind], order.index(f.kind), SPLIT_ORDER[f.split], f.path),
        )
    )


def _file_findings(pictures: Sequence[Picture], inspections: Sequence[Inspection]) -> list[Finding]:
    findings = []
    for picture, seen in zip(pictures, inspections, strict=True):
        if seen.fault:
            findings.append(Finding.about(seen.fault, picture, seen.detail))
        elif not same_format(seen.format, expected := expected_format(picture.path)) and expected:
            findings.append(Finding.about("wrong_extension", picture, f"holds {seen.format}"))
    return findings


def _size_findings(pictures: Sequence[Picture], inspections: Sequence[Inspection]) -> list[Finding]:
    sides = np.array([min(seen.width, seen.height) for seen in inspections if not seen.fault])
    tiny = min(TINY_SIDE, np.median(sides) / 4) if len(sides) else 0
    findings = []
    for picture, seen in zip(pictures, inspections, strict=True):
        if seen.fault:
            continue
        size = f"{seen.width} x {seen.height} px"
        if min(seen.width, seen.height) < tiny:
            findings.append(
                Finding("tiny_image", *picture, detail=f"{size}; shorter side usually {np.median(sides):.0f}")
            )
        if seen.width * seen.height > HUGE_PIXELS:
            findings.append(Finding.about("huge_image", picture, size))
        if seen.thumbnail.count(seen.thumbnail[0]) == len(seen.thumbnail):
            findings.append(Finding.about("blank_image", picture, f"grey value {seen.thumbnail[0]}"))
    return findings


def _first_of_each(
    pictures: Sequence[Picture], inspections: Sequence[Inspection], findings: list[Finding]
) -> list[int]:
    """Indices of the readable pictures, each content once; reports the copies to `findings`."""
    groups: dict[bytes, list[int]] = defaultdict(list)
    for index, seen in enumerate(inspections):
        if not seen.fault:
            groups[seen.digest].append(index)
    for group in groups.values():
        earlier: dict[tuple[str, str], Picture] = {}  # the first of each split and label
        for index in group:
            picture = pictures[index]
            kinds: dict[str, Finding] = {}
            for other in earlier.values():
                for kind in _relations(picture, other):
                    kinds.setdefault(kind, Finding.about(kind, picture, _where(picture, other), other=other.path))
            findings += kinds.values()
            earlier.setdefault((picture.split, picture.label), picture)
    return [group[0] for group in groups.values()]


def _near_findings(pictures: Sequence[Picture], inspections: Sequence[Inspection]) -> list[Finding]:
    """One finding per picture and kind, with the most similar earlier picture as the other one."""
    raw = b"".join(seen.thumbnail for seen in inspections)
    thumbnails = np.frombuffer(raw, np.uint8).reshape(-1, THUMBNAIL_SIZE, THUMBNAIL_SIZE)
    (left, right), correlation, mirrored = near_duplicates(thumbnails)
    best: dict[tuple[str, int], Finding] = {}
    for k in np.argsort(-correlation, kind="stable"):
        other, picture = pictures[left[k]], pictures[right[k]]  # left < right: the earlier split first
        detail = f"{_where(picture, other)}; {'mirrored, ' if mirrored[k] else ''}similarity {correlation[k]:.3f}"
        for kind in _relations(picture, other):
            finding = Finding.about(f"near_{kind}", picture, detail, other=other.path)
            best.setdefault((kind, int(right[k])), finding)
    return list(best.values())


def _relations(picture: Picture, other: Picture) -> list[str]:
    """What is wrong with one picture being there as both."""
    kinds = []
    if picture.split != other.split:
        kinds.append("duplicate_across_splits")
    if picture.label != other.label:
        kinds.append("duplicate_with_two_labels")
    return kinds or ["duplicate"]


def _where(picture: Picture, other: Picture) -> str:
    parts = []
    if picture.split != other.split:
        parts.append(f"{picture.split} and {other.split}")
    if picture.label != other.label:
        parts.append(f"{picture.label} and {other.label}")
    return ", ".join(parts) or f"both {picture.label}"
