"""Search for labels that a model doubts which has not learnt from them."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.files import write_bytes, write_text
from common.shell import command, quoted
from common.tables import csv_text
from common.text import format_table, pluralise, printable
from datasets.bundle import SPLITS, Samples
from datasets.checking.inspection import groups_of_copies, inspections
from datasets.copies import united, units_of
from datasets.images import picture_of, to_array
from datasets.loaders import split_samples
from inference.labels.features import features_of_set
from inference.labels.label_issues import COPY, DOUBTED, OUTLIER, issues_found, label_issues
from inference.labels.out_of_fold import fold_of_each, out_of_fold
from inference.labels.review import MOST_EXAMPLES, percent
from inference.labels.suspects import DROP, KEEP, NEIGHBOURS, Suspect, write_suspects
from trainers.config import OutputConfig, RunConfig
from trainers.reporting.console import say
from trainers.reporting.figures.image_prediction import ImagePrediction
from trainers.reporting.figures.sheets import png, prediction_sheet
from trainers.storage.data_folder import data_folder

SHOWN, LISTED = 24, 10
"""Suspects on the figure, and on the terminal."""
SURE = 0.9
"""Accuracy of the models below which half of the suspects are hard images and more (docs/labels.md)."""
SECONDS_PER_IMAGE, LEAST_SECONDS = 0.03, 60.0
"""Time that features may take where no time is given: a choice, whatever the machine."""
DROPPED_FROM = {DOUBTED: 0.8, COPY: 0.0}
"""Probability of a class from which dropping an image is proposed; below it hard images are many (docs/labels.md)."""
TEST = SPLITS.index("test")


@dataclass(frozen=True)
class HeldOutPredictions:
    """N images of a set, and what models say of each that have not learnt from it."""

    samples: Samples
    rows: NDArray[np.int64]
    """Places of the images among the samples."""
    groups: NDArray[np.int64]
    """Copies share a number."""
    probabilities: NDArray[np.float64]
    """(N, C)"""
    features: NDArray[np.float32]
    """(N, D)"""

    @property
    def labels(self) -> NDArray[np.int64]:
        return self.samples.labels[self.rows].astype(np.int64)

    @property
    def in_test(self) -> NDArray[np.bool_]:
        return self.samples.splits[self.rows] == TEST

    @property
    def accuracy(self) -> float:
        """Share of images whose most probable class is the label, the test images aside."""
        return float((self.probabilities.argmax(axis=1) == self.labels)[~self.in_test].mean())


def cross_validate_set(config: RunConfig, *, folds: int, minutes: float | None) -> HeldOutPredictions:
    """Predict every image by frozen features of the best local pretrained weights."""
    images = int((split_samples(config.data).splits >= 0).sum())
    seconds = 60 * minutes if minutes else max(LEAST_SECONDS, SECONDS_PER_IMAGE * images)
    samples, rows, features = features_of_set(config, images=images, seconds=seconds)
    return cross_validate_features(samples, rows, copies_among(samples, rows), features, folds=folds)


def copies_among(samples: Samples, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """(N,): of these samples copies share a number."""
    return groups_of_copies(inspections(samples, rows.tolist(), workers=os.cpu_count() or 1))


def cross_validate_features(
    samples: Samples, rows: NDArray[np.int64], groups: NDArray[np.int64], features: NDArray[np.float32], *, folds: int
) -> HeldOutPredictions:
    """Predict by logistic regression on the features of N images (N, D), in folds that keep copies and groups together,
    and once more without what cleanlab doubts then. Test images are judged, and never learnt from."""
    labels, learns = samples.labels[rows].astype(np.int64), samples.splits[rows] != TEST
    fold = fold_of_each(labels, united(groups, units_of(samples, rows)), folds=folds)
    first = out_of_fold(features, labels, fold, learns)
    trusted = learns.copy()
    trusted[learns] = ~issues_found(labels[learns], first[learns])
    return HeldOutPredictions(samples, rows, groups, out_of_fold(features, labels, fold, trusted), features)


def report_suspects(judged: HeldOutPredictions, folder: Path) -> list[Suspect]:
    """Say how good the judges are, and write what is doubtful among the test images and a picture of the rest, which
    is returned."""
    suspects, of_test = (suspects_of(judged, test=test) for test in (False, True))
    folder.mkdir(parents=True, exist_ok=True)
    write_suspects(folder / "test_suspects.csv", of_test)
    if suspects:
        write_figure(folder / "suspects.png", judged.samples, suspects)
    write_text(folder / "neighbours.csv", csv_text(NEIGHBOURS, neighbours_of(judged, suspects)))
    say()
    say(f"{judged.accuracy:.1%} of the labels are what models say that have not learnt from them")
    if judged.accuracy < SURE:
        say("models that are right so seldom doubt the labels of many hard images: decide one by one")
    if of_test:
        doubtful = pluralise(len(of_test), "test label")
        say(f"doubtful, too, and left as they are: {doubtful}, {folder / 'test_suspects.csv'}")
    return suspects


def suspects_of(judged: HeldOutPredictions, *, test: bool) -> list[Suspect]:
    """The doubtful labels of the test images, or of all others; each with what is proposed."""
    # Few test images tell little of how sure models are of a class, so they are looked at among all.
    chosen = np.flatnonzero(~judged.in_test | test)
    labels, probabilities = judged.labels[chosen], judged.probabilities[chosen]
    names, paths = judged.samples.class_names, [judged.samples.paths[row] for row in judged.rows[chosen]]
    return [
        Suspect(
            path=paths[issue.image],
            label=names[labels[issue.image]],
            suggested="" if issue.kind == OUTLIER else names[issue.suggested],
            confidence=f"{probabilities[issue.image, issue.suggested]:.4f}",
            kind=issue.kind,
            other="" if issue.other is None else paths[issue.other],
            decision=KEEP if test or probabilities[issue.image].max() < DROPPED_FROM.get(issue.kind, np.inf) else DROP,
            decided="",
        )
        for issue in label_issues(labels, probabilities, judged.groups[chosen], judged.features[chosen])
        if judged.in_test[chosen[issue.image]] == test
    ]


def neighbours_of(judged: HeldOutPredictions, suspects: Sequence[Suspect]) -> list[tuple[str, str, str]]:
    """Path, label and neighbour: of each suspect the nearest images with its label, and with the suggested one.

    The nearest by the angle between features, nearest first; no suspects, no test images, and of copies one."""
    names, paths, groups = judged.samples.class_names, [judged.samples.paths[row] for row in judged.rows], judged.groups
    unit = judged.features / np.maximum(np.linalg.norm(judged.features, axis=1, keepdims=True), 1e-12)
    place, doubted = {path: image for image, path in enumerate(paths)}, {suspect.path for suspect in suspects}
    trusted = ~judged.in_test & np.array([path not in doubted for path in paths])
    found = []
    for suspect in suspects:
        image = place[suspect.path]
        for name in dict.fromkeys(name for name in (suspect.label, suspect.suggested) if name):
            others = np.flatnonzero(trusted & (judged.labels == names.index(name)) & (groups != groups[image]))
            others = others[np.argsort(-(unit[others] @ unit[image]), kind="stable")]
            _, first = np.unique(groups[others], return_index=True)
            found += [(suspect.path, name, paths[near]) for near in others[np.sort(first)[:MOST_EXAMPLES]]]
    return found


def write_figure(path: Path, samples: Samples, suspects: Sequence[Suspect]) -> None:
    """Draw the first suspects as a sheet of pictures."""
    place = {name: row for row, name in enumerate(samples.paths)}
    shown = []
    for suspect in suspects[:SHOWN]:
        thinks = f"the model thinks {suspect.suggested}" if suspect.suggested else suspect.kind
        doubt = f"labelled {suspect.label}; {thinks}"
        pixels = to_array(picture_of(samples, place[suspect.path]))
        shown.append(ImagePrediction(suspect.path, ((doubt, float(suspect.confidence)),), pixels=pixels))
    title = f"{samples.name}: {len(shown)} of {len(suspects)} suspects, the likeliest first"
    write_bytes(path, png(prediction_sheet(shown, title=title, columns=6)))


def say_suspects(folder: Path, review: str, samples: Samples, suspects: Sequence[Suspect], *, may_mirror: bool) -> None:
    """Print the first suspects, how many there are of each kind, and what to do next."""
    if suspects:
        say()
        rows = [
            (s.label, s.suggested, percent(float(s.confidence)), s.kind, s.decision, printable(s.path))
            for s in suspects[:LISTED]
        ]
        header = ("label", "the model thinks", "", "kind", "decision", "image")
        for line in format_table([header, *rows], left=(0, 1, 3, 4, 5)):
            say(line)
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in Counter(s.kind for s in suspects).items())
    decisions = Counter(s.decision.partition(":")[0] for s in suspects)
    share = len(suspects) / sum(len(samples.indices(split)) for split in ("train", "val"))
    say()
    say(f"{pluralise(len(suspects), 'suspect')} ({share:.1%} of train and val){': ' * bool(kinds)}{kinds}")
    say(f"in {folder / 'suspects.csv'}, or on a page:", label="decide")
    say(review, label="")
    made = ", ".join(f"{decision} {count:,}" for decision, count in decisions.items()) or "nothing to decide"
    say(f"{folder / 'cleaned.csv'} ({made})", label="table")
    if (samples.splits == TEST).any():
        recipe = ("--recipe", "finetune-small", "--seeds", 3, *(() if may_mirror else ("--mirror", "no")))
        tables = [folder / f"{name}.csv" for name in ("given", "cleaned")]
        for table in tables:
            say(command("train", "--data", table, *recipe), label="train")
        runs = " ".join(quoted(data_folder(OutputConfig(), str(table)) / "vit_stem_16_s") + "?" for table in tables)
        say(f"{command('compare')} {runs}", label="compare")
