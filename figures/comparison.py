"""The pictures of a comparison, from arrays. One colour per arm, the same in all. No pyplot: no global state."""

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from figures.results import GREY, draw_counts, escape, shorten, tidy

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito 2008
MOST_CLASSES = 40  # of a confusion matrix that can be read
NUMBERED_CLASSES = 15
ACROSS = 4  # panels in a row
Curves = Mapping[str, np.ndarray]
"""The epochs of one run: steps, images, seconds, val_accuracy and val_loss, NaN where there is no value."""


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def learning_curves(names: Sequence[str], runs: Sequence[Sequence[Curves]]) -> Figure:
    """Validation accuracy and loss of every arm's runs over steps, images and seconds.

    Thin lines are seeds; the thick one is their mean, where all have the same number of epochs.
    """
    figure = Figure(figsize=(11, 6.2), layout="constrained")
    grid = figure.subplots(2, 3, sharex="col", sharey="row")
    for column, (measure, label) in enumerate(
        (("steps", "steps"), ("images", "training images seen"), ("seconds", "seconds of training"))
    ):
        for axis, score in zip(grid[:, column], ("val_accuracy", "val_loss"), strict=True):
            for index, curves in enumerate(runs):
                _curves(axis, [(run[measure], run[score]) for run in curves], colour(index))
            tidy(axis)
        grid[1, column].set_xlabel(label)
    grid[0, 0].set_ylabel("validation accuracy, %")
    grid[1, 0].set_ylabel("validation loss")
    _legend(figure, names)
    return figure


def _curves(axis, lines: Sequence[tuple[np.ndarray, np.ndarray]], shade: str) -> None:
    for x, y in lines:
        axis.plot(x, y, color=shade, linewidth=0.9, alpha=0.45 if len(lines) > 1 else 1)
    if len({len(x) for x, _ in lines}) == 1 and len(lines) > 1:
        axis.plot(*np.mean(lines, axis=0), color=shade, linewidth=2)


def differences(names: Sequence[str], points: np.ndarray, places: Sequence[int], *, beside: str) -> Figure:
    """A row for each of `names`: the points (rows, 3) by which it differs from the arm `beside` it, between the ends of
    their interval. `places`: the arms' among all arms, which give their colour."""
    figure = Figure(figsize=(8.4, 1.0 + 0.55 * len(names)), layout="constrained")
    axis = figure.subplots()
    for row, (low, middle, high) in enumerate(points):
        axis.plot([low, high], [row, row], color=colour(places[row]), linewidth=6, alpha=0.3, solid_capstyle="butt")
        axis.plot(middle, row, "o", color=colour(places[row]), markersize=7)
        axis.annotate(f"{middle:+.1f}", (middle, row), (0, 7), textcoords="offset points", ha="center", fontsize=9)
    axis.axvline(0, color=GREY, linewidth=1)
    axis.set_yticks(range(len(names)), [escape(name) for name in names], fontsize=9)
    axis.set(ylim=(len(names) - 0.4, -0.7), xlabel=f"points of accuracy beside {escape(shorten(beside, 60))}")
    tidy(axis)
    return figure


def accuracy_by_labels(
    names: Sequence[str], labels: Sequence[str], accuracies: Sequence[Sequence[np.ndarray]], intervals: np.ndarray
) -> Figure:
    """Accuracy over labels per class: points are seeds, lines their mean, bars an interval; percent, by labels and
    arms those of the seeds (K,), and (labels, arms, 2) for the ends of the bars."""
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


def confusion_matrices(names: Sequence[str], matrices: Sequence[np.ndarray], class_names: Sequence[str]) -> Figure:
    """Counts (C, C) of every arm, rows true, side by side; shaded by the share of the row."""
    count = len(class_names)
    side = float(np.clip(1.4 + 0.27 * count, 2.6, 8.0))
    across = min(len(names), max(2, int(13 / side)))
    down = -(-len(names) // across)
    figure = Figure(figsize=(side * across + 0.9, side * down + 0.4), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False)
    labels = [escape(shorten(name, 14)) for name in class_names]
    small = 8 if count <= 20 else 6
    upright = count * max(map(len, labels)) > 9 * side
    for index, axis in enumerate(_used(grid, len(names))):
        leftmost = index % across == 0
        draw_counts(axis, matrices[index], numbered=count <= NUMBERED_CLASSES)
        axis.set_title(_wrapped(names[index], int(7 * side)), fontsize=9, color=colour(index))
        axis.set_xticks(range(count), labels, rotation=90 if upright else 0, fontsize=small)
        axis.set_yticks(range(count), labels if leftmost else [""] * count, fontsize=small)
        axis.set_xlabel("predicted", fontsize=9)
        if leftmost:
            axis.set_ylabel("true", fontsize=9)
    figure.colorbar(ScalarMappable(Normalize(0, 1), "Blues"), ax=grid, shrink=0.7, label="share of the true class")
    return figure


def reliability(names: Sequence[str], bins: Sequence[np.ndarray], errors: Sequence[float]) -> Figure:
    """Accuracy over confidence, from the sums (3, bins) of images, confidence and right predictions of every arm; a
    point's area goes with its images. `errors` are their expected calibration errors."""
    across = min(len(names), ACROSS)
    down = -(-len(names) // across)
    figure = Figure(figsize=(max(4.2, 3.1 * across), 3.3 * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    for index, axis in enumerate(_used(grid, len(names))):
        count, confidence, right = bins[index][:, bins[index][0] > 0]
        confidence, accuracy = confidence / count, right / count
        areas = 12 + 120 * count / count.sum()
        axis.plot([0, 1], [0, 1], "--", color=GREY, linewidth=1)
        axis.plot(confidence, accuracy, color=colour(index), linewidth=1.2)
        axis.scatter(confidence, accuracy, s=areas, color=colour(index), alpha=0.7)
        title = f"{_wrapped(names[index], 34)}\nECE {errors[index]:.3f}"
        axis.set_title(title, fontsize=9, color=colour(index))
        axis.set(xlabel="confidence", xlim=(0, 1.02), ylim=(-0.02, 1.02))
        tidy(axis)
    grid[0, 0].set_ylabel("accuracy")
    return figure


def _used(grid: np.ndarray, count: int) -> np.ndarray:
    """The first `count` axes of a grid; the others are hidden."""
    for axis in grid.ravel()[count:]:
        axis.set_axis_off()
    return grid.ravel()[:count]


def _legend(figure: Figure, names: Sequence[str]) -> None:
    lines = [Line2D([], [], color=colour(index), linewidth=2.5) for index in range(len(names))]
    texts = [escape(shorten(name, 70)) for name in names]
    figure.legend(lines, texts, loc="outside upper left", ncols=1, frameon=False, fontsize=9)


def _wrapped(text: str, width: int) -> str:
    return escape("\n".join(textwrap.wrap(shorten(text, 3 * width), width) or [""]))
