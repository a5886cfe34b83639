"""Curves of a run's learning: loss and accuracy of each epoch."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from trainers.reporting.figures.results import BLUE, GREY, RIGHT, escape, png, tidy


class NotebookFigure(Figure):
    """A figure that a notebook shows, whatever became of pyplot there."""

    def _repr_png_(self) -> bytes:
        return png(self, dpi=100)


def learning_figure(rows: Sequence[Mapping[str, float | None]], *, best_epoch: int, title: str) -> Figure:
    """Loss beside accuracy over epochs, train and val; `rows` are those of metrics.csv, whose first, of the untrained
    model, has no training scores."""
    figure = NotebookFigure(figsize=(8, 3.4), layout="constrained")
    for axis, measure in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        for split, colour in (("train", BLUE), ("val", RIGHT)):
            points = [(row["epoch"], row.get(f"{split}_{measure}")) for row in rows]
            there = [(x, y) for x, y in points if x is not None and y is not None and math.isfinite(y)]
            if there:
                axis.plot(*zip(*there, strict=True), color=colour, linewidth=1.4, label=split)
        axis.axvline(best_epoch, color=GREY, linestyle="--", linewidth=1, label=f"best epoch, {best_epoch}")
        axis.set(xlabel="epoch", ylabel=measure)
        if measure == "accuracy":
            axis.set_ylim(-0.02, 1.02)
        axis.legend(frameon=False, fontsize=8)
        tidy(axis)
    figure.suptitle(escape(title), fontsize=9)
    return figure
