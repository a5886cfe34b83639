"""The pictures to label next as a table that a person fills, on a page or in any other program, and the table to train
on that follows from it."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.errors import DataError
from common.files import write_text
from common.tables import csv_text, read_rows
from common.text import printable
from datasets.bundle import SPLITS, Samples
from inference.labels.review import MOST_EXAMPLES, percent

LABEL, SKIP = "label:", "skip"
SKIPPED = "yes"
LONGEST = 200
"""Characters of a class name."""
REASONS = {
    "centre": "it is typical of many pictures that have no label yet",
    "uncertain": "the model is unsure of it and of pictures like it",
}


class Label(NamedTuple):
    """Label that a person gave a picture."""

    name: str
    split: str = ""
    """Split, if the labelled set names its splits."""


class Pick(NamedTuple):
    """One row of picks.csv."""

    path: str
    reason: str
    """centre: typical of many pictures; or uncertain."""
    score: str
    """Score of a pick: for a centre 1 / (1 + distance to its cluster's centre), for an uncertain one 1 less the guess's
    lead."""
    guess: str
    """Class that the model thinks it is; empty while there is none."""
    confidence: str
    second: str
    """The class that it thinks next likely."""
    label: str
    """Class that a person gave; empty: none yet."""
    skipped: str
    """`yes`: a person wants no label for it."""
    decided: str
    """Maker of the decision: `person` on the page; empty: nobody, or whoever filled the column `label`."""

    @property
    def decision(self) -> str:
        """Decision as one word: label:NAME, skip, or empty."""
        if self.skipped:
            return SKIP
        return f"{LABEL}{self.label}" if self.label else ""


def write_picks(path: Path, picks: Sequence[Pick]) -> None:
    write_text(path, csv_text(Pick._fields, picks))


def read_picks(path: Path) -> list[Pick]:
    """The rows of picks.csv. Raises DataError: it lacks a column, or holds no class name where one belongs."""
    picks = []
    for row in read_rows(path, Pick._fields):
        pick = Pick(*(row[name] for name in Pick._fields))
        pick = pick._replace(label=pick.label.strip(), skipped=SKIPPED if pick.skipped.strip() else "")
        if pick.label:
            require_class_name(pick.label, pick.path)
        # A label that was filled in elsewhere is a person's, too.
        picks.append(pick._replace(decided="person" if pick.decision else ""))
    return picks


def require_class_name(name: str, path: str) -> None:
    """Raise DataError where a name is none for a class: empty, on two lines, or very long."""
    if not name.strip() or len(name) > LONGEST or printable(name) != name:
        raise DataError(f"{path!r}: {name[:LONGEST]!r} is no class name: 1 to {LONGEST} printable signs")


def write_labels(path: Path, labels: Mapping[str, Label]) -> None:
    """Write the table for `train`: path and label, and the split where one is known of any; of others it is train.
    Raises DataError: a path that a table in UTF-8 cannot hold."""
    splits = any(label.split for label in labels.values())
    rows = ((name, label.name, *((label.split or SPLITS[0],) * splits)) for name, label in labels.items())
    try:
        write_text(path, csv_text(("path", "label") + ("split",) * splits, rows), errors="strict")
    except UnicodeEncodeError as error:
        raise DataError(f"a table in UTF-8 cannot hold the name {error.object!r:.200}: rename the file") from None


def read_labels(path: Path) -> dict[str, Label]:
    """Read what `write_labels` left; nothing where there is no table yet. Files that are gone are left out."""
    rows = read_rows(path, ("path", "label")) if path.is_file() else []
    return {row["path"]: Label(row["label"], row.get("split", "")) for row in rows if os.path.isfile(row["path"])}


def write_skipped(path: Path, skipped: Iterable[str]) -> None:
    write_text(path, csv_text(("path",), ((name,) for name in skipped)))


def read_skipped(path: Path) -> list[str]:
    return [row["path"] for row in read_rows(path, ("path",))] if path.is_file() else []


class PicksTable:
    """picks.csv on the page (`review.Table`); also labels.csv, for `train`, with all labels so far, and skipped.csv."""

    def __init__(
        self,
        folder: Path,
        samples: Samples,
        labels: Mapping[str, Label],
        *,
        features: NDArray[np.float32] | None = None,
    ) -> None:
        """`labels`: those known so far, by path; `features` (N, D) of length 1, by which the nearest labelled pictures
        are found."""
        self.path, self.samples, self.features = folder / "picks.csv", samples, features
        self.texts: dict[str, Any] = {
            "title": f"Label pictures of {samples.name}",
            "hint": "Every label is saved at once; the pictures stay as they are."
            " Press a class's key, or c to type one.",
            "prefix": LABEL,
            "take": {"key": "y", "text": "yes,", "decision": ""},
            "choices": [{"key": "s", "text": "skip: no label for it", "decision": SKIP}],
            "new_classes": True,
        }
        self.row_of = {name: row for row, name in enumerate(samples.paths)}
        own = {pick.path for pick in read_picks(self.path)}
        self.earlier = {path: label for path, label in labels.items() if path not in own}
        self.skipped_earlier = [path for path in read_skipped(folder / "skipped.csv") if path not in own]
        self.known = dict.fromkeys(label.name for label in labels.values())

    @property
    def class_names(self) -> Sequence[str]:
        return list(self.known)

    def read(self) -> list[Pick]:
        picks = read_picks(self.path)
        for pick in picks:
            if pick.path not in self.row_of:
                raise DataError(f"{self.path}: {pick.path!r} is no picture of {self.samples.name}; remove {self.path}")
        self.known |= dict.fromkeys(pick.label for pick in picks if pick.label)
        return picks

    def decided(self, row: Pick, decision: str, by: str) -> Pick:
        if decision == SKIP:
            return row._replace(label="", skipped=SKIPPED, decided=by)
        if decision and not decision.startswith(LABEL):
            raise DataError(f"{row.path!r}: decision {decision!r} is not {LABEL}NAME or {SKIP}")
        name = decision.removeprefix(LABEL).strip()
        if decision:
            require_class_name(name, row.path)
            self.known.setdefault(name)
        return row._replace(label=name, skipped="", decided=by)

    def save(self, rows: Sequence[Pick]) -> None:
        write_picks(self.path, rows)
        write_labels(self.path.with_name("labels.csv"), self.labels(rows))
        skipped = [*self.skipped_earlier, *(pick.path for pick in rows if pick.skipped)]
        write_skipped(self.path.with_name("skipped.csv"), skipped)

    def labels(self, picks: Sequence[Pick]) -> dict[str, Label]:
        """All labels, those of these picks included."""
        return self.earlier | {pick.path: Label(pick.label) for pick in picks if pick.label}

    def shown(self, row: Pick) -> dict[str, Any]:
        facts = [("asked because", REASONS.get(row.reason, row.reason))]
        if row.guess:
            then = f", then {row.second}" if row.second else ""
            facts.append(("the model thinks", f"{row.guess} ({percent(float(row.confidence))}){then}"))
        strips = [(f"labelled {name}", self.nearest(row.path, name)) for name in (row.guess, row.second) if name]
        return {
            "row": self.row_of[row.path],
            "facts": facts,
            "suggested": row.guess,
            "other": None,
            "examples": [(title, rows) for title, rows in strips if rows],
        }

    def nearest(self, path: str, name: str) -> list[int]:
        """The nearest pictures that had this label before this round."""
        labelled = [self.row_of[other] for other, label in self.earlier.items() if label.name == name]
        if self.features is None or not labelled:
            return labelled[:MOST_EXAMPLES]
        likeness = self.features[labelled] @ self.features[self.row_of[path]]
        return [labelled[place] for place in np.argsort(-likeness, kind="stable")[:MOST_EXAMPLES]]
