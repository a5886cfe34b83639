"""Draw results: learning curves, confusion, calibration, selective prediction. No pyplot: no global state."""

import io
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from textwrap import wrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from common.files import write_bytes
from trainers.calibration import WANTED, accuracy_by_coverage, answered

RIGHT, WRONG, UNKNOWN = "#1a7f37", "#cf222e", "#24292f"
BLUE, GREY = "#0969da", "#8c959f"
MOST_CLASSES = 9
"""Bars in the histogram of set sizes; the last one counts larger sets, too."""


def confusion_figure(confusion: np.ndarray, class_names: Sequence[str], *, title: str) -> Figure:
    """Draw counts (classes, classes), rows true, shaded by the share of the row.

    With few classes it is as wide as a card of TensorBoard, which would shrink a wider one.
    """
    count = len(class_names)
    side = min(16.0, max(3.7, 0.9 + 0.28 * count))
    figure = Figure(figsize=(side, side + 0.3), layout="constrained")
    axis = figure.subplots()
    shares = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    if count <= 25:
        for row, column in zip(*np.nonzero(confusion), strict=True):
            colour = "white" if shares[row, column] > 0.5 else "black"
            axis.text(column, row, f"{confusion[row, column]:,}", ha="center", va="center", fontsize=7, color=colour)
    axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axis.set(xlabel="predicted", ylabel="true")
    lines = [line for part in title.split("\n") for line in wrap(part, round(14 * side))]
    figure.suptitle(escape("\n".join(lines)), fontsize=9)
    if count <= 40:
        names = [escape("\n".join(wrap(name, 18)) or "?") for name in class_names]
        axis.set_xticks(range(count), names, rotation=90 if count * max(map(len, names)) > 12 * side else 0, fontsize=8)
        axis.set_yticks(range(count), names, fontsize=8)
    return figure


def reliability_figure(bins: Tensor, *, ece: float, title: str, scaled: Tensor | None = None) -> Figure:
    """Draw accuracy over confidence, and the number of images in each bin.

    Bins are sums (3, number of bins): images, their confidence, correct ones. `scaled`: the bins after temperature
    scaling.
    """
    figure = Figure(figsize=(5, 5.6), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    top.plot([0, 1], [0, 1], "--", color=GREY, linewidth=1, label="perfectly calibrated")
    for sums, colour, marker, label in ((bins, BLUE, "o", "as trained"), (scaled, RIGHT, "s", "temperature scaled")):
        if sums is not None and sums[0].any():
            images, confidence, right = sums[:, sums[0] > 0].numpy()
            style = {"marker": marker, "markersize": 4, "color": colour, "linewidth": 1.4}
            top.plot(confidence / images, right / images, label=label, **style)
    top.set(ylabel="accuracy", ylim=(-0.02, 1.02))
    meaning = "Below the dashed line the model is surer than it is right."
    top.set_title(escape(f"{title}; ECE {ece:.4f}\n{meaning}"), fontsize=9)
    top.legend(frameon=False, fontsize=8, loc="upper left")
    count = bins.shape[1]
    bottom.bar(np.linspace(0, 1, count + 1)[:-1], bins[0].numpy(), width=1 / count, align="edge", color=BLUE, alpha=0.7)
    bottom.set(xlabel="confidence", ylabel="images", xlim=(0, 1))
    tidy(top, bottom)
    return figure


class NotebookFigure(Figure):
    """A figure that a notebook displays, with or without pyplot."""

    def _repr_png_(self) -> bytes:
        return png(self, dpi=100)


def learning_figure(rows: Sequence[Mapping[str, float | None]], *, best_epoch: int, title: str) -> Figure:
    """Draw training and validation loss and accuracy over the epochs.

    `rows` are those of metrics.csv; the first one, of the untrained model, has no training scores.
    """
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


def coverage_picture(
    confidence: NDArray, correct: NDArray, *, title: str, sizes: NDArray | None = None, level: float = WANTED
) -> bytes:
    """Draw accuracy over coverage as a PNG.

    `sizes` (N,) are the sizes of the images' prediction sets at `level`."""
    figure = Figure(figsize=(5, 4 if sizes is None else 5.6), layout="constrained")
    if sizes is None:
        top = figure.subplots()
    else:
        top, bottom = figure.subplots(2, 1, height_ratios=(3, 1))
        draw_sizes(bottom, sizes, level)
    draw_coverage(top, confidence, correct, title=title)
    return png(figure)


def draw_coverage(axis: Axes, confidence: NDArray, correct: NDArray, *, title: str) -> None:
    """Draw the accuracy on the most confident images over their share."""
    share, mean = answered(confidence, correct), float(correct.mean())
    coverage = np.arange(1, len(correct) + 1) / len(correct)
    axis.plot(coverage, accuracy_by_coverage(confidence, correct), color=BLUE, label="this model")
    axis.axhline(mean, color=GREY, linestyle=":", label="all images answered")
    axis.axhline(WANTED, color=RIGHT, linestyle="--", label=f"{WANTED:.0%} right")
    if share:
        axis.plot(share, WANTED, "o", color=RIGHT)
    found = f"{WANTED:.0%} of answers are right on {share:.0%} of the images" if share else f"never {WANTED:.0%} right"
    axis.set_title(escape(f"{title}\n{found}"), fontsize=9)
    axis.set(xlabel="share of images answered, the most confident first", ylabel="accuracy on these")
    axis.set(xlim=(0, 1), ylim=(max(0.0, min(mean, WANTED) - 0.1), 1.01))
    axis.legend(frameon=False, fontsize=8, loc="lower left" if mean > 0.5 else "center right")
    tidy(axis)


def draw_sizes(axis: Axes, sizes: NDArray, level: float) -> None:
    """Draw how many images have sets of each size; large ones share a bar."""
    most = min(int(sizes.max()), MOST_CLASSES)
    names = [*map(str, range(1, most)), f"{most}+" if int(sizes.max()) > most else str(most)]
    axis.bar(names, np.bincount(sizes.clip(max=most), minlength=most + 1)[1:], color=BLUE, alpha=0.7)
    axis.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axis.set(xlabel=f"classes in the set that holds the right one in {level:.0%}", ylabel="images")
    tidy(axis)


def tidy(*axes) -> None:
    """Remove the upper and right frame of axes, and add a faint grid."""
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25, linewidth=0.6)


def png(figure: Figure, *, dpi: int = 120) -> bytes:
    """Render a figure as an RGB PNG, lightly compressed.

    That is 8 % more bytes in a third of the time."""
    figure.set_dpi(dpi)
    canvas, content = FigureCanvasAgg(figure), io.BytesIO()
    canvas.draw()
    Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3]).save(content, "PNG", compress_level=1)
    return content.getvalue()


def save(figure: Figure, path: Path, *, dpi: int = 120) -> Path:
    """Write a figure as a PNG file; folders are created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, png(figure, dpi=dpi))
    return path


def escape(text: str) -> str:
    """Escape dollar signs, which start mathematics in matplotlib, and characters that its font lacks."""
    return "\n".join(readable(line) for line in text.split("\n")).replace("$", r"\$")


def readable(text: str) -> str:
    """Replace unprintable characters, and those that the font lacks, by codes such as `\\u732b`."""
    signs = _signs_of_the_font()
    return "".join(sign if sign.isprintable() and ord(sign) in signs else ascii(sign)[1:-1] for sign in text)


@cache
def _signs_of_the_font() -> frozenset[int]:
    return frozenset(get_font(findfont(FontProperties())).get_charmap())
