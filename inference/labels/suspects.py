"""Keep doubtful labels as a table to edit and one to train on."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from common.errors import DataError
from common.files import temporary_path, write_text
from common.tables import csv_text, read_rows
from common.text import did_you_mean
from datasets.bundle import SPLITS, TEST, Samples
from datasets.copies import are_copies
from datasets.images import picture_of
from inference.labels.label_issues import COPY, OUTLIER, TWO
from inference.labels.review import Review, require_share, write_utf8

KEEP, DROP, RELABEL = "keep", "drop", "relabel:"


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


def read_suspects(path: Path, samples: Samples, row_of: Mapping[str, int] | None = None) -> list[Suspect]:
    """Read suspects.csv; `row_of`: the sample of each path, where it is known.

    Raises DataError: a decision or a confidence that is none, or an image that the set does not have."""
    row_of = row_of or {name: row for row, name in enumerate(samples.paths)}
    suspects = [Suspect(*(row[name] for name in Suspect._fields)) for row in read_rows(path, Suspect._fields)]
    for suspect in suspects:
        require_decision(suspect, samples.class_names)
        require_share(suspect.confidence, suspect.path)
        row = row_of.get(suspect.path)
        if row is None or samples.class_names[samples.labels[row]] != suspect.label:
            raise DataError(
                f"{path}: {samples.name} has no {suspect.path!r} with the label {suspect.label!r} now; remove"
                f" {path} to search again"
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
    """Write the table of all images that are not dropped.

    Its columns are path, label, split, what was changed and why, and the group where there are groups. Test images
    stay as they are. Pictures of a set without files are written next to the table, once."""
    for row in [] if has_files(samples) else np.flatnonzero(samples.splits >= 0).tolist():
        file = path.parent / "images" / f"{samples.paths[row]}.png"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            aside = temporary_path(file)  # a picture cut off by a kill would stay
            picture_of(samples, row).save(aside)
            aside.rename(file)
    header = ("path", "label", "split", "change") + ("group",) * bool(samples.grouped_by)
    write_utf8(path, header, cleaned(samples, suspects))


def cleaned(samples: Samples, suspects: Sequence[Suspect]) -> Iterator[tuple[str, ...]]:
    of, root = {suspect.path: suspect for suspect in suspects}, os.path.abspath(samples.root or "")
    for row in np.flatnonzero(samples.splits >= 0).tolist():
        path, label, split = samples.paths[row], samples.class_names[samples.labels[row]], SPLITS[samples.splits[row]]
        suspect, change = of.get(path) if split != "test" else None, ""
        if suspect is not None and suspect.decision == DROP:
            continue
        if suspect is not None and suspect.decision.startswith(RELABEL):
            label = suspect.decision.removeprefix(RELABEL)
            thinks = f"the model thinks {suspect.suggested}, {float(suspect.confidence):.1%}"
            change = f"was {suspect.label}; {suspect.kind}, {thinks}"
        file = os.path.normpath(os.path.join(root, path)) if has_files(samples) else f"images/{path}.png"
        group = samples.group_of(row)
        cells = (file, label, split, change)
        yield (*cells, "" if are_copies(group) else group) if samples.grouped_by else cells


def has_files(samples: Samples) -> bool:
    """Return whether each picture is a file, not in memory or inside a shard."""
    return samples.pixels is None and samples.members is None


class SuspectsPage(Review):
    """The page on suspects.csv, with the nearest pictures of the two classes to compare with."""

    texts: ClassVar = {
        "title": "Decide on the labels of",
        "hint": "A model contradicts these labels, and may be wrong. Every decision is saved at once; the images"
        " stay as they are. A dashed button is what is proposed.",
        "prefix": RELABEL,
        "take": {"key": "r", "text": "relabel as", "decision": ""},
        "choices": [{"key": "k", "text": "keep", "decision": KEEP}, {"key": "d", "text": "drop", "decision": DROP}],
        "new_classes": False,
    }

    def class_names(self) -> Sequence[str]:
        return self.samples.class_names

    def read(self) -> list[Suspect]:
        return read_suspects(self.folder / "suspects.csv", self.samples, self.row_of)

    def decided(self, row: Suspect, decision: str, by: str) -> Suspect:
        suspect = row._replace(decision=decision, decided=by)
        require_decision(suspect, self.samples.class_names)
        return suspect

    def save(self, rows: Sequence[Suspect]) -> None:
        write_suspects(self.folder / "suspects.csv", rows)  # alone: cleaned.csv lists all images of the set

    def shown(self, row: Suspect) -> dict[str, Any]:
        thinks = f"{row.suggested} ({float(row.confidence):.1%})" if row.suggested else "none of the others"
        return {
            "facts": [("label", row.label), ("the model thinks", thinks), ("why it is asked", reason(row))],
            "suggested": row.suggested,
            "other": row.other,
            "classes": [row.label, *[row.suggested] * bool(row.suggested)],
        }

    def comparable(self, row: Suspect, name: str) -> np.ndarray:
        """Return images with this label that are no suspects, no test images and no copies."""
        samples, groups = self.samples, self.found.groups
        trusted = self.found.readable & (samples.splits != TEST) & (samples.labels == samples.class_names.index(name))
        trusted[[self.row_of[suspect.path] for suspect in self.rows]] = False
        return np.flatnonzero(trusted & (groups != groups[self.row_of[row.path]]))


def reason(suspect: Suspect) -> str:
    """Say why a label is doubted, as what a model thinks and no more."""
    if suspect.kind == COPY:
        return f"a duplicate of it is labelled {suspect.suggested}"
    if suspect.kind == OUTLIER:
        return "the model finds it unlike every other picture of the set"
    if suspect.kind == TWO:
        return f"the model thinks that it may show both {suspect.label} and {suspect.suggested}"
    return f"the model thinks {suspect.suggested} where the label says {suspect.label}"
