"""Choose pictures to label next, and keep the tables of picks and of labels.

Centres come first, then uncertain and diverse pictures (Gupte et al. 2024, arXiv 2401.14555):
1. While labels are few, pictures that stand for many: clusters of all pictures, those without a label and the largest
   first (as in TypiClust, Hacohen, Dekel and Weinshall 2022), and of each the picture nearest to its centre.
2. From `SWITCH` labels a class on, of the pictures that a model of the labels is least sure about those that differ:
   clusters weighted by how unsure it is, and of each the picture nearest to its centre (Zhdanov 2019).

A picture that has a labelled or skipped copy is never chosen, and of copies one at most.
"""

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from common.errors import DataError, OptionError
from common.files import write_text
from common.tables import csv_text, read_rows
from common.text import printable
from datasets.built_in import BUILT_IN
from datasets.bundle import LEFT_OUT, SPLITS, TRAIN, PathTable, Samples, split_name
from datasets.config import Columns, DataConfig
from datasets.open import read_samples
from datasets.sources import read
from inference.labels.features import ExtractedFeatures, unit_length
from inference.labels.label_issues import fit_logistic
from inference.labels.review import Review, require_share, write_utf8

NEXT_BACKBONE, NEXT_COMPONENTS = "efficientnet_lite0", 128
"""Network that looks besides the embedded one, and principal components that are kept of each one's features."""
LABEL, SKIP = "label:", "skip"
LONGEST = 200
"""Characters of a class name."""
SWITCH = 2
"""Labels a class, on average, from which on uncertain pictures are chosen."""
AMONG = 10
"""Multiple of the pictures wanted that are the least certain ones, among which diverse ones are chosen."""
MOST_CLUSTERS = 500
PENALTY = 30.0
"""scikit-learn's C of the logistic regression on the labels so far, for features of length 1."""
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Chosen = list[tuple[int, float]]
"""Up to `count` rows of features (N, D), which have length 1, each with its score."""
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
    """One row of picks.csv, which holds the picks of all rounds."""

    path: str
    reason: str
    """centre: typical of many pictures; or uncertain."""
    score: str
    """Score of a pick: for a centre 1 / (1 + distance to its cluster's centre), for an uncertain one 1 less the guess's
    lead."""
    guess: str = ""
    """Class that the model thinks it is; empty while there is none."""
    confidence: str = ""
    second: str = ""
    """The class that it thinks next likely."""
    label: str = ""
    """Class that a person gave; empty: none yet."""
    skipped: str = ""
    """`yes`: a person wants no label for it."""
    decided: str = ""
    """Maker of the decision: `person`; empty: nobody yet."""

    @property
    def decision(self) -> str:
        """Decision as one word: label:NAME, skip, or empty."""
        if self.skipped:
            return SKIP
        return f"{LABEL}{self.label}" if self.label else ""


@dataclass(frozen=True)
class Pool:
    """N pictures: first those to choose from, then labelled ones from elsewhere."""

    samples: Samples
    """Their paths are absolute, their labels unknown to it."""
    own: int
    """Number of the first ones, which are to choose from."""
    given: Mapping[str, Label]
    """Labels by path that a table or a labelled set gives, to pictures of either kind."""

    def labels(self, picks: Sequence[Pick]) -> dict[str, Label]:
        """Join the given labels and those of the picks."""
        return {**self.given, **{pick.path: Label(pick.label) for pick in picks if pick.label}}

    def rows(self, paths: Sequence[str]) -> np.ndarray:
        row_of = {path: row for row, path in enumerate(self.samples.paths)}
        return np.array([row_of[path] for path in paths], np.int64)


def read_pool(source: str, root: Path, *, labelled: Sequence[str] = (), path_column: str | None = None) -> Pool:
    """Find the pictures of a folder, a table or an archive, and of `labelled` sets.

    Sub-folders count; archives are unpacked below `root`. A label that a table gives a picture counts as given; names
    of folders do not. Raises what reading them for training raises, and DataError: no picture, or no files."""
    if source in BUILT_IN:
        raise DataError(f"{source} has a label for each picture: expected a folder, a table with paths, or an archive")
    samples = read(source, root, columns=Columns(path_column), needs_labels=False).usable()
    own = labels_of(samples)
    given = {path: label for path, label in own.items() if label.name}
    for place in labelled:
        given |= labels_of(read_samples(DataConfig(place, root)))
    paths = PathTable(dict.fromkeys([*own, *given]))
    columns = np.zeros(len(paths), np.int32), np.full(len(paths), TRAIN, np.int8)
    pool = Samples(samples.name, ("unlabelled",), paths, *columns, root=Path(os.sep), notes=samples.notes)
    return Pool(pool, len(own), given)


def labels_of(samples: Samples) -> dict[str, Label]:
    """Return the label and the split of each picture of a set, by absolute path.

    The name of no label is "". Raises DataError: pictures that are no files."""
    if samples.pixels is not None or samples.members is not None:
        raise DataError(f"{samples.name} is not made of files: next knows pictures by their files")
    return {
        os.path.abspath(samples.file(row)): Label(
            samples.class_names[samples.labels[row]], split_name(int(samples.splits[row]))
        )
        for row in np.flatnonzero(samples.splits != LEFT_OUT).tolist()
    }


def choose_picks(pool: Pool, picks: Sequence[Pick], found: ExtractedFeatures, count: int) -> list[Pick]:
    """Choose up to `count` pictures that no pick, no label and no copy covers.

    Raises OptionError: no picture is left."""
    labels, taken = pool.labels(picks), pool.rows([*pool.given, *(pick.path for pick in picks)])
    usable = found.readable & (np.arange(len(pool.samples)) < pool.own)
    usable[taken] = False
    free = free_rows(found.groups, usable, taken)
    if not len(free):
        raise OptionError(f"every picture of {pool.samples.name} has a label, or a duplicate with one: none is left")
    learnt = pool.rows([path for path, label in labels.items() if label.split != SPLITS[2]])
    learnt = learnt[found.readable[learnt]]
    names = [labels[pool.samples.paths[row]].name for row in learnt.tolist()]
    classes, features = list(dict.fromkeys(names)), unit_length(found.values)
    probabilities = probabilities_of(features, learnt, np.array([classes.index(name) for name in names], int))
    if probabilities is None:
        centres = typical(features, free, learnt, count)
        return [Pick(pool.samples.paths[row], "centre", f"{score:.4f}") for row, score in centres]
    new = []
    for row, score in uncertain(features, free, probabilities, count):
        best, second = np.argsort(-probabilities[row], kind="stable")[:2]
        guess = (classes[best], f"{probabilities[row, best]:.4f}", classes[second])
        new.append(Pick(pool.samples.paths[row], "uncertain", f"{score:.4f}", *guess))
    return new


def free_rows(groups: Ints, usable: NDArray[np.bool_], taken: Ints) -> Ints:
    """Return the rows to choose from: usable ones without a taken copy.

    Of copies it is the first."""
    rows = np.flatnonzero(usable & ~np.isin(groups, groups[taken]))
    _, first = np.unique(groups[rows], return_index=True)
    return rows[np.sort(first)]


def probabilities_of(features: Floats, rows: Ints, labels: Ints) -> NDArray[np.float64] | None:
    """Ask logistic regression on the labelled `rows` about every picture: (N, C).

    Labels are 0 to C - 1. None where labels are too few: under `SWITCH` a class on average, or of a single class."""
    classes = len(np.unique(labels))
    if classes < 2 or len(labels) < SWITCH * classes:
        return None
    return fit_logistic(features[rows], labels, PENALTY).predict_proba(features)


def typical(features: Floats, free: Ints, labelled: Ints, count: int) -> Chosen:
    """Take the picture nearest to the centre of each of `count` clusters.

    There are as many clusters as labels and picks together; those with the fewest labels are taken, and of these the
    largest first. Score: 1 / (1 + distance)."""
    count, rows = min(count, len(free)), np.concatenate([free, labelled])
    clusters = min(count + len(labelled), max(MOST_CLUSTERS, count), len(rows))
    means = clustered(features[rows], clusters)
    size = np.bincount(means.labels_[: len(free)], minlength=clusters)
    covered = np.bincount(means.labels_[len(free) :], minlength=clusters)
    order = np.lexsort((-size, covered))[:count]
    distances = means.transform(features[free])[:, order]
    return [(int(free[at]), float(1 / (1 + distances[at, n]))) for n, at in enumerate(one_each(distances))]


def uncertain(features: Floats, free: Ints, probabilities: NDArray[np.float64], count: int) -> Chosen:
    """Take pictures nearest to centres of clusters of the least certain ones.

    Clusters are weighted by how unsure the model is. The least certain come first; score: 1 less the lead of the
    likeliest class over the next."""
    top = np.partition(probabilities[free], -2, axis=1)
    doubt = 1 - (top[:, -1] - top[:, -2])
    count = min(count, len(free))
    most = np.argsort(-doubt, kind="stable")[: AMONG * count]
    rows, weights = free[most], doubt[most] + 1e-6
    distances = clustered(features[rows], count, weights).transform(features[rows])
    return [(int(rows[place]), float(doubt[most[place]])) for place in sorted(one_each(distances))]


def one_each(distances: NDArray[np.floating]) -> list[int]:
    """Take for each column of (N, K) the nearest row that is not taken."""
    taken = np.zeros(len(distances), bool)
    rows = []
    for column in distances.T:
        rows.append(int(np.where(taken, np.inf, column).argmin()))
        taken[rows[-1]] = True
    return rows


def clustered(values: Floats, clusters: int, weights: NDArray[np.float64] | None = None) -> KMeans:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different pictures than clusters
        return KMeans(clusters, n_init=1, max_iter=30, tol=1e-3, random_state=0).fit(values, sample_weight=weights)


def write_picks(path: Path, picks: Sequence[Pick]) -> None:
    write_text(path, csv_text(Pick._fields, picks))


def read_picks(path: Path, samples: Samples) -> list[Pick]:
    """Read picks.csv.

    Raises DataError: it lacks a column, names a picture that the pool does not have, or holds no class name or no
    number where one belongs."""
    picks, known = [], set(samples.paths)
    for row in read_rows(path, Pick._fields):
        pick = Pick(*(row[name] for name in Pick._fields))
        pick = pick._replace(label=pick.label.strip(), skipped="yes" if pick.skipped.strip() else "")
        if pick.path not in known:
            raise DataError(f"{path}: {pick.path!r} is no picture of {samples.name}; remove its row")
        if pick.label:
            require_class_name(pick.label, pick.path)
        if pick.guess:
            require_share(pick.confidence, pick.path)
        # A label that was filled in elsewhere is a person's, too.
        picks.append(pick._replace(decided="person" if pick.decision else ""))
    return picks


def require_class_name(name: str, path: str) -> None:
    """Raise DataError where a class name is empty, on two lines, or very long."""
    if not name.strip() or len(name) > LONGEST or printable(name) != name:
        raise DataError(f"{path!r}: {name[:LONGEST]!r} is no class name: 1 to {LONGEST} printable signs")


def save_picks(folder: Path, pool: Pool, picks: Sequence[Pick]) -> None:
    """Write picks.csv, and labels.csv for `train`.

    That has path and label of all that is labelled so far, and the split where one is known of any; of others it is
    train. Raises DataError: a path that a table in UTF-8 cannot hold."""
    folder.mkdir(parents=True, exist_ok=True)
    write_picks(folder / "picks.csv", picks)
    labels = pool.labels(picks)
    splits = any(label.split for label in labels.values())
    rows = ((name, label.name, *((label.split or SPLITS[0],) * splits)) for name, label in labels.items())
    write_utf8(folder / "labels.csv", ("path", "label") + ("split",) * splits, rows)


class PicksPage(Review):
    """The page on picks.csv, with the nearest labelled pictures of the two likeliest classes."""

    texts: ClassVar = {
        "title": "Label pictures of",
        "hint": "Every label is saved at once; the pictures stay as they are. Press a class's key, or c to type one.",
        "prefix": LABEL,
        "take": {"key": "y", "text": "yes,", "decision": ""},
        "choices": [{"key": "s", "text": "skip: no label for it", "decision": SKIP}],
        "new_classes": True,
    }

    def __init__(self, folder: Path, pool: Pool, found: ExtractedFeatures, *, port: int) -> None:
        self.pool, self.known = pool, dict[str, None]()
        super().__init__(folder, pool.samples, found, port=port)

    def class_names(self) -> Sequence[str]:
        self.known |= dict.fromkeys(label.name for label in self.pool.labels(self.rows).values())
        return list(self.known)

    def read(self) -> list[Pick]:
        return read_picks(self.folder / "picks.csv", self.samples)

    def decided(self, row: Pick, decision: str, by: str) -> Pick:
        if decision in ("", SKIP):
            return row._replace(label="", skipped="yes" if decision else "", decided=by)
        if not decision.startswith(LABEL):
            raise DataError(f"{row.path!r}: decision {decision!r} is not {LABEL}NAME or {SKIP}")
        name = decision.removeprefix(LABEL).strip()
        require_class_name(name, row.path)
        return row._replace(label=name, skipped="", decided=by)

    def save(self, rows: Sequence[Pick]) -> None:
        save_picks(self.folder, self.pool, rows)

    def shown(self, row: Pick) -> dict[str, Any]:
        facts = [("asked because", REASONS.get(row.reason, row.reason))]
        if row.guess:
            then = f", then {row.second}" if row.second else ""
            facts.append(("the model thinks", f"{row.guess} ({float(row.confidence):.1%}){then}"))
        classes = [name for name in (row.guess, row.second) if name]
        return {"facts": facts, "suggested": row.guess, "other": "", "classes": classes}

    def comparable(self, row: Pick, name: str) -> np.ndarray:
        """Return the other pictures that have this label."""
        labels = self.pool.labels(self.rows)
        return self.pool.rows([other for other in labels if labels[other].name == name and other != row.path])
