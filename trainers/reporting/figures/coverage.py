"""Picture of selective prediction: accuracy on the images that a model is surest of, and how large its sets are."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from numpy.typing import NDArray

from trainers.coverage import RIGHT as WANTED
from trainers.coverage import accuracy_by_coverage, answered
from trainers.reporting.figures.results import BLUE, GREY, RIGHT, escape, png, tidy

MOST_CLASSES = 9
"""Bars; the last one counts larger sets, too."""


def coverage_picture(
    confidence: NDArray, correct: NDArray, *, title: str, sizes: NDArray | None = None, level: float = WANTED
) -> bytes:
    """Draw accuracy over coverage as a PNG; `sizes` (N,) are the numbers of classes in each image's set at `level`."""
    figure = Figure(figsize=(5, 4 if sizes is None else 5.6), layout="constrained")
    if sizes is None:
        top = figure.subplots()
    else:
        top, bottom = figure.subplots(2, 1, height_ratios=(3, 1))
        draw_sizes(bottom, sizes, level)
    draw_coverage(top, confidence, correct, title=title)
    return png(figure)


def draw_coverage(axis: Axes, confidence: NDArray, correct: NDArray, *, title: str) -> None:
    """Draw accuracy on the k surest of the images, over k as a share of all."""
    share, mean = answered(confidence, correct), float(correct.mean())
    coverage = np.arange(1, len(correct) + 1) / len(correct)
    axis.plot(coverage, accuracy_by_coverage(confidence, correct), color=BLUE, label="this model")
    axis.axhline(mean, color=GREY, linestyle=":", label="all images answered")
    axis.axhline(WANTED, color=RIGHT, linestyle="--", label=f"{WANTED:.0%} right")
    if share:
        axis.plot(share, WANTED, "o", color=RIGHT)
    found = f"{WANTED:.0%} of answers are right on {share:.0%} of the images" if share else f"never {WANTED:.0%} right"
    axis.set_title(escape(f"{title}\n{found}"), fontsize=9)
    axis.set(xlabel="share of images answered, the surest first", ylabel="accuracy on these")
    axis.set(xlim=(0, 1), ylim=(max(0.0, min(mean, WANTED) - 0.1), 1.01))
    axis.legend(frameon=False, fontsize=8, loc="lower left" if mean > 0.5 else "center right")
    tidy(axis)


def draw_sizes(axis: Axes, sizes: NDArray, level: float) -> None:
    """Draw the number of images with a set of one class, of two, and so on; of many classes together."""
    most = min(int(sizes.max()), MOST_CLASSES)
    names = [*map(str, range(1, most)), f"{most}+" if int(sizes.max()) > most else str(most)]
    axis.bar(names, np.bincount(sizes.clip(max=most), minlength=most + 1)[1:], color=BLUE, alpha=0.7)
    axis.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axis.set(xlabel=f"classes in the set that holds the right one in {level:.0%}", ylabel="images")
    tidy(axis)
