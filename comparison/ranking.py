"""Ranking of backbones for fine-tuning: each is judged frozen, by what two closed-form classifiers make of its
features.

N labels of each class are drawn from the training images, again and again, the same ones for every backbone. Fitted to
them, ridge regression and the nearest neighbour (by the angle between features) judge all other images of train and
val. `all` takes every training image, and judges each of them by the others. The test images are not looked at.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.stats import norm, sem, t
from torch import Tensor
from torch.nn.functional import normalize

from common.errors import OptionError
from common.files import write_bytes, write_text
from common.shell import command
from common.tables import csv_text
from common.text import format_table
from comparison.drawing import accuracy_by_labels
from datasets.bundle import LEFT_OUT, VAL, Samples, image_set
from datasets.config import DataConfig, words
from datasets.copies import units_of
from trainers.budget.local_weights import probes
from trainers.budget.ridge import predictions
from trainers.config import RunConfig
from trainers.features import features_of
from trainers.reporting.console import say
from trainers.reporting.figures.results import png
from trainers.seen import Start, starts_of, without_seen
from trainers.setup import RunSetup
from trainers.statistics import Clusters, design_of, holm, is_claim, paired_difference
from trainers.storage.data_folder import claimed_folder
from vit.mixture import SideBySide

DRAWS = 20
"""Random draws of N labels of each class."""
SHOTS = (1, 5, 10, 25)
AT_ONCE = 256
"""Images of which the nearest ones are looked for at once."""
RIDGE, NEAREST, ALL = "ridge", "nearest", "all"
SCORED_ON = ("train", "val")


@dataclass(frozen=True)
class RankedBackbone:
    """Result of one backbone."""

    arm: str
    """Name as an arm of `compare`."""
    parameters: int
    seconds: float
    """Seconds to compute the features and to judge them."""
    right: dict[tuple[str, str], np.ndarray]
    """Correctness by (classifier, labels per class): (draws, images), 1 where it was right, 0 where not, NaN where it
    was fitted to the image."""
    clusters: Clusters | None = None
    """(images,): those of one group share a number."""

    def accuracy(self, classifier: str, labels: str) -> tuple[float, float, float]:
        """Return the accuracy between the ends of its 95 % interval: of one draw that of its images, else that of other
        images and of other draws, whose variances add up."""
        right = self.right[classifier, labels]
        seen, mean = ~np.isnan(right), float(np.nanmean(right))
        if len(right) == 1:
            low, high = design_of(right, self.clusters).interval(mean)
        else:
            ever = seen.any(axis=0)
            of_images = np.nansum(right, axis=0)[ever] / seen.sum(axis=0)[ever]
            design = design_of(of_images, None if self.clusters is None else self.clusters[ever])
            quantiles = norm.ppf([0.025, 0.975]) if design.alone else t.ppf([0.025, 0.975], max(1, design.groups - 1))
            error = np.hypot(sem(of_images) * design.effect**0.5, sem(np.nanmean(right, axis=1)))
            low, high = np.clip(mean + error * quantiles, 0, 1).tolist()
        return low, mean, high


def rank_backbones(arms: Mapping[str, RunConfig], shots: Sequence[int]) -> list[RankedBackbone]:
    """Judge all that can be had, with so many labels of each class (default: those of SHOTS that there are), the best
    first. Raises OptionError: a class has fewer training images than `shots`."""
    names, base = {config.model: arm for arm, config in arms.items()}, next(iter(arms.values()))
    starts, unseen, rows = dict.fromkeys(start for arm in arms.values() for start in starts_of(arm.model)), None, []
    for model, setup in probes(base.changed(data={"allow_seen": True}), names, labels=max(shots or SHOTS)):
        start = time.perf_counter()
        unseen = images_to_judge(setup.data.samples, starts, allow=base.data.allow_seen) if unseen is None else unseen
        right = {key: found[:, unseen] for key, found in score_backbone(setup, fitting_shots(setup, shots)).items()}
        seconds = time.perf_counter() - start
        parameters = sum(parameter.numel() for parameter in setup.model.requires_grad_(True).parameters())
        clusters = units_of_scored(setup)[unseen]
        rows.append(RankedBackbone(names[model], parameters, seconds, right, clusters))
    return sorted(rows, key=lambda row: -row.accuracy(RIDGE, ALL)[1])


def images_to_judge(samples: Samples, starts: Collection[Start], *, allow: bool) -> np.ndarray:
    """Choose the images of train, then of val, that no start was trained on, bool (N,); with `allow` all.

    Prints how many others there are. Raises DataError: less than half is left."""
    rows = np.concatenate([samples.indices(split) for split in SCORED_ON])
    judged, said = without_seen(
        samples.with_splits({LEFT_OUT: samples.indices("test"), VAL: rows}), starts, allow=allow
    )
    for line in said:
        say(line.replace("val images", "train and val images"), label="note")
    return judged.splits[rows] != LEFT_OUT


def fitting_shots(setup: RunSetup, shots: Sequence[int]) -> list[int]:
    counts = np.bincount(image_set(setup.data.dataloaders["train"]).labels)
    least = int(counts.min())
    if max(shots, default=0) > least:
        name = setup.data.class_names[counts.argmin()]
        raise OptionError(f"--shots {max(shots)}: class {name} has {least} training images; at most --shots {least}")
    return sorted(set(shots)) or [shot for shot in SHOTS if shot <= least]


def units_of_scored(setup: RunSetup) -> Clusters:
    """Return the units of the images of train, then of val."""
    rows = [image_set(setup.data.dataloaders[split]).indices for split in SCORED_ON]
    return units_of(setup.data.samples, np.concatenate(rows))


def score_backbone(setup: RunSetup, shots: Sequence[int]) -> dict[tuple[str, str], np.ndarray]:
    """Compute which images each classifier has right at each number of labels: see `RankedBackbone.right`."""
    features = on_one_scale(
        setup, torch.cat([features_of(setup, split, keep=True).flatten(1).float() for split in SCORED_ON])
    )
    labels = np.concatenate([image_set(setup.data.dataloaders[split]).labels for split in SCORED_ON])
    units = units_of_scored(setup)
    images = setup.data.dataset_sizes["train"]
    numbers, targets = features.double().numpy(), np.eye(len(setup.data.class_names))[labels]
    unit, right = normalize(features), {}
    for name, drawn in [(str(shot), [*draws(labels[:images], shot)]) for shot in shots] + [(ALL, [np.arange(images)])]:
        said = {
            RIDGE: [predictions(numbers, targets, rows, units).argmax(axis=1) for rows in drawn],
            NEAREST: [labels[rows] for rows in nearest(unit, units, drawn)],
        }
        for classifier, classes in said.items():
            right[classifier, name] = (np.array(classes) == labels).astype(float)
            for row, rows in zip(right[classifier, name], drawn if name != ALL else (), strict=False):
                row[np.isin(units, units[rows])] = np.nan
    return right


def nearest(features: Tensor, units: np.ndarray, drawn: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return for each draw of rows the one at the least angle to each image, which is none of its own unit. `features`
    (n, D) of length 1; some images at a time, for of many classes the angles would fill the memory."""
    found = [np.empty(len(features), np.int64) for _ in drawn]
    trained = 1 + max(int(rows.max()) for rows in drawn)
    for start in range(0, len(features), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        alike = (features[part] @ features[:trained].T).numpy()  # the cosines of the angles
        alike[units[part, None] == units[:trained]] = -np.inf
        for rows, place in zip(drawn, found, strict=True):
            place[part] = rows[alike[:, rows].argmax(axis=1)]
    return found


def on_one_scale(setup: RunSetup, features: Tensor) -> Tensor:
    """The features (n, D); those of several networks side by side so that none speaks louder than the others."""
    if not isinstance(setup.model, SideBySide):
        return features
    from trainers.heads.linear import scale

    numbers = features.numpy()
    return torch.from_numpy(scale(numbers[: setup.data.dataset_sizes["train"]], setup.model.columns)(numbers)).float()


def draws(labels: np.ndarray, shots: int) -> Iterator[np.ndarray]:
    """Rows of so many images of each class, DRAWS times."""
    for number in range(DRAWS):
        order = np.random.default_rng((shots, number)).permutation(len(labels))
        yield np.concatenate([order[labels[order] == label][:shots] for label in np.unique(labels)])


def table(rows: Sequence[RankedBackbone]) -> Iterator[str]:
    """Yield the table, in at most 120 columns, and what follows from it."""
    labels = [name for classifier, name in rows[0].right if classifier == RIDGE]
    first, *others = (row.right[RIDGE, ALL].astype(bool) for row in rows)
    behind = [paired_difference(first, other, rows[0].clusters) for other in others]
    header = ["arm", *labels, NEAREST, "behind", "parameters", "seconds"]
    lines = [
        [
            row.arm,
            *(_percent(row.accuracy(RIDGE, name), 0) for name in labels[:-1]),
            _percent(row.accuracy(RIDGE, ALL)),
            _percent(row.accuracy(NEAREST, ALL)),
            _percent((other.low, other.mean, other.high)) if other else "-",
            f"{row.parameters:,}",
            f"{row.seconds:.1f}",
        ]
        for row, other in zip(rows, (None, *behind), strict=True)
    ]
    yield from format_table([header, *lines])
    seen, design = f"on {first.shape[1]:,} images of train and val", design_of(first, rows[0].clusters)
    yield f"accuracy, %, {seen}; ± half of a 95 % interval: other images, other draws"
    if not design.alone:
        yield f"groups: these images come {design} that stand alone; intervals and verdicts draw whole groups"
    yield f"1 to all: ridge regression on this many labels of each class, {DRAWS} draws; nearest: one neighbour, all"
    yield "behind: points behind the first, with all labels"
    adjusted = holm([other.p for other in behind])
    level = [row.arm for row, other, p in zip(rows[1:], behind, adjusted, strict=True) if not is_claim(other, p)]
    yield f"worth fine-tuning: {rows[0].arm}" + "".join(f", or {arm}" for arm in level)


def _percent(interval: tuple[float, float, float], places: int = 1) -> str:
    low, mean, high = interval
    return f"{100 * mean:.{places}f} ±{50 * (high - low):.{places}f}"


def compare_command(data: DataConfig, arms: Sequence[str]) -> str:
    """Return the command that compares these arms on the same images."""
    return command("compare", *words(data), "--arms", *arms)


def write(rows: Sequence[RankedBackbone], config: RunConfig) -> Path:
    """ranking.csv and ranking.png in the folder of the runs on these images, which is returned."""
    folder = claimed_folder(config.output, config.data.source)
    header = ("backbone", "classifier", "labels", "low", "accuracy", "high", "draws", "images")
    cells = [
        (row.arm, *key, *row.accuracy(*key), *right.shape, row.parameters, row.seconds)
        for row in rows
        for key, right in row.right.items()
    ]
    write_text(folder / "ranking.csv", csv_text((*header, "parameters", "seconds"), cells))
    labels = [name for classifier, name in rows[0].right if classifier == RIDGE]
    points = [[100 * np.nanmean(row.right[RIDGE, name], axis=1) for row in rows] for name in labels]
    intervals = [[row.accuracy(RIDGE, name)[::2] for row in rows] for name in labels]
    figure = accuracy_by_labels([row.arm for row in rows], labels, points, 100 * np.array(intervals))
    write_bytes(folder / "ranking.png", png(figure))
    return folder
