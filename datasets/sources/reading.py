"""Result of the readers of folders, tables and shards: the images as a sample table, and all that is out of place.

`check` lists every problem; training raises the first that is an error, so both read a set in the same way.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import DataError
from common.options import operand
from common.shell import command
from datasets.bundle import LEFT_OUT, SPLITS, PathTable, Samples, split_code, split_name
from datasets.sources.problems import Problem, class_problems

SPLIT_FOLDERS = {
    "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "test": "test",
    "testing": "test",
}  # fmt: skip
"""Usual names of a split -> its name here."""
SPLIT_WORDS = (
    SPLIT_FOLDERS
    | dict.fromkeys(("dev", "devel", "development", "validate"), "val")
    | dict.fromkeys(("eval", "evaluation", "holdout"), "")
)
"""Words in a longer name; empty where they may mean val or test."""
SAID_ELSEWHERE = ("class_without_images", "class_missing")
"""Kinds of warnings that training says in a line of its own."""
ONLY_SCORED = ("one_class", "one_image_each")
"""Errors of sets that can be scored, and not learnt from; `require_complete` refuses to train on them."""


def split_word(name: str) -> tuple[str, str] | None:
    """Return the split that a word of a name means, and the rest of the name.

    None: it has no such word."""
    joined = re.sub("h[eo]ld[ _-]?out", "holdout", name, flags=re.IGNORECASE)
    words = [word.lower() for word in re.findall("[A-Z]?[a-z]+|[A-Z]+|[0-9]+", joined)]
    for place, word in enumerate(re.sub("(?<=.)(set|data|images)$", "", word) for word in words):
        if word in SPLIT_WORDS:
            return SPLIT_WORDS[word], " ".join(words[:place] + words[place + 1 :])
    return None


@dataclass(frozen=True)
class Reading:
    """The images of a folder, a table or a built-in set, the classes that each split names, and what is wrong."""

    source: str
    """The folder or table, for messages."""
    form: str
    """Form of the set in words: `split folders`, `class folders`, `table`, `built-in set digits`."""
    samples: Samples
    classes: dict[str, set[str]]
    """Split (empty where none is given) -> its class names, also of classes without an image; of pictures that may lack
    a label none."""
    found: Sequence[Problem] = ()
    """Problems of files, folders and rows, in the order of reading."""

    @classmethod
    def of(cls, samples: Samples) -> Reading:
        """Return the reading of a sample table, in the splits that it gives its images."""
        classes = {}
        for code in np.unique(samples.splits[samples.splits != LEFT_OUT]):
            labels = np.unique(samples.labels[samples.splits == code])
            classes[split_name(code)] = {samples.class_names[label] for label in labels}
        return cls(samples.name, f"built-in set {samples.name}", samples, classes)

    @cached_property
    def problems(self) -> list[Problem]:
        """Return all that is wrong: what was found, then the problems of the classes."""
        if not self.classes:
            return [*self.found]
        unread = Counter(one.label for one in self.found if one.kind in ("unread_picture", "unsupported_file"))
        counts, of_table = {split: self.counts(split) for split in self.splits}, self.form.startswith("table")
        return [*self.found, *class_problems(counts, unread, of_table=of_table)]

    @property
    def splits(self) -> list[str]:
        """Return the splits that have classes, train first."""
        return sorted(self.classes, key=("", *SPLITS).index)

    def counts(self, split: str) -> dict[str, int]:
        """Count the images of each class of one split, 0 for the empty classes."""
        named, sizes = self.classes.get(split, set()), self.samples.counts(split).tolist()
        return {name: size for name, size in zip(self.samples.class_names, sizes, strict=True) if name in named}

    def usable(self, left_out: Collection[str] = frozenset(), *, check: str = "", only_scored: bool = False) -> Samples:
        """Return the samples, with a note of each kind of problem that does not prevent training.

        `left_out`: paths whose problems do not count. `only_scored`: the set needs no training images.
        Raises DataError: the first error, and how many more there are; `check` is the command that lists them.
        """
        harmless = (*ONLY_SCORED, "empty_split") if only_scored else ONLY_SCORED
        counted = [one for one in self.problems if one.kind not in harmless and one.path not in left_out]
        if errors := [problem for problem in counted if problem.severity == "error"]:
            check = check or command("check", operand(self.source))
            more = f"; {len(errors) - 1} more" + f" are listed by: {check}" * bool(self.classes)
            more *= len(errors) > 1
            raise DataError(f"{self.source}: {errors[0]}{more}")
        return self.samples.note(*training_notes(self.problems))


def training_notes(problems: Collection[Problem]) -> Iterator[str]:
    """Yield a line for each kind of warning: the first problem, and how many more."""
    warnings = [one for one in problems if one.severity == "warning" and one.kind not in SAID_ELSEWHERE]
    for kind, count in Counter(one.kind for one in warnings).items():
        first = next(one for one in warnings if one.kind == kind)
        yield f"{first}" + f", and {count - 1} more" * (count > 1)


class Rows:
    """Collects images, one after another, into arrays, and what is out of place."""

    def __init__(self) -> None:
        self.paths, self.labels, self.codes, self.groups = PathTable(), array("i"), array("b"), array("i")
        self.numbers: dict[str, int] = {}
        """Class name -> its number in `labels`: classes as they come."""
        self.classes: dict[str, set[str]] = {}
        """Split -> its class names."""
        self.group_numbers: dict[str, int] = {}
        """Group name -> its number in `groups`: groups as they come."""
        self.problems: list[Problem] = []

    def add(self, path: str, label: str, split: str, group: str = "") -> None:
        self.classes.setdefault(split, set()).add(label)
        self.paths.append(path)
        self.labels.append(self.numbers.setdefault(label, len(self.numbers)))
        self.codes.append(split_code(split))
        self.groups.append(self.group_numbers.setdefault(group, len(self.group_numbers)) if group else -1)

    def problem(self, kind: str, path: str, split: str = "", label: str = "", detail: str = "") -> None:
        self.problems.append(Problem(kind, path, split, label, "", detail))

    def samples(self, name: str, root: Path, *, class_names: Sequence[str] = (), **columns: Any) -> Samples:
        """Return all that was added, its classes in this order, by default that of their names."""
        class_names = class_names or sorted(set().union(*self.classes.values()))
        number_of = {label: number for number, label in enumerate(class_names)}
        numbers = np.array([number_of[label] for label in self.numbers], np.int32)
        labels, splits = numbers[np.array(self.labels)], np.array(self.codes)
        if not self.group_numbers:
            columns["grouped_by"] = ""
        else:
            columns |= {"groups": np.array(self.groups, np.int32), "group_names": tuple(self.group_numbers)}
        return Samples(name, tuple(class_names), self.paths, labels, splits, root, **columns)
