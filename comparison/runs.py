"""Finished runs, read from their files, and what makes them comparable: the same images, and the same seeds."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from common.errors import CheckpointError, DataError
from common.shell import command
from common.text import pluralise
from comparison.names import arm_names, settings
from datasets.bundle import SPLITS
from datasets.copies import united
from datasets.split_csv import SplitRow, clusters_of, read_split
from trainers.config import to_dict
from trainers.seen import left_out_of
from trainers.statistics import Design, design_of
from trainers.storage.predictions_file import predictions_of
from trainers.storage.run_folder import RunFolder

Item = TypeVar("Item")


@dataclass(frozen=True)
class FinishedRun:
    """A finished run directory: its options, results, and predictions for N test images of C classes, by path."""

    run_dir: Path
    seed: int
    config: dict[str, Any]
    summary: dict[str, Any]
    meta: dict[str, Any]
    history: list[dict[str, Any]]
    """metrics.csv: numbers, None where a cell is empty."""
    paths: tuple[str, ...]
    labels: np.ndarray  # int64 (N,)
    predicted: np.ndarray  # int64 (N,)
    probabilities: np.ndarray  # float64 (N, C)
    class_names: tuple[str, ...]
    left_out: frozenset[str] = frozenset()
    """Paths left out because another run started from weights trained on them."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """Group by path of the images that have one in split.csv."""

    @property
    def correct(self) -> np.ndarray:
        """bool (N,)"""
        return self.labels == self.predicted

    @property
    def accuracy(self) -> float:
        return float(self.correct.mean())

    @property
    def clusters(self) -> np.ndarray:
        """int64 (N,): images of one group share a number."""
        return clusters_of(self.paths, self.groups)

    @property
    def confusion(self) -> np.ndarray:
        """int64 (C, C), rows true."""
        count = len(self.class_names)
        return np.bincount(self.labels * count + self.predicted, minlength=count**2).reshape(count, count)


@dataclass(frozen=True)
class Arm:
    """One way to train, with one run per seed, ordered by seed."""

    name: str
    runs: tuple[FinishedRun, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.seed for run in self.runs)

    @property
    def correct(self) -> np.ndarray:
        """bool (K, N)"""
        return np.stack([run.correct for run in self.runs])

    @property
    def accuracies(self) -> np.ndarray:
        """float64 (K,)"""
        return self.correct.mean(axis=1)


@dataclass(frozen=True)
class Condition:
    """Arms trained on the same images: `labels_per_class` of each class, or all of them (None)."""

    labels_per_class: int | None
    arms: tuple[Arm, ...]

    @property
    def labels(self) -> str:
        """Number of labels as text for a table and a file's name."""
        return "all" if self.labels_per_class is None else str(self.labels_per_class)

    @property
    def title(self) -> str:
        return labels_text(self.labels_per_class)

    @property
    def names(self) -> list[str]:
        return [arm.name for arm in self.arms]

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.arms[0].runs[0].class_names

    @cached_property
    def clusters(self) -> np.ndarray:
        """int64 (N,): test images of one group, in any of the runs, share a number."""
        return reduce(united, (run.clusters for arm in self.arms for run in arm.runs))

    @property
    def design(self) -> Design:
        """Design effect of the groups of test images, over all runs."""
        return design_of(np.concatenate([arm.correct for arm in self.arms]), self.clusters)


def labels_text(count: int | None, *, every: str = "all labels") -> str:
    return every if count is None else f"{pluralise(count, 'label')} per class"


@dataclass(frozen=True)
class Comparison:
    """Everything a report is made of."""

    data: str
    conditions: tuple[Condition, ...]
    protocol: tuple[str, ...]
    warnings: tuple[str, ...]
    tuning: tuple[dict[str, Any], ...] = ()
    """Rows with labels_per_class, arm, lr, val_accuracy, val_loss, chosen."""
    scored: str = "test"
    """Name of the test images, such as "held-out validation"."""


def read_run(run_dir: Path) -> FinishedRun:
    """Read a finished run. Raises FileNotFoundError: no run directory, or it lacks a file. DataError: it is not
    finished, or has no test images. CheckpointError: a damaged file."""
    run = RunFolder.find(str(run_dir))
    config, summary = run.given, run.summary
    if (status := summary["status"]) != "finished":
        raise DataError(f"{run} is {status}, not finished; finish it with: {command('resume', run.path)}")
    open_yet = [name for name in ("epochs", "lr") if getattr(config.train, name) is None]
    if open_yet:
        raise CheckpointError(f"{run}/config.json is damaged: {open_yet[0]} of a run that has ended is open")
    if not any(run.path.glob("eval/test_predictions.*")):
        raise DataError(
            f"{run} has no eval/test_predictions.csv: runs are compared on test images; where a set has none, "
            f"{command('compare', '--data', 'FOLDER')} holds some out"
        )
    images = predictions_of(run, "test")
    rows = read_split(run.path / "split.csv")
    groups = {row.path: row.group for row in rows if row.split == "test" and row.group}
    known = (run.path, config.train.seed, to_dict(config), summary, run.meta, run.history, *images)
    return FinishedRun(*known, groups=groups)


def on_unseen(runs: Sequence[FinishedRun]) -> tuple[list[FinishedRun], list[str]]:
    """Leave out of all runs the test images that the weights of one of them were trained on; return lines about it.

    A run with `--allow-seen` left nothing out: its own lines are returned. Raises DataError: less than half is left.
    """
    allowed = [run.run_dir for run in runs if run.config["data"].get("allow_seen")]
    said = [f"{run_dir}: {line}" for run_dir in allowed for line in RunFolder(run_dir).seen]
    gone = frozenset(path for run in runs for path in left_out_of(run.run_dir))
    parts = [without(run, gone) for run in runs]
    lost = max(len(run.paths) - len(part.paths) for run, part in zip(runs, parts, strict=True))
    if not lost:
        return parts, said
    most = max(len(run.paths) for run in runs)
    line = f"{pluralise(lost, 'image')} of {most:,} were used to train what some of these runs started from"
    if 2 * (most - lost) < most:
        raise DataError(f"{line}: too few are left to compare on; train them from one start, or with one --split")
    return parts, [f"{line}: left out for all of them", *said]


def without(run: FinishedRun, gone: frozenset[str]) -> FinishedRun:
    """Drop images of a run."""
    kept = np.array([path not in gone for path in run.paths], bool)
    paths = tuple(path for path in run.paths if path not in gone)
    columns = {name: getattr(run, name)[kept] for name in ("labels", "predicted", "probabilities")}
    return replace(run, paths=paths, left_out=gone, **columns)


def require_same_data(runs: Sequence[FinishedRun], *, splits: Sequence[str] = SPLITS) -> None:
    """Raise DataError for runs with different images, classes or labels in these splits."""
    first, *others = runs
    for other in others:
        if reasons := differences(first, other, splits):
            raise DataError(f"{first.run_dir} and {other.run_dir} cannot be compared: {'; '.join(reasons)}")


def differences(first: FinishedRun, other: FinishedRun, splits: Sequence[str] = SPLITS) -> list[str]:
    """List how the data of two runs differ in these splits, as phrases; A is the first run."""
    if first.class_names != other.class_names:
        unlike = _unlike("classes", set(first.class_names), set(other.class_names))
        return unlike or ["the same classes in another order"]
    ours, theirs = ({path: row for path, row in split_rows(run) if row.split in splits} for run in (first, other))
    reasons = []
    for split in reversed(splits):
        named = ({path for path, row in table.items() if row.split == split} for table in (ours, theirs))
        reasons += _unlike(f"{split} images", *named)
    for column, name in (("hash", "content"), ("label", "label")):
        both = [path for path in ours if path in theirs]
        changed = [path for path in both if getattr(ours[path], column) != getattr(theirs[path], column)]
        if changed:
            reasons.append(f"{pluralise(len(changed), 'image')} changed {name}, first {changed[0]!r}")
    if not reasons and first.paths != other.paths:
        reasons.append(f"predictions for {len(first.paths):,} images in A, {len(other.paths):,} in B")
    return reasons


def split_rows(run: FinishedRun) -> Iterator[tuple[str, SplitRow]]:
    """Yield the images of a run by path, sorted, as its split.csv has them."""
    rows = sorted(read_split(run.run_dir / "split.csv"))
    return ((row.path, row) for row in rows if row.path not in run.left_out)


def _unlike(noun: str, ours: set[str], theirs: set[str]) -> list[str]:
    only = {"A": ours - theirs, "B": theirs - ours}
    parts = [f"{len(names):,} only in {run}, first {min(names)!r}" for run, names in only.items() if names]
    return [f"{len(ours):,} {noun} in A, {len(theirs):,} in B ({'; '.join(parts)})"] if parts else []


def group_into_arms(runs: Sequence[FinishedRun]) -> tuple[Arm, ...]:
    """Group runs that differ in their seed alone into arms, in the order of first appearance.

    A second run of the same configuration and seed begins an arm of its own. Raises DataError: one arm, or arms with
    other seeds.
    """
    groups: dict[tuple[str, int], dict[int, FinishedRun]] = {}
    for run in runs:
        text = json.dumps(settings(run.config), sort_keys=True)
        copy = next(number for number in count(1) if run.seed not in groups.get((text, number), {}))
        groups.setdefault((text, copy), {})[run.seed] = run
    if len(groups) < 2:
        raise DataError(
            f"{pluralise(len(runs), 'run')} of one configuration are one arm, not a comparison; "
            "name runs that differ in more than their seed"
        )
    arms = list(groups.values())
    names = arm_names([next(iter(arm.values())).config for arm in arms], planned=False)
    names = [f"{name} ({copy})" if copy > 1 else name for name, (_, copy) in zip(names, groups, strict=True)]
    if any(arm.keys() != arms[0].keys() for arm in arms):
        listed = "; ".join(f"{name}: {sorted(arm)}" for name, arm in zip(names, arms, strict=True))
        raise DataError(f"the arms have different seeds ({listed}); name runs of the same seeds")
    return tuple(Arm(name, tuple(arm[seed] for seed in sorted(arm))) for name, arm in zip(names, arms, strict=True))


def cautions(arms: Sequence[Arm]) -> Iterator[str]:
    """Yield which arms were trained on other images than the first."""
    for arm in arms[1:]:
        if reasons := differences(arms[0].runs[0], arm.runs[0]):
            yield f"{arms[0].name} (A) and {arm.name} (B) were trained on different images: {'; '.join(reasons)}"
