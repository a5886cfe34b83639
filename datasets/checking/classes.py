"""What `check` finds in class names and class sizes."""

import unicodedata
from collections import defaultdict

from datasets.sources.reading import Problem, Reading

FEW_IMAGES = 5
"""A class with fewer training images is reported."""

IMBALANCE = 10
"""So many times the images of the smallest class in the largest one are reported."""


def class_problems(reading: Reading) -> list[Problem]:
    """Classes that are never measured, tiny classes, imbalance, names that look alike."""
    home, *others = reading.splits  # train, or all there is
    problems = []
    filled = {label: count for label, count in reading.counts(home).items() if count}
    for label, count in filled.items():
        if count < FEW_IMAGES:
            detail = f"{count} images; {FEW_IMAGES} or more help"
            problems.append(Problem("few_images", label, home, label, detail=detail))
    for split in others:
        counts = reading.counts(split)
        for label in filled:
            if not counts.get(label):
                detail = f"{'empty folder' if label in counts else 'no such class'}: it is never measured"
                problems.append(Problem("class_missing", label, split, label, detail=detail))
    if len(filled) == 1:
        (label,) = filled
        problems.append(Problem("one_class", label, home, label, detail="nothing to tell it from"))
    if len(filled) > 1:
        (least, small), *_, (most, large) = sorted((count, label) for label, count in filled.items())
        if most > IMBALANCE * least:
            detail = f"{most:,} images of {large}, {least:,} of {small}: {most / least:.0f} to 1"
            problems.append(Problem("imbalance", small, home, small, detail=detail))
    return problems + _similar_names(reading)


def _similar_names(reading: Reading) -> list[Problem]:
    """Class names that a reader cannot tell apart, or that differ in case alone."""
    groups: dict[str, list[str]] = defaultdict(list)
    for label in sorted(set().union(*reading.classes.values())):
        groups[_plain(label).casefold()].append(label)
    problems = []
    for labels in groups.values():
        for label in labels[1:]:
            same_case = any(_plain(label) == _plain(other) for other in labels if other != label)
            kind = "class_names_differ_in_spaces" if same_case else "class_names_differ_in_case"
            problems.append(Problem(kind, label, label=label, other=labels[0], detail=f"{label!r} and {labels[0]!r}"))
    return problems


def _plain(name: str) -> str:
    """Without Unicode variants of the same letters, invisible characters, and differences in spacing."""
    text = unicodedata.normalize("NFKC", name)
    return " ".join("".join(c for c in text if unicodedata.category(c) != "Cf").split())
