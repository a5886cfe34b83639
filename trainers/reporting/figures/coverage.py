"""Picture of what silence buys: accuracy on the images that a model is surest of, and how large its sets are."""

import numpy as np
from numpy.typing import NDArray

from trainers.coverage import RIGHT as WANTED
from trainers.coverage import accuracy_by_coverage, answered
from trainers.reporting.figures.quick_axes import Axes, Canvas, count_steps, share_steps
from trainers.reporting.figures.results import BLUE, GREY, RIGHT

PALE = "#5396e5"
"""Colour of the bars."""
MOST_POINTS = 1_000
"""Points of the curve that are drawn, of more images."""
MOST_CLASSES = 9
"""Bars; the last one counts larger sets, too."""


def coverage_picture(
    confidence: NDArray, correct: NDArray, *, title: str, sizes: NDArray | None = None, level: float = WANTED
) -> bytes:
    """A PNG of accuracy over the share of images that are answered, the surest first; `sizes` (N,): how many classes
    the set of each image holds at this level, drawn below."""
    share, mean = answered(confidence, correct), float(correct.mean())
    canvas, low = Canvas(600, 482 if sizes is None else 672), max(0.0, min(mean, WANTED) - 0.1)
    found = f"{WANTED:.0%} of answers are right on {share:.0%} of the images" if share else f"never {WANTED:.0%} right"
    canvas.text(337, 16, title, size=15)
    canvas.text(337, 37, found, size=15)
    top = Axes(canvas, (92, 56, 582, 424), (0, 1), (low, 1.01))
    top.grid(share_steps(0), share_steps(low))
    top.name("share of images answered, the surest first", "of these right")
    images, accuracies = len(correct), accuracy_by_coverage(confidence, correct)
    points = np.unique(np.linspace(0, images - 1, min(images, MOST_POINTS)).astype(int))
    top.level(mean, GREY, dash=2)
    top.level(WANTED, RIGHT, dash=8)
    top.line((points + 1) / images, accuracies[points], BLUE)
    if share:
        top.dot(share, WANTED, RIGHT)
    empty = {"left": 104, "top": 370} if mean > 0.5 else {"left": 410, "top": 110}  # where the curve is not
    top.legend([("this model", BLUE, 0), ("all images answered", GREY, 2), (f"{WANTED:.0%} right", RIGHT, 8)], **empty)
    if sizes is not None:
        draw_sizes(canvas, sizes, level)
    return canvas.png()


def draw_sizes(canvas: Canvas, sizes: NDArray, level: float) -> None:
    """Number of images with a set of one class, of two, and so on; of more than eight together."""
    most = min(int(sizes.max()), MOST_CLASSES)
    counts = np.bincount(sizes.clip(max=most), minlength=most + 1)[1:]
    names = [*map(str, range(1, most + 1))]
    names[-1] += "+" * (int(sizes.max()) > most)
    below = Axes(canvas, (92, 496, 582, 614), (0.4, most + 0.6), (0, 1.05 * counts.max()))
    below.grid([*enumerate(names, 1)], count_steps(int(counts.max())))
    below.bars(range(1, most + 1), counts, PALE, width=0.8)
    below.name(f"classes in the set that holds the right one in {level:.0%}", "images")
