"""Axes drawn by Pillow, for a picture that a command waits for (what matplotlib takes: docs/evidence/certainty.md).

Everything is drawn at SCALE times its size and then halved, which smooths lines. Sizes and places are pixels of the
finished picture, from its upper left corner. In the typeface and the colours of `trainers.reporting.figures.results`.
"""

import io
import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from matplotlib.font_manager import FontProperties, findfont
from numpy.typing import ArrayLike
from PIL import Image, ImageDraw, ImageFont

from trainers.reporting.figures.results import readable

SCALE = 2
INK, GRID = "#000000", "#e4e4e4"
STEPS = (0.01, 0.02, 0.05, 0.1, 0.2)
"""Distances between lines of a grid of shares."""
GAP = 4
"""Pixels between two dashes."""


class Canvas:
    """A white picture to draw on."""

    def __init__(self, width: int, height: int) -> None:
        self.image = Image.new("RGB", (SCALE * width, SCALE * height), "white")
        self.pen = ImageDraw.Draw(self.image)

    def text(self, x: float, y: float, words: str, *, size: int, anchor: str = "mm") -> None:
        """One line; `anchor` as Pillow has it, by default its middle."""
        self.pen.text((SCALE * x, SCALE * y), readable(words), INK, _face(size), anchor)

    def upward(self, x: float, y: float, words: str, *, size: int) -> None:
        """One line from below to above, around its middle."""
        line = Canvas(len(words) * size, 2 * size)
        line.text(len(words) * size / 2, size, words, size=size)
        turned = line.image.rotate(90, expand=True)
        self.image.paste(turned, (round(SCALE * x - turned.width / 2), round(SCALE * y - turned.height / 2)))

    def png(self) -> bytes:
        content = io.BytesIO()
        self.image.reduce(SCALE).save(content, "PNG", compress_level=1)
        return content.getvalue()


@cache
def _face(size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(findfont(FontProperties()), SCALE * size)


class Axes(NamedTuple):
    """A frame on a canvas, in which x and y have limits."""

    canvas: Canvas
    box: tuple[float, float, float, float]
    """Left, top, right and bottom."""
    x: tuple[float, float]
    y: tuple[float, float]

    def places(self, x: ArrayLike, y: ArrayLike) -> list[tuple[float, float]]:
        """Places of points on the canvas."""
        left, top, right, bottom = (SCALE * side for side in self.box)
        across = left + (np.asarray(x) - self.x[0]) / (self.x[1] - self.x[0]) * (right - left)
        down = bottom - (np.asarray(y) - self.y[0]) / (self.y[1] - self.y[0]) * (bottom - top)
        return list(zip(*(side.tolist() for side in np.broadcast_arrays(across, down)), strict=True))

    def grid(self, x: Sequence[tuple[float, str]], y: Sequence[tuple[float, str]]) -> None:
        """A faint line at each of these places, with what stands beside it; and the two axes."""
        left, _, _, bottom = self.box
        for value, words in x:
            self._rule([value, value], self.y, GRID, 1)
            self.canvas.text(self.places([value], self.y[0])[0][0] / SCALE, bottom + 8, words, size=15, anchor="mt")
        for value, words in y:
            self._rule(self.x, [value, value], GRID, 1)
            self.canvas.text(left - 8, self.places(self.x[0], [value])[0][1] / SCALE, words, size=15, anchor="rm")
        self._rule([self.x[0], self.x[0], self.x[1]], [self.y[1], self.y[0], self.y[0]], INK, 1)

    def name(self, x: str, y: str) -> None:
        left, top, right, bottom = self.box
        self.canvas.text((left + right) / 2, bottom + 32, x, size=16, anchor="mt")
        self.canvas.upward(18, (top + bottom) / 2, y, size=16)

    def line(self, x: ArrayLike, y: ArrayLike, colour: str) -> None:
        self._rule(x, y, colour, 2.5)

    def level(self, value: float, colour: str, *, dash: float) -> None:
        """A dashed line across, of dashes this long."""
        (start, height), (end, _) = self.places(self.x, [value, value])
        for left in np.arange(start, end, SCALE * (dash + GAP)):
            self.canvas.pen.line([(left, height), (min(end, left + SCALE * dash), height)], colour, 3)

    def dot(self, x: float, y: float, colour: str) -> None:
        self.canvas.pen.circle(self.places([x], [y])[0], SCALE * 5, colour)

    def bars(self, x: Sequence[float], heights: ArrayLike, colour: str, *, width: float) -> None:
        """Bars from the lower limit of y up to these heights."""
        half = width / 2
        uppers, lowers = self.places(np.subtract(x, half), heights), self.places(np.add(x, half), self.y[0])
        for upper, lower in zip(uppers, lowers, strict=True):
            self.canvas.pen.rectangle([upper, lower], colour)

    def legend(self, entries: Sequence[tuple[str, str, float]], *, left: float, top: float) -> None:
        """Name, colour and dash (0: none) of each line, one below the other."""
        for row, (words, colour, dash) in enumerate(entries):
            y = top + 19 * row
            for start in np.arange(left, left + 26, dash + GAP if dash else 26):
                end = min(start + (dash or 26), left + 26)
                self.canvas.pen.line([(SCALE * start, SCALE * y), (SCALE * end, SCALE * y)], colour, 4)
            self.canvas.text(left + 34, y, words, size=13, anchor="lm")

    def _rule(self, x: ArrayLike, y: ArrayLike, colour: str, width: float) -> None:
        self.canvas.pen.line(self.places(x, y), colour, round(SCALE * width), "curve" if width > 1 else None)


def share_steps(low: float) -> list[tuple[float, str]]:
    """Round shares from `low` to 1, and how they are written, at most eight of them."""
    step = next(step for step in STEPS if (1 - low) / step <= 7.5)
    digits = len(f"{step:g}") - 2
    return [(step * k, f"{step * k:.{digits}f}") for k in range(math.ceil(low / step - 1e-9), round(1 / step) + 1)]


def count_steps(most: int) -> list[tuple[float, str]]:
    """Round numbers from 0 to `most`, and how they are written, at most five of them."""
    unit = 10 ** max(0, len(str(most)) - 2)
    step = next(step * unit for step in (1, 2, 5, 10, 20, 25) if most < 5 * step * unit)
    return [(float(count), f"{count:,}") for count in range(0, most + 1, step)]
