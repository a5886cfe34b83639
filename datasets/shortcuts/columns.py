"""The facts that may stand in for the content of an image, each as a few numbers."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from common.errors import DataError
from datasets.bundle import Samples
from datasets.checking.inspection import Inspection
from datasets.facts import CORNERS, EDGES, FRAME, GREY, HUE, PIXELS, ImageFacts
from datasets.facts import LIGHT as BRIGHTNESS
from datasets.groups import folders

FILE, MIXED, LIGHT = "file", "mixed", "light"
"""Made by whoever made the file; made so or by what the picture shows; mostly by what it shows."""
NUMBER = "number in the name"
MOST_VALUES = 16
"""Values of a category that are looked at, the most frequent ones."""
LEAST_SHARE = 0.05
"""Share of the images in a folder from which on it is where they come from, and no group of a few."""


@dataclass(frozen=True)
class Fact:
    """One fact of each of N images."""

    name: str
    source: str
    """FILE, MIXED or LIGHT."""
    numbers: NDArray[np.float64]
    """(N, F)"""
    columns: tuple[str, ...]
    """Name of each number; for a category its values."""
    beside: float = 0.0
    """Nats that a MIXED fact has to tell beside light and colour; 0 for others. How they were chosen:
    docs/evidence/benchmarks.md, "Shortcuts"."""


def facts_of(samples: Samples, rows: Sequence[int], seen: Sequence[Inspection]) -> list[Fact]:
    """The facts that are not the same for all of these images, those first that are the cause of others."""
    facts = [picture.facts or ImageFacts() for picture in seen]
    pixels = np.frombuffer(b"".join(fact.pixels for fact in facts), np.float32).reshape(-1, len(PIXELS))
    sizes = np.array([(picture.width, picture.height) for picture in seen], np.float64)
    area = sizes.prod(axis=1)
    weight = np.array([fact.file_size for fact in facts]) / area

    def of_pixels(name: str, source: str, *columns: str, beside: float = 0.0) -> Fact:
        places = [PIXELS.index(column) for column in columns]
        return Fact(name, source, pixels[:, places].astype(np.float64), columns, beside)

    grey = pixels[:, PIXELS.index("most colour")] <= GREY
    found = [
        category("camera", [fact.camera for fact in facts]),
        category("folder", origins(samples, rows)),
        number("date", [fact.day for fact in facts], "day"),
        category("file type", [picture.format + stored(fact.mode) for picture, fact in zip(seen, facts, strict=True)]),
        number("aspect ratio", np.log2(sizes[:, 0] / sizes[:, 1]).round(2), "logarithm of width to height"),
        Fact("size", FILE, np.column_stack([sizes, area]), ("width", "height", "pixels")),
        category("grey or colour", np.where(grey, "grey", "colour").tolist()),
        category("JPEG quality", [fact.tables for fact in facts]),
        number(NUMBER, file_numbers(samples, rows), "number"),
        of_pixels("frame", FILE, *FRAME),
        of_pixels("corners", MIXED, *CORNERS, beside=0.08),
        of_pixels("sharpness", MIXED, "sharpness", beside=0.2),
        Fact("bytes per pixel", MIXED, weight[:, None], ("bytes per pixel",), 0.15),
        of_pixels("border", LIGHT, *EDGES),
        of_pixels("brightness", LIGHT, *BRIGHTNESS),
        of_pixels("colour", LIGHT, *HUE),
        of_pixels("detail", LIGHT, "coarse detail"),
    ]
    return [fact for fact in found if np.ptp(fact.numbers, axis=0).any()]


def number(name: str, values: Sequence[float] | NDArray, column: str) -> Fact:
    return Fact(name, FILE, np.array(values, np.float64)[:, None], (column,))


def category(name: str, texts: Sequence[str]) -> Fact:
    """A fact that is one of a few words: a column for each of them, the frequent ones first."""
    common = [text for text, _ in Counter(texts).most_common(MOST_VALUES)]
    columns = [[text == value for text in texts] for value in common]
    return Fact(name, FILE, np.array(columns, np.float64).T, tuple(common))


def stored(mode: str) -> str:
    """Return what a format's name does not say of how pixels are stored; grey and colour are a fact of their own."""
    words = {"P": " with a palette", "RGBA": " with transparency", "LA": " with transparency", "1": " of 1 bit"}
    return words.get(mode, " of 16 bits" if mode.startswith("I") else f" in {mode}" if mode == "CMYK" else "")


def origins(samples: Samples, rows: Sequence[int]) -> list[str]:
    """The folder below the class or above it; nothing where folders are no more than a way to name the classes, or
    groups of a few images."""
    if samples.root is None:
        return [""] * len(rows)
    try:
        names = [name or "" for name in folders(samples, rows)[0]]
    except DataError:
        return [""] * len(rows)
    sizes = Counter(names)
    usual = LEAST_SHARE * len(names)
    names = [name if sizes[name] >= usual else "" for name in names]
    classes = {(name, label) for name, label in zip(names, samples.labels[list(rows)].tolist(), strict=True) if name}
    shared = len({name for name, _ in classes}) < len(classes)
    two = len(classes) == 2 == len({label for _, label in classes})
    return names if shared or two else [""] * len(rows)


def file_numbers(samples: Samples, rows: Sequence[int]) -> NDArray[np.float64]:
    """The last number in the name of each file, -1 where there is none, or where names are no file's."""
    if samples.root is None:
        return np.zeros(len(rows))
    found = [re.findall(r"[0-9]{1,15}", PurePosixPath(samples.paths[row]).stem) for row in rows]
    return np.array([float(numbers[-1]) if numbers else -1.0 for numbers in found])
