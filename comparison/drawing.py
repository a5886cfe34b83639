"""From runs to arrays, and from arrays to the pictures of a report."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from comparison.results import ConditionResult
from comparison.runs import Arm, Condition, Run
from comparison.statistics import calibration_bins
from figures import comparison as figures
from figures.results import png

TITLES = {
    "differences": "Differences",
    "accuracy_by_labels": "Accuracy by labels per class",
    "learning_curves": "Learning curves",
    "confusion": "Confusion matrices",
    "reliability": "Reliability",
}


@dataclass(frozen=True)
class Picture:
    """A finished figure of a report, as PNG."""

    kind: str
    """A key of TITLES."""
    condition: Condition | None
    """What it shows, where a report has several conditions and the picture is of one of them."""
    caption: str
    png: bytes

    @property
    def file(self) -> str:
        return f"{self.kind}.png" if self.condition is None else f"{self.kind}_{self.condition.labels}_labels.png"

    @property
    def title(self) -> str:
        return TITLES[self.kind] + ("" if self.condition is None else f", {self.condition.title}")

    @property
    def width(self) -> int:
        """Pixels, from the PNG's header."""
        return int.from_bytes(self.png[16:20], "big")


def draw(results: Sequence[ConditionResult]) -> list[Picture]:
    """All figures, in the order in which a report shows them."""
    several = len(results) > 1
    pictures = [_differences(results), *([_accuracy_by_labels(results)] if several else [])]
    for result in results:
        pictures += _of_condition(result, result.condition if several else None)
    return pictures


def _differences(results: Sequence[ConditionResult]) -> Picture:
    first, *others = results[0].condition.names
    names = [f"{other}\n{result.condition.title}" for result in results for other in others]
    intervals = [row.against_first.interval for result in results for row in result.arms if row.against_first]
    places = [*range(1, 1 + len(others))] * len(results)
    figure = figures.differences(names, 100 * np.array(intervals), places, beside=first)
    caption = "Mean over the seeds and its 95 % interval, which covers images and seeds; right of zero is better."
    return Picture("differences", None, caption, png(figure))


def _accuracy_by_labels(results: Sequence[ConditionResult]) -> Picture:
    conditions = [result.condition for result in results]
    accuracies = [[100 * arm.accuracies for arm in condition.arms] for condition in conditions]
    ends = [[[row.scores[f"wilson_{end}"] for end in ("low", "high")] for row in result.arms] for result in results]
    labels = [condition.labels for condition in conditions]
    figure = figures.accuracy_by_labels(conditions[0].names, labels, accuracies, 100 * np.array(ends))
    caption = "Points are seeds, lines their mean, bars the Wilson 95 % interval from the lowest to the highest run."
    return Picture("accuracy_by_labels", None, caption, png(figure))


def _of_condition(result: ConditionResult, named: Condition | None) -> Iterator[Picture]:
    """Everything that is drawn of one condition, which is `named` where there are several."""
    arms, names, class_names = result.condition.arms, result.condition.names, result.condition.class_names
    figure = figures.learning_curves(names, [[curves(run) for run in arm.runs] for arm in arms])
    caption = "On the validation images. Thin lines are seeds, thick ones their mean."
    yield Picture("learning_curves", named, caption, png(figure))
    if len(class_names) <= figures.MOST_CLASSES:
        added = f", {len(arms[0].runs)} seeds added up" if len(arms[0].runs) > 1 else ""
        figure = figures.confusion_matrices(names, list(map(confusion, arms)), class_names)
        yield Picture("confusion", named, f"Counts of scored images{added}. Rows are the true classes.", png(figure))
    of_runs = [[calibration_bins(run.probabilities, run.labels).numpy() for run in arm.runs] for arm in arms]
    bins, errors = [np.sum(of_arm, axis=0) for of_arm in of_runs], [row.scores["ece"] for row in result.arms]
    figure = figures.reliability(names, bins, errors)
    caption = "On the diagonal confidence is honest; below it the arm is too sure. ECE is the mean gap."
    yield Picture("reliability", named, caption, png(figure))


def curves(run: Run) -> figures.Curves:
    """The epochs of a run; its images in proportion to the steps, up to those of the whole run."""
    columns = {
        name: np.array([row.get(name) for row in run.history], dtype=float)  # NaN for None
        for name in ("step", "seconds", "val_accuracy", "val_loss")
    }
    return {
        "steps": columns["step"],
        "images": columns["step"] * run.summary["images_seen"] / max(1.0, columns["step"][-1]),
        "seconds": np.cumsum(np.nan_to_num(columns["seconds"])),
        "val_accuracy": 100 * columns["val_accuracy"],
        "val_loss": columns["val_loss"],
    }


def confusion(arm: Arm) -> np.ndarray:
    """int64 (C, C), rows true, summed over the arm's runs."""
    return np.sum([run.confusion for run in arm.runs], axis=0)
