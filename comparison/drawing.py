"""Draw a comparison: its figures, and its rows in TensorBoard.

Each model has one colour; pyplot's state is not used.
TensorBoard knows no groups of runs, so each model has a row of its own. The first section holds its mean validation
accuracy over the seeds, the last its lowest and its highest seed. The Custom Scalars tab lays them over each other in
margin charts. Steps are training images seen: models with other batch sizes take other numbers of steps.
"""

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch.utils.tensorboard import SummaryWriter

from common.text import ellipsis
from comparison.results import Comparison, by_arm, rows_of
from comparison.runs import slugs
from trainers.reporting.figures.results import GREY, escape, png, tidy
from trainers.reporting.tensorboard import add_png, utf8

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito 2008
WIDTH = 5.4
"""Inches across, of which a phone shows the words at a readable size."""

TITLES = {
    "differences": "Differences",
    "accuracy_by_labels": "Accuracy by labels per class",
    "learning_curves": "Learning curves",
}


class ReportFigure(NamedTuple):
    """A figure of the report, as PNG."""

    kind: str
    """A key of TITLES."""
    condition: str
    """Title of the label budget that it shows; empty: all."""
    file: str
    caption: str
    png: bytes


def draw(comparison: Comparison) -> Iterator[ReportFigure]:
    """Yield all figures, in the order of the report."""
    conditions = comparison.conditions
    caption = "Mean over the seeds with its 95% interval, which covers images and seeds; right of zero is better."
    yield ReportFigure("differences", "", "differences.png", caption, png(draw_differences(comparison)))
    if len(conditions) > 1:
        caption = "Points are seeds, lines their mean, bars the Wilson 95% interval from the lowest to the highest run."
        drawn = png(accuracy_by_labels(comparison))
        yield ReportFigure("accuracy_by_labels", "", "accuracy_by_labels.png", caption, drawn)
    caption = "On the validation images. Thin lines are seeds, thick ones their mean."
    for each in conditions:
        title, end = (each.title, f"_{each.labels}_labels") if len(conditions) > 1 else ("", "")
        drawn = png(learning_curves(each))
        yield ReportFigure("learning_curves", title, f"learning_curves{end}.png", caption, drawn)


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def learning_curves(condition: Comparison) -> Figure:
    """Draw validation accuracy and loss of every model's runs over the training images seen.

    Thin lines are seeds; the thick one is their mean, if all have the same number of epochs.
    """
    figure = Figure(figsize=(WIDTH, 5.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for index, runs in enumerate(by_arm(condition.runs)):
        of_runs = [curves(run) for run in rows_of(runs)]
        for axis, score, scale in ((above, "val_accuracy", 100), (below, "val_loss", 1)):
            lines = [scale * each[score] for each in of_runs]
            for each, line in zip(of_runs, lines, strict=True):
                alpha = 0.45 if len(lines) > 1 else 1
                axis.plot(each["images"], line, color=colour(index), linewidth=0.9, alpha=alpha)
            if len({*map(len, lines)}) == 1 < len(lines):
                axis.plot(of_runs[0]["images"], np.mean(lines, axis=0), color=colour(index), linewidth=2)
    above.set_ylabel("validation accuracy, %")
    below.set(xlabel="training images seen", ylabel="validation loss")
    for axis in (above, below):
        tidy(axis)
    _legend(figure, condition.arms)
    return figure


def curves(run: Any) -> dict[str, np.ndarray]:
    """Return accuracy and loss of a run's epochs, by images seen in proportion to steps."""
    step, accuracy, loss = (
        np.array([row.get(name) for row in run.history], dtype=float)  # NaN for None
        for name in ("step", "val_accuracy", "val_loss")
    )
    images = step * run.summary["images_seen"] / max(1.0, step[-1])
    return {"images": images, "val_accuracy": accuracy, "val_loss": loss}


def draw_differences(comparison: Comparison) -> Figure:
    """Draw the difference of each other model to the first, in points, with its interval.

    Names are above their bars, so that a phone shows the whole figure.
    """
    conditions, names, others = comparison.conditions, [], []
    for condition in conditions:
        first, *rows = rows_of(condition.table)
        for row in rows:
            what = [row.arm] * (len(rows) > 1) + [condition.title] * (len(conditions) > 1)
            names.append(_wrapped(f"{', '.join(what) or row.arm}: {row.accuracy:.1%} against {first.accuracy:.1%}", 68))
        others += rows
    lines = max(name.count("\n") for name in names) + 1
    figure = Figure(figsize=(WIDTH, 0.7 + (0.55 + 0.16 * lines) * len(names)), layout="constrained")
    axis = figure.subplots()
    for row, arm in enumerate(others):
        low, middle, high = (100 * value for value in (arm.difference_low, arm.difference, arm.difference_high))
        shade = colour(1 + row % (len(comparison.arms) - 1))
        axis.plot([low, high], [row, row], color=shade, linewidth=6, alpha=0.3, solid_capstyle="butt")
        axis.plot(middle, row, "o", color=shade, markersize=7)
        axis.annotate(f"{middle:+.1f}", (middle, row), (0, 7), textcoords="offset points", ha="center", fontsize=9)
        axis.annotate(names[row], (0, row), (0, 20), ("axes fraction", "data"), "offset points", fontsize=9)
    places = np.arange(len(names))
    axis.vlines(np.zeros(len(names)), places - 0.08, places + 0.25, color=GREY, linewidth=1)  # through no label
    axis.set_yticks([])
    axis.set(ylim=(len(names) - 0.5, -0.8))
    axis.set_xlabel(_wrapped(f"points of accuracy above {comparison.arms[0]}", 62))
    tidy(axis)
    axis.grid(False)
    axis.spines["left"].set_visible(False)
    return figure


def accuracy_by_labels(comparison: Comparison) -> Figure:
    """Draw accuracy over labels per class: points are seeds, lines their mean, bars an interval."""
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    axis = figure.subplots()
    conditions, names = comparison.conditions, comparison.arms
    for index, name in enumerate(names):
        places = np.arange(len(conditions)) + 0.07 * (index - (len(names) - 1) / 2)
        arm = comparison.table[comparison.table["arm"] == name]
        ends = 100 * arm["wilson_low"], 100 * arm["wilson_high"]
        axis.vlines(places, *ends, color=colour(index), linewidth=5, alpha=0.22)
        for place, condition in zip(places, conditions, strict=True):
            accuracies = 100 * condition.runs.loc[condition.runs["arm"] == name, "accuracy"]
            axis.scatter([place] * len(accuracies), accuracies, s=14, color=colour(index), zorder=3)
        axis.plot(places, 100 * arm["accuracy"], color=colour(index), linewidth=1.8)
    axis.set_xticks(range(len(conditions)), [condition.labels for condition in conditions])
    axis.set(xlim=(-0.4, len(conditions) - 0.6), xlabel="training images per class", ylabel="accuracy, %")
    tidy(axis)
    _legend(figure, names)
    return figure


def _legend(figure: Figure, names: Sequence[str]) -> None:
    lines = [Line2D([], [], color=colour(index), linewidth=2.5) for index in range(len(names))]
    texts = [_wrapped(name, int(14 * figure.get_figwidth() - 8)) for name in names]
    figure.legend(lines, texts, loc="outside upper left", ncols=1, frameon=False, fontsize=9)


def _wrapped(text: str, width: int) -> str:
    return escape("\n".join(textwrap.wrap(ellipsis(text, 3 * width), width) or [""]))


MEANS, ENDS = "0_val_accuracy", "9_val_accuracy_spread"
"""The first section, which TensorBoard opens, and the last, from which the Custom Scalars tab draws the bands."""


def write_events(folder: Path, verdict: str, pictures: Sequence[ReportFigure], comparison: Comparison) -> None:
    """Write the verdict and the figures for TensorBoard, and a row for each model.

    `verdict`: Markdown; it and the figures lie in `folder`, first in their tabs, the rows below it."""
    conditions, seeds = comparison.conditions, comparison.runs["seed"].nunique()
    with SummaryWriter(log_dir=str(folder)) as writer:
        writer.add_text("0_verdict", utf8(verdict), 0)
        for place, picture in enumerate(pictures):
            add_png(writer, f"0_verdict/{place:02}_{Path(picture.file).stem}", picture.png, 0)
        if seeds > 1:
            charts = {
                f"val accuracy, {condition.title}": ["Margin", tags_of(condition)]
                for condition in reversed(conditions)  # TensorBoard shows the last chart first
            }
            writer.add_custom_scalars({"mean over the seeds, from the lowest seed to the highest": charts})
    for arm, slug in zip(comparison.arms, slugs(comparison.arms), strict=True):
        with SummaryWriter(log_dir=str(folder / f"{slug}_n{seeds}")) as writer:
            for condition in conditions:
                images, lines = over_seeds(condition.runs[condition.runs["arm"] == arm])
                for tag, values in zip(tags_of(condition), lines, strict=False):
                    for seen, value in zip(images, values, strict=True):
                        writer.add_scalar(tag, value, seen)


def over_seeds(runs: pd.DataFrame) -> tuple[list[int], list[np.ndarray]]:
    """Return images seen at each epoch, and the mean validation accuracy over the seeds.

    Epochs are those that every run of a model has; of several seeds follow the lowest and the highest accuracy."""
    of_runs = [curves(run) for run in rows_of(runs)]
    values = np.array([*zip(*(each["val_accuracy"] for each in of_runs), strict=False)])  # (epochs, K)
    ends = [values.min(axis=1), values.max(axis=1)] if len(runs) > 1 else []
    return [*map(round, of_runs[0]["images"].tolist())][: len(values)], [values.mean(axis=1), *ends]


def tags_of(condition: Comparison) -> list[str]:
    """Return the tags of the mean, and of both ends of its band."""
    name = f"{condition.labels}_labels"
    return [f"{MEANS}/{name}", f"{ENDS}/{name}_low", f"{ENDS}/{name}_high"]
