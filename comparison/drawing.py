"""The figures of a comparison, with one colour per arm. Without pyplot, which has global state."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from common.text import ellipsis
from comparison.results import ConditionResult
from comparison.runs import Condition, FinishedRun
from trainers.reporting.figures.results import GREY, escape, png, tidy

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito 2008
WIDTH = 5.4
"""Inches across, of which a phone shows the words at a readable size."""

TITLES = {
    "differences": "Differences",
    "accuracy_by_labels": "Accuracy by labels per class",
    "learning_curves": "Learning curves",
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


def draw(results: Sequence[ConditionResult]) -> Iterator[ReportFigure]:
    """Yield all figures, in the order of the report."""
    caption = "Mean over the seeds with its 95% interval, which covers images and seeds; right of zero is better."
    yield ReportFigure("differences", None, caption, png(draw_differences(results)))
    if len(results) > 1:
        caption = "Points are seeds, lines their mean, bars the Wilson 95% interval from the lowest to the highest run."
        yield ReportFigure("accuracy_by_labels", None, caption, png(accuracy_by_labels(results)))
    for result in results:
        condition, named = result.condition, result.condition if len(results) > 1 else None
        caption = "On the validation images. Thin lines are seeds, thick ones their mean."
        yield ReportFigure("learning_curves", named, caption, png(learning_curves(condition)))


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def learning_curves(condition: Condition) -> Figure:
    """Draw validation accuracy and loss of every arm's runs over the training images seen.

    Thin lines are seeds; the thick one is their mean, if all have the same number of epochs.
    """
    figure = Figure(figsize=(WIDTH, 5.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for index, arm in enumerate(condition.arms):
        of_runs = [curves(run) for run in arm.runs]
        for axis, score in ((above, "val_accuracy"), (below, "val_loss")):
            for each in of_runs:
                alpha = 0.45 if len(of_runs) > 1 else 1
                axis.plot(each["images"], each[score], color=colour(index), linewidth=0.9, alpha=alpha)
            if len({len(each[score]) for each in of_runs}) == 1 and len(of_runs) > 1:
                mean = np.mean([each[score] for each in of_runs], axis=0)
                axis.plot(of_runs[0]["images"], mean, color=colour(index), linewidth=2)
    above.set_ylabel("validation accuracy, %")
    below.set(xlabel="training images seen", ylabel="validation loss")
    for axis in (above, below):
        tidy(axis)
    _legend(figure, condition.names)
    return figure


def curves(run: FinishedRun) -> dict[str, np.ndarray]:
    """Return accuracy, %, and loss of a run's history, with the images seen in proportion to the steps."""
    step, accuracy, loss = (
        np.array([row.get(name) for row in run.history], dtype=float)  # NaN for None
        for name in ("step", "val_accuracy", "val_loss")
    )
    images = step * run.summary["images_seen"] / max(1.0, step[-1])
    return {"images": images, "val_accuracy": 100 * accuracy, "val_loss": loss}


def draw_differences(results: Sequence[ConditionResult]) -> Figure:
    """Draw a row for each other arm: its difference to the first, in points, and its interval.

    Names are above their bars, so that a phone shows the whole figure.
    """
    pairs = [(result, row.against_first) for result in results for row in result.arms if row.against_first]
    names = []
    for result, pair in pairs:
        what = [pair.second.name] * (len(result.arms) > 2) + [result.condition.title] * (len(results) > 1)
        shares = f"{pair.second.accuracies.mean():.1%} against {pair.first.accuracies.mean():.1%}"
        names.append(_wrapped(f"{', '.join(what) or pair.second.name}: {shares}", 68))
    lines = max(name.count("\n") for name in names) + 1
    figure = Figure(figsize=(WIDTH, 0.7 + (0.55 + 0.16 * lines) * len(names)), layout="constrained")
    axis = figure.subplots()
    for row, (_, pair) in enumerate(pairs):
        low, middle, high = (100 * value for value in pair.interval)
        shade = colour(1 + row % (len(results[0].arms) - 1))
        axis.plot([low, high], [row, row], color=shade, linewidth=6, alpha=0.3, solid_capstyle="butt")
        axis.plot(middle, row, "o", color=shade, markersize=7)
        axis.annotate(f"{middle:+.1f}", (middle, row), (0, 7), textcoords="offset points", ha="center", fontsize=9)
        axis.annotate(names[row], (0, row), (0, 20), ("axes fraction", "data"), "offset points", fontsize=9)
    rows = np.arange(len(names))
    axis.vlines(np.zeros(len(names)), rows - 0.08, rows + 0.25, color=GREY, linewidth=1)  # through no label
    axis.set_yticks([])
    axis.set(ylim=(len(names) - 0.5, -0.8))
    axis.set_xlabel(_wrapped(f"points of accuracy above {results[0].condition.names[0]}", 62))
    tidy(axis)
    axis.grid(False)
    axis.spines["left"].set_visible(False)
    return figure


def accuracy_by_labels(results: Sequence[ConditionResult]) -> Figure:
    """Draw accuracy over labels per class: points are seeds, lines their mean, bars an interval."""
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    axis = figure.subplots()
    count = len(results[0].arms)
    for index in range(count):
        places = np.arange(len(results)) + 0.07 * (index - (count - 1) / 2)
        arms = [result.arms[index] for result in results]
        ends = np.array([[arm.scores["wilson_low"], arm.scores["wilson_high"]] for arm in arms])
        axis.vlines(places, *100 * ends.T, color=colour(index), linewidth=5, alpha=0.22)
        for place, arm in zip(places, arms, strict=True):
            accuracies = 100 * arm.arm.accuracies
            axis.scatter([place] * len(accuracies), accuracies, s=14, color=colour(index), zorder=3)
        axis.plot(places, [100 * arm.scores["accuracy"] for arm in arms], color=colour(index), linewidth=1.8)
    axis.set_xticks(range(len(results)), [result.condition.labels for result in results])
    axis.set(xlim=(-0.4, len(results) - 0.6), xlabel="training images per class", ylabel="accuracy, %")
    tidy(axis)
    _legend(figure, results[0].condition.names)
    return figure


def _legend(figure: Figure, names: Sequence[str]) -> None:
    lines = [Line2D([], [], color=colour(index), linewidth=2.5) for index in range(len(names))]
    texts = [_wrapped(name, int(14 * figure.get_figwidth() - 8)) for name in names]
    figure.legend(lines, texts, loc="outside upper left", ncols=1, frameon=False, fontsize=9)


def _wrapped(text: str, width: int) -> str:
    return escape("\n".join(textwrap.wrap(ellipsis(text, 3 * width), width) or [""]))
