"""The pictures of a comparison. One colour per arm, the same in all of them. No pyplot: no global state."""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from comparison.pictures import Sight
from comparison.results import ConditionResult
from comparison.runs import Arm, Run
from comparison.statistics import calibration_bins, ece
from figures.attention import overlay
from figures.results import GREY, escape, shorten

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito 2008
MOST_CLASSES = 40  # of a confusion matrix that can be read
NUMBERED_CLASSES = 15
ACROSS = 4  # panels in a row


@dataclass(frozen=True)
class Picture:
    """A finished figure: what it is, the file it goes to, and its PNG."""

    title: str
    caption: str
    file: str
    png: bytes


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def png(figure: Figure) -> bytes:
    content = io.BytesIO()
    with warnings.catch_warnings():
        # A class name in a script that the font lacks is drawn as boxes; its text stands in the tables.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        figure.savefig(content, format="png", dpi=120)
    return content.getvalue()


def learning_curves(arms: Sequence[Arm]) -> Figure:
    """Validation accuracy and loss over steps, images and seconds: thin lines are seeds, the thick one their mean."""
    figure = Figure(figsize=(11, 6.2), layout="constrained")
    grid = figure.subplots(2, 3, sharex="col", sharey="row")
    for column, (label, measure) in enumerate(
        (("steps", steps), ("training images seen", images_seen), ("seconds of training", seconds))
    ):
        for row, (name, scale) in enumerate((("val_accuracy", 100.0), ("val_loss", 1.0))):
            axis = grid[row, column]
            for index, arm in enumerate(arms):
                _curve(axis, arm, measure, name, scale=scale, index=index)
            _tidy(axis)
        grid[1, column].set_xlabel(label)
    grid[0, 0].set_ylabel("validation accuracy, %")
    grid[1, 0].set_ylabel("validation loss")
    _legend(figure, arms)
    return figure


def steps(run: Run) -> np.ndarray:
    return np.array([row["step"] for row in run.history], dtype=float)


def images_seen(run: Run) -> np.ndarray:
    """In proportion to the steps, up to the images of the whole run."""
    done = steps(run)
    return done * run.summary["images_seen"] / max(1.0, done[-1])


def seconds(run: Run) -> np.ndarray:
    return np.cumsum([row.get("seconds") or 0.0 for row in run.history])


def _curve(axis, arm: Arm, measure, name: str, *, scale: float, index: int) -> None:
    lines = []
    for run in arm.runs:
        x, y = measure(run), np.array([np.nan if row[name] is None else row[name] * scale for row in run.history])
        lines.append((x, y))
        axis.plot(x, y, color=colour(index), linewidth=0.9, alpha=0.45 if len(arm.runs) > 1 else 1)
    if len({len(x) for x, _ in lines}) == 1 and len(lines) > 1:
        x, y = (np.mean([line[part] for line in lines], axis=0) for part in (0, 1))
        axis.plot(x, y, color=colour(index), linewidth=2)


def accuracy_by_labels(results: Sequence[ConditionResult]) -> Figure:
    """Accuracy over labels per class: points are seeds, lines their mean, bars Wilson's 95 % interval of one run."""
    arms = [arm.name for arm in results[0].condition.arms]
    figure = Figure(figsize=(max(5.0, 2.6 + 1.3 * len(results)), 4.2), layout="constrained")
    axis = figure.subplots()
    for index, name in enumerate(arms):
        shift = 0.07 * (index - (len(arms) - 1) / 2)
        centres, means = [], []
        for place, result in enumerate(results):
            scores = next((each for each in result.scores if each.arm.name == name), None)
            if scores is None:
                continue
            x = place + shift
            low, high = min(low for low, _ in scores.intervals), max(high for _, high in scores.intervals)
            axis.vlines(x, 100 * low, 100 * high, color=colour(index), linewidth=5, alpha=0.22)
            axis.scatter(
                np.full(len(scores.accuracies), x), 100 * scores.accuracies, s=14, color=colour(index), zorder=3
            )
            centres.append(x)
            means.append(100 * scores.accuracy)
        axis.plot(centres, means, color=colour(index), linewidth=1.8)
    counts = [result.condition.labels_per_class for result in results]
    axis.set_xticks(range(len(results)), ["all" if count is None else str(count) for count in counts])
    axis.set_xlim(-0.4, len(results) - 0.6)
    axis.set_xlabel("training images per class")
    axis.set_ylabel("accuracy, %")
    _tidy(axis)
    _legend(figure, results[0].condition.arms)
    return figure


def confusion_matrices(arms: Sequence[Arm]) -> Figure:
    """Counts over all seeds, rows true, side by side; shaded by the share of the row."""
    names = arms[0].runs[0].class_names
    count = len(names)
    side = float(np.clip(1.4 + 0.27 * count, 2.6, 8.0))
    across = min(len(arms), max(2, int(13 / side)))
    down = -(-len(arms) // across)
    figure = Figure(figsize=(side * across + 0.9, side * down + 0.4), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False)
    for index, axis in enumerate(grid.ravel()):
        if index >= len(arms):
            axis.set_axis_off()
            continue
        matrix = confusion(arms[index])
        shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
        axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        axis.set_title(_wrapped(arms[index].name, int(7 * side)), fontsize=9, color=colour(index))
        small = 8 if count <= 20 else 6
        labels = [escape(shorten(name, 14)) for name in names]
        upright = count * max(map(len, labels)) > 9 * side
        axis.set_xticks(range(count), labels, rotation=90 if upright else 0, fontsize=small)
        axis.set_yticks(range(count), labels if index % across == 0 else [""] * count, fontsize=small)
        axis.set_xlabel("predicted", fontsize=9)
        if index % across == 0:
            axis.set_ylabel("true", fontsize=9)
        if count <= NUMBERED_CLASSES:
            for row, column in zip(*np.nonzero(matrix), strict=True):
                tone = "white" if shares[row, column] > 0.5 else "black"
                axis.text(column, row, f"{matrix[row, column]}", ha="center", va="center", fontsize=7, color=tone)
    figure.colorbar(ScalarMappable(Normalize(0, 1), "Blues"), ax=grid, shrink=0.7, label="share of the true class")
    return figure


def confusion(arm: Arm) -> np.ndarray:
    """int64 (C, C), rows true, summed over the arm's runs."""
    count = len(arm.runs[0].class_names)
    cells = np.concatenate([run.labels * count + run.predicted for run in arm.runs])
    return np.bincount(cells, minlength=count**2).reshape(count, count)


def reliability(arms: Sequence[Arm]) -> Figure:
    """Accuracy over confidence in 15 bins, over all seeds of an arm; a point's area goes with its images."""
    across = min(len(arms), ACROSS)
    down = -(-len(arms) // across)
    figure = Figure(figsize=(max(4.2, 3.1 * across), 3.3 * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    for index, axis in enumerate(grid.ravel()):
        if index >= len(arms):
            axis.set_axis_off()
            continue
        arm = arms[index]
        probabilities, labels = (
            np.concatenate([getattr(run, name) for run in arm.runs]) for name in ("probabilities", "labels")
        )
        count, confidence, accuracy = calibration_bins(probabilities, labels).T
        filled = count > 0
        axis.plot([0, 1], [0, 1], "--", color=GREY, linewidth=1)
        axis.plot(confidence[filled], accuracy[filled], color=colour(index), linewidth=1.2)
        axis.scatter(
            confidence[filled],
            accuracy[filled],
            s=12 + 120 * count[filled] / count.sum(),
            color=colour(index),
            alpha=0.7,
        )
        mean = np.mean([ece(run.probabilities, run.labels) for run in arm.runs])
        axis.set_title(f"{_wrapped(arm.name, 34)}\nECE {mean:.3f}", fontsize=9, color=colour(index))
        axis.set_xlabel("confidence")
        axis.set_xlim(0, 1.02)
        axis.set_ylim(-0.02, 1.02)
        _tidy(axis)
    grid[0, 0].set_ylabel("accuracy")
    return figure


def attention(sights: Sequence[Sight], titles: Sequence[str], colours: Sequence[int]) -> Figure:
    """The same images under the attention rollout of every arm; the first row without."""
    across, down = len(titles), len(sights) + 1
    figure = Figure(figsize=(1.75 * across + 0.6, 1.85 * down + 0.2), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False)
    for axis in grid.ravel():
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
    for column, title in enumerate(titles):
        overlay(grid[0, column], sights[0].pixels[column], None)
        grid[0, column].set_title(escape(shorten(title, 20)), fontsize=8)
        for row, sight in enumerate(sights):
            overlay(grid[row + 1, column], sight.pixels[column], sight.maps[column])
    grid[0, 0].set_ylabel("image", fontsize=8)
    for row, sight in enumerate(sights):
        grid[row + 1, 0].set_ylabel(_wrapped(sight.arm, 24), fontsize=8, color=colour(colours[row]))
    return figure


def _legend(figure: Figure, arms: Sequence[Arm]) -> None:
    lines = [Line2D([], [], color=colour(index), linewidth=2.5) for index in range(len(arms))]
    names = [escape(shorten(arm.name, 70)) for arm in arms]
    figure.legend(lines, names, loc="outside upper left", ncols=1, frameon=False, fontsize=9)


def _tidy(axis) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25, linewidth=0.6)


def _wrapped(text: str, width: int) -> str:
    return escape("\n".join(textwrap.wrap(shorten(text, 3 * width), width) or [""]))
