"""Doubtful labels as a table that a person edits, by hand or on a page, and the table to train on that follows."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from common.errors import DataError
from common.files import write_text
from common.tables import csv_text, read_rows
from common.text import did_you_mean
from datasets.bundle import SPLITS, Samples
from datasets.copies import are_copies
from datasets.images import picture_of
from inference.labels.label_issues import COPY, OUTLIER, TWO
from inference.labels.review import percent

KEEP, DROP, RELABEL = "keep", "drop", "relabel:"
NEIGHBOURS = ("path", "label", "neighbour")
"""Columns of neighbours.csv: of each suspect and class the nearest pictures, in order."""


class Suspect(NamedTuple):
    """One row of suspects.csv."""

    path: str
    label: str
    suggested: str
    confidence: str
    """The probability of the suggested class."""
    kind: str
    other: str
    """Path of a copy that has the suggested label; empty for other kinds of suspect."""
    decision: str
    """keep, drop, or relabel:NAME."""
    decided: str
    """Author of the decision: nobody (empty), so the decision is a proposal; or `person`."""


def write_suspects(path: Path, suspects: Sequence[Suspect]) -> None:
    write_text(path, csv_text(Suspect._fields, suspects))


def read_suspects(path: Path, samples: Samples) -> list[Suspect]:
    """The rows of suspects.csv. Raises DataError: a decision that is none, or an image that the set does not have."""
    label_of = {name: samples.class_names[label] for name, label in zip(samples.paths, samples.labels, strict=True)}
    suspects = [Suspect(*(row[name] for name in Suspect._fields)) for row in read_rows(path, Suspect._fields)]
    for suspect in suspects:
        require_decision(suspect, samples.class_names)
        if label_of.get(suspect.path) != suspect.label:
            raise DataError(
                f"{path}: {samples.name} has no {suspect.path!r} with the label {suspect.label!r} now; remove"
                f" {path} to look anew"
            )
    return suspects


def require_decision(suspect: Suspect, class_names: Sequence[str]) -> None:
    """Raise DataError where the decision is not one of those that there are."""
    name = suspect.decision.removeprefix(RELABEL)
    if suspect.decision.startswith(RELABEL) and name not in class_names:
        raise DataError(f"{suspect.path!r}: {suspect.decision!r} names no class{did_you_mean(name, class_names)}")
    if not suspect.decision.startswith(RELABEL) and suspect.decision not in (KEEP, DROP):
        raise DataError(f"{suspect.path!r}: decision {suspect.decision!r} is not keep, drop or relabel:NAME")


def write_cleaned(path: Path, samples: Samples, suspects: Sequence[Suspect]) -> None:
    """The table of all images that are not dropped, for `--data`: path, label, split, what was changed and why, and the
    group where there are groups.

    Test images stay as they are. Pictures of a set without files are written beside the table, once."""
    for row in [] if has_files(samples) else np.flatnonzero(samples.splits >= 0).tolist():
        file = path.parent / "images" / f"{samples.paths[row]}.png"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            picture_of(samples, row).save(file)
    try:
        header = ("path", "label", "split", "change") + ("group",) * bool(samples.grouped_by)
        write_text(path, csv_text(header, cleaned(samples, suspects)), errors="strict")
    except UnicodeEncodeError as error:
        raise DataError(f"a table in UTF-8 cannot hold the name {error.object!r:.200}: rename the file") from None


def cleaned(samples: Samples, suspects: Sequence[Suspect]) -> Iterator[tuple[str, ...]]:
    of = {suspect.path: suspect for suspect in suspects}
    for row in np.flatnonzero(samples.splits >= 0).tolist():
        path, label, split = samples.paths[row], samples.class_names[samples.labels[row]], SPLITS[samples.splits[row]]
        suspect, change = of.get(path) if split != "test" else None, ""
        if suspect is not None and suspect.decision == DROP:
            continue
        if suspect is not None and suspect.decision.startswith(RELABEL):
            label = suspect.decision.removeprefix(RELABEL)
            thinks = f"the model thinks {suspect.suggested}, {percent(float(suspect.confidence))}"
            change = f"was {suspect.label}; {suspect.kind}, {thinks}"
        file = os.path.abspath(samples.file(row)) if has_files(samples) else f"images/{path}.png"
        group = samples.group_of(row)
        cells = (file, label, split, change)
        yield (*cells, "" if are_copies(group) else group) if samples.grouped_by else cells


def has_files(samples: Samples) -> bool:
    """Return whether each picture is a file of its own: not in memory, nor inside a shard."""
    return samples.pixels is None and samples.members is None


class SuspectsTable:
    """suspects.csv on the page (`review.Table`), with pictures of the two classes to compare with."""

    def __init__(self, folder: Path, samples: Samples) -> None:
        self.path, self.samples = folder / "suspects.csv", samples
        self.texts: dict[str, Any] = {
            "title": f"Decide on the labels of {samples.name}",
            "hint": "A model contradicts these labels, and may be wrong. Every decision is saved at once; the images"
            " stay as they are. A dashed button is what is proposed.",
            "prefix": RELABEL,
            "take": {"key": "r", "text": "relabel as", "decision": ""},
            "choices": [
                {"key": "k", "text": "keep", "decision": KEEP},
                {"key": "d", "text": "drop", "decision": DROP},
            ],
            "new_classes": False,
        }
        self.row_of = {name: row for row, name in enumerate(samples.paths)}
        self.neighbours: dict[tuple[str, str], list[int]] = {}
        near = folder / "neighbours.csv"
        for row in read_rows(near, NEIGHBOURS) if near.is_file() else ():
            if row["neighbour"] in self.row_of:
                found = self.neighbours.setdefault((row["path"], row["label"]), [])
                found.append(self.row_of[row["neighbour"]])

    @property
    def class_names(self) -> Sequence[str]:
        return self.samples.class_names

    def read(self) -> list[Suspect]:
        return read_suspects(self.path, self.samples)

    def decided(self, row: Suspect, decision: str, by: str) -> Suspect:
        suspect = row._replace(decision=decision, decided=by)
        require_decision(suspect, self.samples.class_names)
        return suspect

    def save(self, rows: Sequence[Suspect]) -> None:
        write_suspects(self.path, rows)
        write_cleaned(self.path.with_name("cleaned.csv"), self.samples, rows)

    def shown(self, row: Suspect) -> dict[str, Any]:
        thinks = f"{row.suggested} ({percent(float(row.confidence))})" if row.suggested else "none of the others"
        classes = dict.fromkeys(name for name in (row.label, row.suggested) if name)
        strips = [(f"labelled {name}", self.neighbours.get((row.path, name))) for name in classes]
        return {
            "row": self.row_of[row.path],
            "facts": [("label", row.label), ("the model thinks", thinks), ("why it is asked", reason(row))],
            "suggested": row.suggested,
            "other": self.row_of.get(row.other),
            "examples": [(title, rows) for title, rows in strips if rows],
        }


def reason(suspect: Suspect) -> str:
    """Say in a sentence why a label is doubted, as what a model thinks and no more."""
    if suspect.kind == COPY:
        return f"a copy of it is labelled {suspect.suggested}"
    if suspect.kind == OUTLIER:
        return "the model finds it unlike every other picture of the set"
    if suspect.kind == TWO:
        return f"the model thinks that it may show both {suspect.label} and {suspect.suggested}"
    return f"the model thinks {suspect.suggested} where the label says {suspect.label}"
