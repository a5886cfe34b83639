"""Picture of what silence buys: accuracy on the images that a model is surest of, and how large its sets are."""

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from figures.results import BLUE, GREY, RIGHT, escape, tidy
from uncertainty.risk import RIGHT as WANTED
from uncertainty.risk import accuracy_by_coverage, answered


def coverage_figure(
    confidence: NDArray, correct: NDArray, *, title: str, sizes: NDArray | None = None, level: float = WANTED
) -> Figure:
    """Accuracy over the share of images that are answered, the surest first; `sizes` (N,): how many classes the set of
    each image holds at this level, drawn below."""
    rows = 1 if sizes is None else 2
    figure = Figure(figsize=(5, 3.4 + 1.1 * rows))  # a layout that is solved for takes a third of the time
    figure.subplots_adjust(left=0.16, right=0.97, top=0.9, bottom=0.09 if rows == 2 else 0.12, hspace=0.42)
    axes = figure.subplots(rows, 1, height_ratios=(3, 1)[:rows], squeeze=False)[:, 0]
    top, images = axes[0], len(correct)
    shares = np.arange(1, images + 1) / images
    top.plot(shares, accuracy_by_coverage(confidence, correct), color=BLUE, linewidth=1.6, label="this model")
    top.axhline(correct.mean(), color=GREY, linewidth=1, linestyle=":", label="all images answered")
    share = answered(confidence, correct)
    top.axhline(WANTED, color=RIGHT, linewidth=1, linestyle="--", label=f"{WANTED:.0%} right")
    if share:
        top.plot([share], [WANTED], "o", color=RIGHT, markersize=6)
    low = min(float(correct.mean()), WANTED)
    top.set(xlabel="share of images answered, the surest first", ylabel="of these right", xlim=(0, 1))
    top.set_ylim(max(0.0, low - 0.1), 1.01)
    found = f"{WANTED:.0%} of answers are right on {share:.0%} of the images" if share else f"never {WANTED:.0%} right"
    top.set_title(escape(f"{title}\n{found}"), fontsize=9)
    top.legend(frameon=False, fontsize=8, loc="lower left")
    if sizes is not None:
        draw_sizes(axes[1], sizes, level)
    tidy(*axes)
    return figure


def draw_sizes(axis, sizes: NDArray, level: float) -> None:
    """Number of images with a set of one class, of two, and so on; of more than eight together."""
    most = min(int(sizes.max()), 9)
    counts = np.bincount(sizes.clip(max=most), minlength=most + 1)[1:]
    axis.bar(range(1, most + 1), counts, color=BLUE, alpha=0.7)
    names = [*map(str, range(1, most + 1))]
    names[-1] += "+" * (int(sizes.max()) > most)
    axis.set_xticks(range(1, most + 1), names)
    axis.set(xlabel=f"classes in the set that holds the right one in {level:.0%}", ylabel="images")
