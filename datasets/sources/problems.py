"""Kinds of faults that a set of images can have, a table in problems.toml; and the faults of its classes."""

import re
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from common.text import pluralise
from datasets.config import IMBALANCE

Severity = Literal["error", "warning"]

KINDS: dict[str, tuple[Severity, str]] = {
    kind: (severity, meaning)
    for kind, (severity, meaning) in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8")).items()
}
"""Every kind of fault: its severity and what it means."""

FEW_IMAGES = 5
"""A class with fewer training images is reported."""
MOST_GRADES = 20
"""Number of different decimal numbers above which they are no classes, such as half stars, but measurements."""
_NUMBER = re.compile(r"[+-]?\d+(\.\d*|,00?)?")

Counts = Mapping[str, Mapping[str, int]]
"""Split, train or all there is first -> its classes -> their images, 0 for an empty folder."""


class Problem(NamedTuple):
    """One fault. `kind` is a key of KINDS; `other` is the second file of a pair."""

    kind: str
    path: str
    split: str = ""
    label: str = ""
    other: str = ""
    detail: str = ""

    @property
    def severity(self) -> Severity:
        return KINDS[self.kind][0]

    def __str__(self) -> str:
        return f"{self.path!r}: {KINDS[self.kind][1]}" + (f" ({self.detail})" if self.detail else "")


def class_problems(counts: Counts, unread: Mapping[str, int], *, of_table: bool) -> Iterator[Problem]:
    """Yield the faults of classes: their sizes, their splits and their names.

    `unread`: number of files of each class that are of a kind that is not read. `of_table`: a spreadsheet may have
    written the names; folders a person has made.
    """
    home, *others = counts
    for label, count in counts[home].items():
        files = unread.get(label, 0)
        if not count and (files or any(counts[split].get(label) for split in others)):
            detail = f"it holds {pluralise(files, 'file')} of a kind that is not read; " * bool(files)
            detail += "no image to learn it from: fill or remove it"
            yield Problem("empty_class", label, home, label, detail=detail)
        elif not count:
            yield Problem("class_without_images", label, home, label)
        elif count < FEW_IMAGES:
            detail = f"{pluralise(count, 'image')}; {FEW_IMAGES} or more help, the more so from scratch"
            yield Problem("few_images", label, home, label, detail=detail)
    for split in others:
        yield from _against_train(split, counts[split], counts[home])
    yield from _sizes({label: count for label, count in counts[home].items() if count}, home, alone=not others)
    labels = sorted(set().union(*counts.values()))
    yield from _no_classes(labels, home)
    yield from _similar_names(labels, "class_names_same" if of_table else "class_folders_same")


def _against_train(split: str, counts: Mapping[str, int], trained: Mapping[str, int]) -> Iterator[Problem]:
    for label, count in counts.items():
        if label not in trained:
            detail = f"{pluralise(count, 'image')} in {split}; train has {', '.join(list(trained)[:10])}"
            yield Problem("class_not_in_train", label, split, label, detail=detail)
    for label in trained:
        if trained[label] and not counts.get(label):
            detail = f"{'empty folder' if label in counts else 'no such class'}: it is never measured"
            yield Problem("class_missing", label, split, label, detail=detail)


def _sizes(counts: Mapping[str, int], home: str, *, alone: bool) -> Iterator[Problem]:
    """Yield what is wrong with the number of classes, or with their sizes.

    `alone`: there is no other split."""
    if len(counts) == 1:
        (label,) = counts
        yield Problem("one_class", label, home, label, detail="nothing to tell it from")
    if len(counts) < 2:
        return
    if alone and max(counts.values()) == 1:
        label, detail = next(iter(counts)), f"{pluralise(len(counts), 'class')} of one image each"
        yield Problem("one_image_each", label, home, label, detail=detail)
    (least, small), *_, (most, large) = sorted((count, label) for label, count in counts.items())
    if most > IMBALANCE * least:
        detail = f"{most:,} images of {large}, {least:,} of {small}: {most / least:.0f} to 1; watch the balanced"
        detail += " accuracy, which chooses the epoch then, and try --balance sampler"
        yield Problem("imbalance", small, home, small, detail=detail)


def _no_classes(labels: list[str], home: str) -> Iterator[Problem]:
    """Yield a problem where labels join several (multi-label), or are measurements (regression)."""
    for sign in "|;,/+&_ ":
        joined = [[part.strip() for part in label.split(sign)] for label in labels if sign in label]
        parts = Counter(part for label in joined for part in label)
        if sign not in "|;,":  # signs that occur in names, too: the parts have to be classes by themselves as well
            alone = sum(part in labels for part in parts)
            joined = joined if alone > len(parts) / 2 else []
        if joined and sum(count > 1 for count in parts.values()) > len(parts) / 2:  # most occur in several labels
            first = next(label for label in labels if sign in label)
            detail = (
                f"{sign!r} joins {len(parts)} labels into {len(joined)} combinations, such as {first!r}, and each is "
                "trained as a class of its own; keep one label per image, or train one model for each kind of label"
            )
            yield Problem("multi_label", first, home, first, detail=detail)
            break
    try:
        numbers = sorted(map(float, labels))
    except ValueError:
        return
    if len(numbers) > MOST_GRADES and not all(number.is_integer() for number in numbers):
        detail = (
            f"{len(numbers)} different decimal numbers, {numbers[0]:g} to {numbers[-1]:g}; this application tells "
            "classes apart: put a few ranges in their place, such as low, middle, high"
        )
        yield Problem("regression", labels[0], home, labels[0], detail=detail)


def _similar_names(names: list[str], same_kind: str) -> Iterator[Problem]:
    """Yield names that look the same, that are one number, or that differ in case alone."""
    known: dict[tuple[str, object], str] = {}
    for label in names:
        plain = _plain(label)
        is_number = _NUMBER.fullmatch(plain) and not _follows(plain, names)
        same = float(plain.replace(",", ".")) if is_number else plain
        for kind, key in ((same_kind, same), ("class_names_differ_in_case", plain.casefold())):
            other = known.setdefault((kind, key), label)
            if other != label:
                yield Problem(kind, label, label=label, other=other, detail=f"{label!r} and {other!r}")
                break


def _follows(name: str, names: list[str]) -> bool:
    """Return whether a name is a section's or a version's, as 1.10 is where there is 1.9."""
    whole, _, part = name.rpartition(".")
    return part.isdecimal() and part[0] != "0" and f"{whole}.{int(part) - 1}" in names


def _plain(name: str) -> str:
    """Return a name without Unicode variants of letters, invisible characters and differences in spacing."""
    text = unicodedata.normalize("NFKC", name)
    return " ".join("".join(c for c in text if unicodedata.category(c) != "Cf").split())
