"""Search for labels that a model doubts which has not learnt from them."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.shell import command, quoted
from common.text import format_table, pluralise, printable
from datasets.bundle import TEST, Samples
from datasets.copies import merged, units_of
from inference.labels.features import ExtractedFeatures, pretrained
from inference.labels.label_issues import COPY, DOUBTED, OUTLIER, fold_of_each, issues_found, label_issues, out_of_fold
from inference.labels.suspects import DROP, KEEP, Suspect
from trainers.config import OutputConfig
from trainers.reporting.console import say
from trainers.storage.data_folder import data_folder
from vit import ModelConfig
from vit.factory import local_pretrained_models

CLEAN_BACKBONE, CLEAN_COMPONENTS = "efficientnet_lite2", 256
"""Network that looks besides the embedded one, and principal components that are kept of each one's features."""
FOR_FEW, EMBEDDED = "efficientnet_lite0", "vit_stem_16"
"""Network of few images, at its larger input; and where it is not installed."""
LISTED = 10
"""Suspects on the terminal."""
SURE = 0.9
"""Accuracy of the models below which half of the suspects are hard images and more."""
DROPPED_FROM = {DOUBTED: 0.8, COPY: 0.0}
"""Probability of a class from which dropping an image is proposed; below it hard images are many."""


def networks_for(samples: Samples) -> list[ModelConfig]:
    """Name the networks that look at a set: two, or one at a large input.

    One looks at fewer images than two networks have features."""
    if np.count_nonzero(samples.splits >= 0) > 2 * CLEAN_COMPONENTS:
        return pretrained(CLEAN_BACKBONE)
    return [config for config in local_pretrained_models() if config.name in (FOR_FEW, EMBEDDED)][-1:]


def cross_validate(samples: Samples, found: ExtractedFeatures, *, folds: int) -> NDArray[np.float64]:
    """Predict each readable image by models that have not learnt from it: (N, C).

    Logistic regression on the features, in folds that keep copies and groups together; and once more without what
    cleanlab doubts then. Test images are scored, and never learnt from."""
    rows = np.flatnonzero(found.readable)
    labels, learns = samples.labels[rows].astype(np.int64), samples.splits[rows] != TEST
    fold = fold_of_each(labels, merged(found.groups[rows], units_of(samples, rows)), folds=folds)
    first = out_of_fold(found.values[rows], labels, fold, learns)
    trusted = learns.copy()
    trusted[learns] = ~issues_found(labels[learns], first[learns])
    return out_of_fold(found.values[rows], labels, fold, trusted)


def suspects_of(
    samples: Samples, found: ExtractedFeatures, probabilities: NDArray[np.float64], *, test: bool
) -> list[Suspect]:
    """List the doubtful labels of test images, or of all others, with proposals."""
    in_test = samples.splits == TEST
    # Few test images tell little of how sure models are of a class, so they are looked at among all.
    chosen = (test | ~in_test)[found.readable]
    rows, shares = np.flatnonzero(found.readable)[chosen], probabilities[chosen]
    labels, names, paths = samples.labels[rows].astype(np.int64), samples.class_names, samples.paths
    return [
        Suspect(
            path=paths[rows[issue.image]],
            label=names[labels[issue.image]],
            suggested="" if issue.kind == OUTLIER else names[issue.suggested],
            confidence=f"{shares[issue.image, issue.suggested]:.4f}",
            kind=issue.kind,
            other="" if issue.other is None else paths[rows[issue.other]],
            decision=KEEP if test or shares[issue.image].max() < DROPPED_FROM.get(issue.kind, np.inf) else DROP,
            decided="",
        )
        for issue in label_issues(labels, shares, found.groups[rows], found.values[rows])
        if in_test[rows[issue.image]] == test
    ]


def accuracy_of(samples: Samples, found: ExtractedFeatures, probabilities: NDArray[np.float64]) -> float:
    """Return the share of images, but test ones, whose likeliest class is the label."""
    rows = np.flatnonzero(found.readable)
    agreed = probabilities.argmax(axis=1) == samples.labels[rows]
    return float(agreed[samples.splits[rows] != TEST].mean())


def say_suspects(
    folder: Path, samples: Samples, suspects: Sequence[Suspect], *, may_mirror: bool, reviewed: bool
) -> None:
    """Print the first suspects, how many of each kind, and what to do next."""
    say()
    rows = [(s.label, s.suggested, f"{float(s.confidence):.1%}", s.kind, s.decision, s.path) for s in suspects[:LISTED]]
    header = ("label", "the model thinks", "", "kind", "decision", "image")
    shown = [tuple(map(printable, row)) for row in (header, *rows)]
    for line in format_table(shown, left=(0, 1, 3, 4, 5)) if rows else ():
        say(line)
    kinds = "".join(f", {kind} {count:,}" for kind, count in Counter(s.kind for s in suspects).items())
    made = Counter(s.decision.partition(":")[0] for s in suspects)
    say(f"{pluralise(len(suspects), 'suspect')} in {folder / 'suspects.csv'}{kinds}")
    page = "" if reviewed else "; or add --review, for a page"
    say(f"change its column `decision`, and give the command again{page}", label="decide")
    say(
        f"{folder / 'cleaned.csv'} ({', '.join(f'{decision} {count:,}' for decision, count in made.items())})",
        label="table",
    )
    if (samples.splits == TEST).any():
        recipe = ("--config", "finetune-small", "--seeds", 3, *(() if may_mirror else ("--mirror", "no")))
        tables = [folder / f"{name}.csv" for name in ("given", "cleaned")]
        for table, when in zip(tables, ("before", "after"), strict=True):
            say(command("train", "--data", table, *recipe), label=when)
        runs = " ".join(quoted(data_folder(OutputConfig(), str(table)) / "vit_stem_16_s") + "?" for table in tables)
        say(f"{command('compare')} {runs}", label="compare")
