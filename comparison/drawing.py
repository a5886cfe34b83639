"""The figures of a comparison, with one colour per arm. Without pyplot, which has global state."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from comparison.results import ConditionResult, calibration_bins
from comparison.runs import Arm, Condition, FinishedRun
from trainers.reporting.figures.results import GREY, draw_counts, escape, png, shorten, tidy

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito 2008
MOST_CLASSES = 40  # of a confusion matrix that can be read
NUMBERED_CLASSES = 15
ACROSS = 4  # panels in a row

TITLES = {
    "differences": "Differences",
    "accuracy_by_labels": "Accuracy by labels per class",
    "learning_curves": "Learning curves",
    "confusion": "Confusion matrices",
    "reliability": "Reliability",
}


@dataclass(frozen=True)
class ReportFigure:
    """A figure of the report, as PNG."""

    kind: str
    """A key of TITLES."""
    condition: Condition | None
    """The condition that it shows; None: all."""
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
        """Width in pixels, from the PNG's header."""
        return int.from_bytes(self.png[16:20], "big")


def draw(results: Sequence[ConditionResult]) -> Iterator[ReportFigure]:
    """Yield all figures, in the order of the report."""
    caption = "Mean over the seeds and its 95 % interval, which covers images and seeds; right of zero is better."
    yield ReportFigure("differences", None, caption, png(draw_differences(results)))
    if len(results) > 1:
        names = results[0].condition.names
        accuracies = [[100 * arm.accuracies for arm in result.condition.arms] for result in results]
        ends = [[[row.scores[f"wilson_{end}"] for end in ("low", "high")] for row in result.arms] for result in results]
        labels = [result.condition.labels for result in results]
        figure = accuracy_by_labels(names, labels, accuracies, 100 * np.array(ends))
        caption = (
            "Points are seeds, lines their mean, bars the Wilson 95 % interval from the lowest to the highest run."
        )
        yield ReportFigure("accuracy_by_labels", None, caption, png(figure))
    for result in results:
        condition, named = result.condition, result.condition if len(results) > 1 else None
        caption = "On the validation images. Thin lines are seeds, thick ones their mean."
        yield ReportFigure("learning_curves", named, caption, png(learning_curves(condition)))
        if len(condition.class_names) <= MOST_CLASSES:
            seeds = len(condition.arms[0].runs)
            added = f", {seeds} seeds added up" if seeds > 1 else ""
            caption = f"Counts of scored images{added}. Rows are the true classes."
            yield ReportFigure("confusion", named, caption, png(confusion_matrices(condition)))
        caption = "On the diagonal confidence equals accuracy; below it the arm is overconfident. ECE is the mean gap."
        yield ReportFigure("reliability", named, caption, png(draw_reliability(result)))


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def learning_curves(condition: Condition) -> Figure:
    """Draw validation accuracy and loss of every arm's runs over steps, images and seconds.

    Thin lines are seeds; the thick one is their mean, if all have the same number of epochs.
    """
    figure = Figure(figsize=(11, 6.2), layout="constrained")
    grid = figure.subplots(2, 3, sharex="col", sharey="row")
    of_arms = [[curves(run) for run in arm.runs] for arm in condition.arms]
    for column, (measure, label) in enumerate(
        (("step", "steps"), ("images", "training images seen"), ("seconds", "seconds of training"))
    ):
        for axis, score in zip(grid[:, column], ("val_accuracy", "val_loss"), strict=True):
            for index, of_runs in enumerate(of_arms):
                _curves(axis, [(run[measure], run[score]) for run in of_runs], colour(index))
            tidy(axis)
        grid[1, column].set_xlabel(label)
    grid[0, 0].set_ylabel("validation accuracy, %")
    grid[1, 0].set_ylabel("validation loss")
    _legend(figure, condition.names)
    return figure


def curves(run: FinishedRun) -> dict[str, np.ndarray]:
    """Return the columns of a run's history, with the images seen in proportion to the steps."""
    columns = {
        name: np.array([row.get(name) for row in run.history], dtype=float)  # NaN for None
        for name in ("step", "seconds", "val_accuracy", "val_loss")
    }
    images = columns["step"] * run.summary["images_seen"] / max(1.0, columns["step"][-1])
    seconds, accuracy = np.cumsum(np.nan_to_num(columns["seconds"])), 100 * columns["val_accuracy"]
    return columns | {"images": images, "seconds": seconds, "val_accuracy": accuracy}


def _curves(axis, lines: Sequence[tuple[np.ndarray, np.ndarray]], shade: str) -> None:
    for x, y in lines:
        axis.plot(x, y, color=shade, linewidth=0.9, alpha=0.45 if len(lines) > 1 else 1)
    if len({len(x) for x, _ in lines}) == 1 and len(lines) > 1:
        axis.plot(*np.mean(lines, axis=0), color=shade, linewidth=2)


def draw_differences(results: Sequence[ConditionResult]) -> Figure:
    """Draw a row for each other arm: its difference to the first, in points, and its interval.

    Names are above their bars, so that a phone shows the whole figure.
    """
    first, *others = results[0].condition.names
    where = [f", {result.condition.title}" if len(results) > 1 else "" for result in results]
    names = [_wrapped(f"{other}{title}", 62) for title in where for other in others]
    intervals = [row.against_first.interval for result in results for row in result.arms if row.against_first]
    lines = max(name.count("\n") for name in names) + 1
    figure = Figure(figsize=(5.4, 0.9 + (0.55 + 0.16 * lines) * len(names)), layout="constrained")
    axis = figure.subplots()
    for row, (low, middle, high) in enumerate(100 * np.array(intervals)):
        shade = colour(1 + row % len(others))
        axis.plot([low, high], [row, row], color=shade, linewidth=6, alpha=0.3, solid_capstyle="butt")
        axis.plot(middle, row, "o", color=shade, markersize=7)
        axis.annotate(f"{middle:+.1f}", (middle, row), (0, 7), textcoords="offset points", ha="center", fontsize=9)
        axis.annotate(names[row], (0.01, row), (0, 20), ("axes fraction", "data"), "offset points", fontsize=9)
    rows = np.arange(len(names))
    axis.vlines(np.zeros(len(names)), rows - 0.2, rows + 0.25, color=GREY, linewidth=1)  # no line runs through a name
    axis.set_yticks([])
    axis.set(ylim=(len(names) - 0.5, -0.9))
    axis.set_xlabel(_wrapped(f"points of accuracy above {first}", 62))
    tidy(axis)
    axis.grid(False)
    return figure


def accuracy_by_labels(
    names: Sequence[str], labels: Sequence[str], accuracies: Sequence[Sequence[np.ndarray]], intervals: np.ndarray
) -> Figure:
    """Draw accuracy over labels per class: points are seeds, lines their mean, bars an interval.

    `accuracies`: percent, by labels and arms an array (K,) over seeds. `intervals`: (labels, arms, 2).
    """
    figure = Figure(figsize=(max(5.0, 2.6 + 1.3 * len(labels)), 4.2), layout="constrained")
    axis = figure.subplots()
    for index in range(len(names)):
        places = np.arange(len(labels)) + 0.07 * (index - (len(names) - 1) / 2)
        points = [arms[index] for arms in accuracies]
        axis.vlines(places, *intervals[:, index].T, color=colour(index), linewidth=5, alpha=0.22)
        counts = [len(seeds) for seeds in points]
        axis.scatter(np.repeat(places, counts), np.concatenate(points), s=14, color=colour(index), zorder=3)
        axis.plot(places, [seeds.mean() for seeds in points], color=colour(index), linewidth=1.8)
    axis.set_xticks(range(len(labels)), labels)
    axis.set(xlim=(-0.4, len(labels) - 0.6), xlabel="training images per class", ylabel="accuracy, %")
    tidy(axis)
    _legend(figure, names)
    return figure


def confusion(arm: Arm) -> np.ndarray:
    """Sum the confusion matrices of an arm's runs: int64 (C, C), rows true."""
    return np.sum([run.confusion for run in arm.runs], axis=0)


def confusion_matrices(condition: Condition) -> Figure:
    """Draw the confusion matrices of all arms side by side, rows true, shaded by the share of the row."""
    names, class_names = condition.names, condition.class_names
    count = len(class_names)
    side = float(np.clip(1.4 + 0.27 * count, 2.6, 8.0))
    across = min(len(names), max(2, int(13 / side)))
    down = -(-len(names) // across)
    labels = [escape(shorten(name, 14)) for name in class_names]
    small = 8 if count <= 20 else 6
    upright = count * max(map(len, labels)) > 9 * side
    titles = [_wrapped(name, int(7 * side)) for name in names]
    beside = 0.16 * max(title.count("\n") for title in titles) + 0.06 * upright * max(map(len, labels))
    # Constrained layout lets the titles and labels of square panels run over the edges; this one does not.
    figure = Figure(figsize=(side * across + 0.9, (side + beside) * down + 0.4), layout="compressed")
    grid = figure.subplots(down, across, squeeze=False)
    for index, axis in enumerate(_used(grid, len(names))):
        leftmost = index % across == 0
        draw_counts(axis, confusion(condition.arms[index]), numbered=count <= NUMBERED_CLASSES)
        axis.set_title(titles[index], fontsize=9, color=colour(index))
        axis.set_xticks(range(count), labels, rotation=90 if upright else 0, fontsize=small)
        axis.set_yticks(range(count), labels if leftmost else [""] * count, fontsize=small)
        axis.set_xlabel("predicted", fontsize=9)
        if leftmost:
            axis.set_ylabel("true", fontsize=9)
    figure.colorbar(ScalarMappable(Normalize(0, 1), "Blues"), ax=grid, shrink=0.7, label="share of the true class")
    return figure


def draw_reliability(result: ConditionResult) -> Figure:
    """Draw accuracy over confidence of every arm, all seeds together; a point's area grows with its images."""
    names = result.condition.names
    across = min(len(names), ACROSS)
    down = -(-len(names) // across)
    figure = Figure(figsize=(max(4.2, 3.1 * across), 3.3 * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    for index, axis in enumerate(_used(grid, len(names))):
        runs = result.condition.arms[index].runs
        bins = np.sum([calibration_bins(run).numpy() for run in runs], axis=0)
        count, confidence, right = bins[:, bins[0] > 0]
        confidence, accuracy = confidence / count, right / count
        areas = 12 + 120 * count / count.sum()
        axis.plot([0, 1], [0, 1], "--", color=GREY, linewidth=1)
        axis.plot(confidence, accuracy, color=colour(index), linewidth=1.2)
        axis.scatter(confidence, accuracy, s=areas, color=colour(index), alpha=0.7)
        title = f"{_wrapped(names[index], 34)}\nECE {result.arms[index].scores['ece']:.3f}"
        axis.set_title(title, fontsize=9, color=colour(index))
        axis.set(xlabel="confidence", xlim=(0, 1.02), ylim=(-0.02, 1.02))
        tidy(axis)
    grid[0, 0].set_ylabel("accuracy")
    return figure


def _used(grid: np.ndarray, count: int) -> np.ndarray:
    """Return the first `count` axes of a grid, and hide the others."""
    for axis in grid.ravel()[count:]:
        axis.set_axis_off()
    return grid.ravel()[:count]


def _legend(figure: Figure, names: Sequence[str]) -> None:
    lines = [Line2D([], [], color=colour(index), linewidth=2.5) for index in range(len(names))]
    texts = [_wrapped(name, int(14 * figure.get_figwidth() - 8)) for name in names]
    figure.legend(lines, texts, loc="outside upper left", ncols=1, frameon=False, fontsize=9)


def _wrapped(text: str, width: int) -> str:
    return escape("\n".join(textwrap.wrap(shorten(text, 3 * width), width) or [""]))
