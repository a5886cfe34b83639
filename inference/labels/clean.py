"""Search for labels that a model doubts, and what it is worth to train without them."""

import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.errors import DataError, OptionError
from common.files import write_bytes
from common.shell import command, quoted
from common.text import ellipsis, format_table, pluralise, printable
from datasets.bundle import SPLITS, Samples
from datasets.checking.inspection import groups_of_copies, inspections
from datasets.config import DataConfig
from datasets.copies import united, units_of
from datasets.images import picture_of, to_array
from datasets.loaders import split_samples
from inference.labels.label_issues import COPY, DOUBTED, OUTLIER, issues_found, label_issues
from inference.labels.out_of_fold import features_of_set, fit_logistic, fold_of_each, out_of_fold
from inference.labels.review import nearest_of_classes, write_neighbours
from inference.labels.suspects import DROP, KEEP, Suspect, write_cleaned, write_suspects
from inference.labels.table import percent
from trainers.config import OutputConfig, RunConfig
from trainers.reporting.console import say
from trainers.reporting.figures.image_prediction import ImagePrediction
from trainers.reporting.figures.sheets import png, prediction_sheet
from trainers.seen import seen_lines
from trainers.statistics import PairedDifference, paired_difference
from trainers.storage.data_folder import data_folder
from trainers.storage.finished_run import untrusted_run
from trainers.storage.predictions_file import predictions_of

SHOWN, LISTED = 24, 10
"""Suspects on the figure, and on the terminal."""
SHORTEST = 20
"""Letters of a path that are shown, however narrow the terminal is."""
SURE = 0.9
"""Accuracy of the models below which half of the suspects are hard images and more (docs/clean.md)."""
SECONDS_PER_IMAGE, LEAST_SECONDS = 0.03, 60.0
"""Time that features may take where no time is given: a choice, whatever the machine."""
DROPPED_FROM = {DOUBTED: 0.8, COPY: 0.0}
"""Probability of a class from which dropping an image is proposed; below it hard images are many (docs/clean.md)."""
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
    features: NDArray[np.float32] | None = None
    penalties: tuple[float, float] = (0.0, 0.0)
    """Regularisation of the two models on the features: on all images, and without those doubted in the first round."""

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


def read_samples(data: DataConfig) -> Samples:
    """The images with the splits that a run without folds would have. What a run names is read where it lies."""
    with untrusted_run() if data.fold else nullcontext():
        return split_samples(replace(data, folds=None, fold=None))


def cross_validate_set(config: RunConfig, *, folds: int, minutes: float | None) -> HeldOutPredictions:
    """Predict every image by frozen features of the best local pretrained weights."""
    images = int((read_samples(config.data).splits >= 0).sum())
    seconds = 60 * minutes if minutes else max(LEAST_SECONDS, SECONDS_PER_IMAGE * images)
    samples, rows, features = features_of_set(config, images=images, seconds=seconds)
    groups = groups_of_copies(inspections(samples, rows.tolist(), workers=os.cpu_count() or 1))
    return cross_validate_features(samples, rows, groups, features, folds=folds)


def cross_validate_features(
    samples: Samples, rows: NDArray[np.int64], groups: NDArray[np.int64], features: NDArray[np.float32], *, folds: int
) -> HeldOutPredictions:
    """Predict by logistic regression on the features of N images (N, D), in folds that keep copies and groups together,
    and once more without what cleanlab doubts then. Test images are judged, and never learnt from."""
    labels, learns = samples.labels[rows].astype(np.int64), samples.splits[rows] != TEST
    fold = fold_of_each(labels, united(groups, units_of(samples, rows)), folds=folds)
    first, penalty = out_of_fold(features, labels, fold, learns)
    trusted = learns.copy()
    trusted[learns] = ~issues_found(labels[learns], first[learns])
    probabilities, weaker = out_of_fold(features, labels, fold, trusted)
    return HeldOutPredictions(samples, rows, groups, probabilities, features, (penalty, weaker))


def read_fold_predictions(run_dir: Path, config: RunConfig) -> HeldOutPredictions:
    """Read the predictions that the runs of `train --folds K` left of the images they were not trained on; of test
    images the mean over the runs. Raises OptionError: the run is no fold of several. DataError: the images changed
    since."""
    if config.data.fold is None or config.data.folds is None:
        raise OptionError(f"{run_dir} is not one of several folds: train --folds 5 leaves a prediction of every image")
    base = run_dir.name.removesuffix(f"_fold{config.data.fold}")
    folders = [run_dir.with_name(f"{base}_fold{fold}") for fold in range(1, config.data.folds + 1)]
    samples = read_samples(config.data)
    parts = [predictions_of(folder, "val") for folder in folders]
    if (samples.splits == TEST).any():
        tests = [predictions_of(folder, "test") for folder in folders]
        mean = np.mean([run.probabilities for run in tests], axis=0)
        parts.append(tests[0]._replace(probabilities=mean))
    place = {path: row for row, path in enumerate(samples.paths)}
    paths = [path for part in parts for path in part.paths]
    labels = np.concatenate([part.labels for part in parts])
    rows = np.array([place.get(path, -1) for path in paths])
    if parts[0].class_names != tuple(samples.class_names) or (rows < 0).any() or (samples.labels[rows] != labels).any():
        raise DataError(f"the images of {config.data.source} changed since {run_dir}: train the folds anew")
    say_what_was_seen(folders, int((samples.splits >= 0).sum()) - len(rows))
    groups = groups_of_copies(inspections(samples, rows.tolist(), workers=os.cpu_count() or 1))
    fold = np.repeat(np.arange(len(parts)), [len(part.paths) for part in parts])
    of_groups = np.unique(np.stack([groups, fold]), axis=1)[0]
    apart = np.isin(groups, np.flatnonzero(np.bincount(of_groups) > 1)).sum()
    if apart:
        say(f"{apart:,} images have a copy in another fold: their models learnt from the copy", label="note")
    return HeldOutPredictions(samples, rows, groups, np.concatenate([part.probabilities for part in parts]))


def say_what_was_seen(folders: Sequence[Path], not_judged: int) -> None:
    """Print how many images the starts of the runs were trained on: none is judged, unless the runs scored it."""
    if not_judged:
        say(f"{pluralise(not_judged, 'image')} left out by these runs, whose start was trained on them", label="note")
        return
    for line in dict.fromkeys(line for folder in folders for line in seen_lines(folder)):
        say(line, label="note")


def report_suspects(judged: HeldOutPredictions, folder: Path) -> list[Suspect]:
    """Say how good the judges are, and write what is doubtful among the test images and a picture of the rest, which
    is returned."""
    suspects, of_test = (suspects_of(judged, test=test) for test in (False, True))
    folder.mkdir(parents=True, exist_ok=True)
    write_suspects(folder / "test_suspects.csv", of_test)
    if suspects:
        write_figure(folder / "suspects.png", judged.samples, suspects)
    if judged.features is not None:
        write_neighbours(folder / "neighbours.csv", neighbours_of(judged, suspects))
    say()
    say(f"{judged.accuracy:.1%} of the labels are what models say that have not learnt from them")
    if judged.accuracy < SURE:
        say("models that are right so seldom doubt the labels of many hard images: decide one by one")
    if of_test:
        doubtful = pluralise(len(of_test), "test label")
        say(f"doubtful, too, and left as they are: {doubtful}, {folder / 'test_suspects.csv'}")
    gained = worth(judged, suspects)
    if gained is not None:
        by = f"{100 * gained.mean:+.1f} points ({100 * gained.low:.1f} to {100 * gained.high:.1f})"
        say(f"learning without what is to be dropped changes the accuracy on {gained.images:,} test images by {by}")
    return suspects


def suspects_of(judged: HeldOutPredictions, *, test: bool) -> list[Suspect]:
    """The doubtful labels of the test images, or of all others; each with what is proposed."""
    # Few test images tell little of how sure models are of a class, so they are looked at among all.
    chosen = np.flatnonzero(~judged.in_test | test)
    features = None if judged.features is None else judged.features[chosen]
    parts = judged.labels[chosen], judged.probabilities[chosen], judged.groups[chosen], features
    names, paths = judged.samples.class_names, judged.samples.paths
    return [
        Suspect(
            path=paths[judged.rows[chosen[issue.image]]],
            label=names[judged.labels[chosen[issue.image]]],
            suggested="" if issue.kind == OUTLIER else names[issue.suggested],
            confidence=f"{judged.probabilities[chosen[issue.image], issue.suggested]:.4f}",
            kind=issue.kind,
            other="" if issue.other is None else paths[judged.rows[chosen[issue.other]]],
            decision=KEEP if test or parts[1][issue.image].max() < DROPPED_FROM.get(issue.kind, np.inf) else DROP,
            decided="",
        )
        for issue in label_issues(*parts)
        if judged.in_test[chosen[issue.image]] == test
    ]


def neighbours_of(judged: HeldOutPredictions, suspects: Sequence[Suspect]) -> list[tuple[str, str, str]]:
    """Path, label and neighbour: for each suspect the nearest images with its label, and with the suggested one, that
    are no suspects themselves."""
    assert judged.features is not None
    names, paths = judged.samples.class_names, [judged.samples.paths[row] for row in judged.rows]
    place, number = {path: image for image, path in enumerate(paths)}, {name: label for label, name in enumerate(names)}
    doubted = {suspect.path for suspect in suspects}
    trusted = ~judged.in_test & np.array([path not in doubted for path in paths])
    asked = [
        (place[suspect.path], number[name])
        for suspect in suspects
        for name in dict.fromkeys((suspect.label, suspect.suggested))
        if name
    ]
    found = nearest_of_classes(judged.features, judged.labels, judged.groups, trusted, asked)
    return [
        (paths[image], names[label], paths[near])
        for (image, label), nearest in zip(asked, found, strict=True)
        for near in nearest
    ]


def worth(judged: HeldOutPredictions, suspects: Sequence[Suspect]) -> PairedDifference | None:
    """Count how many more test images, of which no copy is learnt from, logistic regression gets right without what is
    to be dropped. None: there are no features, or no test images."""
    if judged.features is None or not judged.in_test.any():
        return None
    dropped = {suspect.path for suspect in suspects if suspect.decision == DROP}
    learnt = ~np.isin(judged.groups, judged.groups[judged.in_test])
    kept = learnt & np.array([judged.samples.paths[row] not in dropped for row in judged.rows])
    labels, test = judged.labels, judged.in_test
    before, after = (
        fit_logistic(judged.features[rows], labels[rows], penalty).predict(judged.features[test]) == labels[test]
        for rows, penalty in zip((learnt, kept), judged.penalties, strict=True)
    )
    return paired_difference(after[None], before[None])


def write_figure(path: Path, samples: Samples, suspects: Sequence[Suspect]) -> None:
    """The first suspects as a sheet of pictures."""
    place = {name: row for row, name in enumerate(samples.paths)}
    shown = []
    for suspect in suspects[:SHOWN]:
        thinks = f"the model thinks {suspect.suggested}" if suspect.suggested else suspect.kind
        doubt = f"labelled {suspect.label}; {thinks}"
        pixels = to_array(picture_of(samples, place[suspect.path]))
        shown.append(ImagePrediction(suspect.path, ((doubt, float(suspect.confidence)),), pixels=pixels))
    title = f"{samples.name}: {len(shown)} of {len(suspects)} suspects, the likeliest first"
    write_bytes(path, png(prediction_sheet(shown, title=title, columns=6)))


def save(folder: Path, samples: Samples, suspects: Sequence[Suspect]) -> None:
    """Write the suspects, and the table to train on that their decisions make."""
    write_suspects(folder / "suspects.csv", suspects)
    write_cleaned(folder / "cleaned.csv", samples, suspects)


def say_suspects(folder: Path, review: str, samples: Samples, suspects: Sequence[Suspect], *, may_mirror: bool) -> None:
    """Print the first suspects, how many there are of each kind, and what to do next."""
    if suspects:
        say()
        for line in table_of(suspects[:LISTED]):
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
    recipe = ("--recipe", "finetune-small", "--seeds", 3, *(() if may_mirror else ("--mirror", "no")))
    if (samples.splits == TEST).any():
        tables = [folder / f"{name}.csv" for name in ("given", "cleaned")]
        for table in tables:
            say(command("train", "--data", table, *recipe), label="train")
        runs = " ".join(quoted(data_folder(OutputConfig(), str(table)) / "vit_stem_16_s") + "?" for table in tables)
        say(f"{command('compare')} {runs}", label="compare")


def table_of(suspects: Sequence[Suspect]) -> Iterator[str]:
    """Lines about suspects that fit the terminal: of a long path its two ends. Into a pipe it goes whole."""
    header = ("label", "the model thinks", "", "kind", "decision")
    cells = [(s.label, s.suggested, percent(float(s.confidence)), s.kind, s.decision) for s in suspects]
    columns = list(format_table([header, *cells], left=(0, 1, 3, 4)))
    before = max(map(len, columns)) + 2
    paths = [printable(s.path) for s in suspects]
    if sys.stdout.isatty():
        room = max(SHORTEST, shutil.get_terminal_size().columns - before)
        paths = [ellipsis(path, room) for path in paths]
    yield from (f"{line:<{before}}{path}" for line, path in zip(columns, ("image", *paths), strict=True))
