"""The doubtful labels of a set on the page of this package: what the model thinks, and pictures to compare with."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.files import write_text
from common.tables import csv_text, read_rows
from datasets.bundle import Samples
from inference.labels.label_issues import COPY, OUTLIER, TWO
from inference.labels.suspects import DROP, KEEP, RELABEL, Suspect, read_suspects, require_decision
from inference.labels.table import Button, Examples, Reviewed, Shown, Wording, percent

MOST_EXAMPLES = 4
"""Pictures of a class beside the one in question."""
FIELDS = ("path", "label", "neighbour")


class SuspectsTable(Reviewed[Suspect]):
    """suspects.csv, and neighbours.csv beside it: of each suspect the nearest pictures of the two classes."""

    def __init__(self, path: Path, samples: Samples, save: Callable[[Sequence[Suspect]], None]) -> None:
        """`save` writes all suspects into the table at `path`, and what follows from them."""
        self.path, self.samples, self.save_all = path, samples, save
        self.row_of = {name: row for row, name in enumerate(samples.paths)}
        self.suspected = {row["path"] for row in read_rows(path, ("path",))}
        self.neighbours = read_neighbours(path.with_name("neighbours.csv"))
        self.wording = Wording(
            title=f"Decide on the labels of {samples.name}",
            hint="A model contradicts these labels, and may be wrong. Every decision is saved at once; the images stay"
            " as they are. A dashed button is what is proposed.",
            prefix=RELABEL,
            take=Button("r", "relabel as", ""),
            choices=(Button("k", "keep", KEEP), Button("d", "drop", DROP)),
            new_classes=False,
        )

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
        self.save_all(rows)

    def shown(self, row: Suspect) -> Shown:
        thinks = f"{row.suggested} ({percent(float(row.confidence))})" if row.suggested else "none of the others"
        facts = [("label", row.label), ("the model thinks", thinks), ("why it is asked", reason(row))]
        classes = dict.fromkeys(name for name in (row.label, row.suggested) if name)
        strips = [Examples(f"labelled {name}", self.examples(row, name)) for name in classes]
        return Shown(
            row=self.row_of[row.path],
            facts=facts,
            suggested=row.suggested,
            other=self.row_of.get(row.other),
            examples=[strip for strip in strips if strip.rows],
        )

    def examples(self, suspect: Suspect, name: str) -> list[int]:
        """Pictures with this label: the nearest ones, or else the first that nobody doubts."""
        nearest = self.neighbours.get((suspect.path, name), ())
        if found := [self.row_of[path] for path in nearest if path in self.row_of]:
            return found
        rows: list[int] = []
        number = self.samples.class_names.index(name)
        for row in np.flatnonzero((self.samples.labels == number) & (self.samples.splits >= 0)).tolist():
            if len(rows) < MOST_EXAMPLES and self.samples.paths[row] not in self.suspected:
                rows.append(row)
        return rows


def reason(suspect: Suspect) -> str:
    """One sentence about why a suspect is on the list, as what a model thinks and no more."""
    if suspect.kind == COPY:
        return f"a copy of it is labelled {suspect.suggested}"
    if suspect.kind == OUTLIER:
        return "the model finds it unlike every other picture of the set"
    if suspect.kind == TWO:
        return f"the model thinks that it may show both {suspect.label} and {suspect.suggested}"
    return f"the model thinks {suspect.suggested} where the label says {suspect.label}"


def nearest_of_classes(
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    groups: NDArray[np.int64],
    trusted: NDArray[np.bool_],
    asked: Sequence[tuple[int, int]],
) -> list[list[int]]:
    """Find for each asked (image, class) the `MOST_EXAMPLES` images nearest by the angle between features (N, D),
    nearest first, among those with that label that are trusted and no copies of it; of images with the same copies
    one."""
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    unit = features / np.maximum(lengths, 1e-12)
    found = []
    for image, label in asked:
        places = np.flatnonzero(trusted & (labels == label) & (groups != groups[image]))
        order = places[np.argsort(-(unit[places] @ unit[image]), kind="stable")]
        _, first = np.unique(groups[order], return_index=True)
        found.append(order[np.sort(first)[:MOST_EXAMPLES]].tolist())
    return found


def write_neighbours(path: Path, rows: Sequence[tuple[str, str, str]]) -> None:
    """Write rows of path, label and neighbour: of each suspect and class the nearest pictures, in order."""
    write_text(path, csv_text(FIELDS, rows))


def read_neighbours(path: Path) -> Mapping[tuple[str, str], list[str]]:
    """The neighbours by path and label; none where there is no such table. Raises DataError: it is damaged."""
    neighbours: dict[tuple[str, str], list[str]] = {}
    for row in read_rows(path, FIELDS) if path.is_file() else ():
        neighbours.setdefault((row["path"], row["label"]), []).append(row["neighbour"])
    return neighbours
