"""A sheet of pictures of both kinds: those that have the trait of a shortcut above those that have not."""

import io
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from common.errors import DataError
from common.text import printable
from datasets.bundle import Samples
from datasets.images import picture_of
from datasets.shortcuts.trait import Shortcut
from datasets.shortcuts.words import FACTS

SHOWN = 3
"""Shortcuts on a sheet."""
COLUMNS, TILE, GAP, LINE = 8, 150, 12, 16
LETTERS = 23
"""Characters of the built-in face in a line below a tile."""
INK, DIM = "#1f2328", "#57606a"


def both_kinds(samples: Samples, rows: Sequence[int], found: Sequence[Shortcut]) -> bytes:
    """A PNG: for each of the first shortcuts a row of pictures with its trait and one of pictures without, of as many
    classes as there is room for, each above its class, its size in pixels and its name."""
    if not found:
        return b""
    parts = []
    for one in found[:SHOWN]:
        for has, words in ((True, one.trait.words), (False, f"not: {one.trait.words}")):
            members = np.flatnonzero(one.trait.has == has)
            title = f"{FACTS[one.fact.name][0]}  -  {words}  ({len(members):,} of {len(rows):,} pictures)"
            parts.append((title, [rows[place] for place in _spread(members, samples, rows)]))
    height = TILE + 3 * LINE + GAP + 2 * LINE
    sheet = Image.new("RGB", (COLUMNS * (TILE + GAP) + GAP, len(parts) * height + GAP), "white")
    for number, (title, chosen) in enumerate(parts):
        _row(sheet, GAP + number * height, title, samples, chosen)
    content = io.BytesIO()
    sheet.save(content, "PNG")
    return content.getvalue()


def _spread(members: np.ndarray, samples: Samples, rows: Sequence[int]) -> list[int]:
    """A few of these places, spread over the classes."""
    order = members[np.argsort(samples.labels[[rows[place] for place in members]], kind="stable")]
    return order[np.linspace(0, len(order) - 1, min(COLUMNS, len(order))).astype(int)].tolist() if len(order) else []


def _row(sheet: Image.Image, top: int, title: str, samples: Samples, rows: Sequence[int]) -> None:
    draw, (plain, small) = ImageDraw.Draw(sheet), (ImageFont.load_default(size) for size in (13, 11))
    draw.text((GAP, top), title, INK, plain)
    for number, row in enumerate(rows):
        left, below = GAP + number * (TILE + GAP), top + LINE + 8
        try:
            picture = picture_of(samples, row).convert("RGB")
        except DataError:  # it has changed since it was looked at
            continue
        width, height = picture.size
        method = Image.Resampling.NEAREST if max(picture.size) <= TILE // 2 else Image.Resampling.BICUBIC
        sheet.paste(ImageOps.pad(picture, (TILE, TILE), method, color="#d0d7de"), (left, below))
        label = samples.class_names[samples.labels[row]]
        lines = (label, f"{width} x {height}", samples.paths[row].rpartition("/")[2])
        for place, text in enumerate(lines):
            shown = printable(text)
            shown = shown if len(shown) <= LETTERS else shown[: LETTERS - 3] + "..."
            draw.text((left, below + TILE + 2 + place * LINE), shown, DIM if place else INK, small)
