"""Find shortcuts: facts of files that tell the class without the content (Geirhos et al. 2020, arXiv 2004.07780).

The class of each image is guessed from one fact alone, as the class that most other images with this fact have. If that
is right more often than by chance, a model may learn the fact in place of what the picture shows.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from common.errors import DataError
from common.text import printable
from datasets.bundle import Samples
from datasets.groups import folders
from datasets.known import Known

MOST_IMAGES, LEAST_IMAGES = 3_000, 20
"""Images that are examined, and fewer that are not."""
LEAST_GAIN = 1.3
"""Ratio to chance from which a fact is named: a trait that 65 % of some classes and 35 % of the others have."""
SURE = 3.5
"""Standard errors above chance from which it is named."""
MOST_VALUES, LEAST_EACH = 16, 10
"""Values of a fact that count apart, the most frequent ones, or as many ranges of about so many images at least."""
LEAST_SHARE = 0.05
"""Share of the images that a folder must hold to count as where they come from."""
FOLDS = 5
"""Parts of the cross-validation; classes of fewer images are left out."""
ONE_FILE = "save all images in one way, from the originals"
APART = "add images of each class from each"
FACTS = {
    "camera": APART,
    "folder": APART,
    "day": APART,
    "file type": ONE_FILE,
    "aspect ratio": "cut all images to one aspect ratio, or train with --fit squash",
    "size": "give all images one size; where small ones stay blurred, take better ones",
    "grey or colour": "make all images grey, or add coloured ones of the grey class",
    "JPEG quality": ONE_FILE,
}
"""Name of a fact -> what to do about it; a fact that causes another one comes first."""


class Fact(NamedTuple):
    """One fact of each of N images."""

    name: str
    values: list[str]
    """Its values in words, or its ranges, from the lowest number to an end."""
    codes: NDArray[np.int64]
    """(N,): index into `values`; of ranges the first that holds the image."""
    are_ranges: bool = False


class Shortcut(NamedTuple):
    """A fact that tells the classes."""

    fact: str
    """A key of FACTS."""
    guessed_right: float
    """Balanced accuracy of who knows nothing else, out of fold."""
    by_chance: float
    trait: str
    """The value, or the range, that tells most: `up to 90,000 pixels`."""
    shares: dict[str, float]
    """The class of which most images have the trait, and that of which fewest have, with these shares."""
    advice: str
    row: int
    """First image with the trait."""

    def __str__(self) -> str:
        shares = ", ".join(f"{share:.0%} of {name!r}" for name, share in self.shares.items())
        return printable(
            f"{self.fact} alone tells the class of {self.guessed_right:.0%} of the images, {self.by_chance:.0%} by"
            f" chance ({self.trait}: {shares}); {self.advice}"
        )


def find_shortcuts(samples: Samples, rows: NDArray[np.int64], known: Known, units: NDArray[np.int64]) -> list[Shortcut]:
    """Return the shortcuts among images with facts, the one that tells most first.

    `units`: a number for each image; of copies and images of one group, which have the same, one of each class counts.
    """
    usable = np.flatnonzero(np.isin(rows, np.fromiter(known.facts, np.int64)))
    if len(usable) < LEAST_IMAGES:
        return []
    labels = samples.labels[rows[usable]]
    first = np.unique(np.stack([units[usable], labels]), axis=1, return_index=True)[1]
    first = np.sort(first[np.bincount(labels[first])[labels[first]] >= FOLDS])
    usable, (classes, labels) = usable[first], np.unique(labels[first], return_inverse=True)
    if len(usable) < LEAST_IMAGES or len(classes) < 2:
        return []
    names, found = [samples.class_names[label] for label in classes], []
    chosen = rows[usable].tolist()
    for fact in _facts(samples, chosen, known):
        if len(fact.values) < 2 or (accuracy := _accuracy(fact.codes, labels)) is None:
            continue
        shares = _counts(fact.codes, labels) / np.bincount(labels)
        shares = shares.cumsum(axis=0) if fact.are_ranges else shares
        best = int(np.argmax(np.ptp(shares, axis=1)))
        ends = {names[at]: float(shares[best, at]) for at in (shares[best].argmax(), shares[best].argmin())}
        has = fact.codes <= best if fact.are_ranges else fact.codes == best
        row = chosen[int(has.argmax())]
        advice = FACTS[fact.name]
        found.append(Shortcut(fact.name, accuracy, 1 / len(names), fact.values[best], ends, advice, row))
    return sorted(found, key=lambda one: -round(one.guessed_right, 2))


def _facts(samples: Samples, rows: Sequence[int], known: Known) -> Iterator[Fact]:
    """Yield the facts of these images in the order of FACTS."""
    facts = [known.facts[row] for row in rows]
    width, height = known.sizes[rows].astype(np.float64).T
    modes = {"P": " with a palette", "RGBA": " with transparency", "LA": " with transparency", "1": " of 1 bit"}
    types = [known.formats[row].decode() + modes.get(fact.mode, "") for row, fact in zip(rows, facts, strict=True)]
    yield _category("camera", [fact.camera for fact in facts])
    yield _category("folder", _origins(samples, rows))
    days = [fact.day for fact in facts]
    yield _ranges("day", days, lambda day: f"up to {date.fromordinal(int(day))}" if day else "no date")
    yield _category("file type", types)
    ratios = (width / height).round(2)
    yield _ranges("aspect ratio", ratios, lambda ratio: f"a width of up to {ratio:g} times the height")
    yield _ranges("size", width * height, lambda area: f"up to {area:,.0f} pixels")
    yield _category("grey or colour", ["grey" if fact.is_grey else "colour" for fact in facts])
    yield _category("JPEG quality", [fact.jpeg for fact in facts])


def _category(name: str, texts: Sequence[str]) -> Fact:
    """Number the most frequent texts; the others share one number."""
    values = [value for value, _ in Counter(texts).most_common(MOST_VALUES)]
    codes = np.array([values.index(text) if text in values else len(values) for text in texts])
    words = [value or "none" for value in values]
    return Fact(name, [*words, "another"] if (codes == len(values)).any() else words, codes)


def _ranges(name: str, numbers: ArrayLike, words: Callable[[float], str]) -> Fact:
    """Divide numbers into ranges of about as many images each."""
    numbers = np.asarray(numbers, np.float64)
    count = min(MOST_VALUES, len(numbers) // LEAST_EACH)
    ends = np.unique(np.quantile(numbers, np.arange(1, count + 1) / count, method="lower"))
    return Fact(name, list(map(words, ends)), np.searchsorted(ends, numbers), are_ranges=True)


def _origins(samples: Samples, rows: Sequence[int]) -> list[str]:
    """Return the folder below the class or above it; empty where that tells no origin.

    Folders that only name the classes, or hold a few images, tell none."""
    try:
        names = [name or "" for name in folders(samples, rows)[0]] if samples.root is not None else []
    except DataError:
        names = []
    sizes = Counter(names)
    names = [name if sizes[name] >= LEAST_SHARE * len(names) else "" for name in names]
    pairs = {(name, label) for name, label in zip(names, samples.labels[rows].tolist(), strict=False) if name}
    are_shared = len({name for name, _ in pairs}) < len(pairs)
    return names if are_shared or len(pairs) == len({label for _, label in pairs}) == 2 else [""] * len(rows)


def _counts(codes: NDArray[np.int64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count the images of each value and class: (values, classes)."""
    shape = int(codes.max()) + 1, int(labels.max()) + 1
    return np.bincount(codes * shape[1] + labels, minlength=shape[0] * shape[1]).reshape(shape)


def _accuracy(codes: NDArray[np.int64], labels: NDArray[np.int64]) -> float | None:
    """Return the balanced accuracy, out of fold; None where it is not surely and usefully above chance."""
    fold, sizes = np.empty(len(labels), np.int64), np.bincount(labels)
    fold[np.lexsort((np.random.default_rng(0).random(len(labels)), labels))] = np.arange(len(labels)) % FOLDS
    guesses, every = np.empty_like(labels), _counts(codes, labels)
    for number in range(FOLDS):
        held_out = np.zeros_like(every)
        np.add.at(held_out, (codes[fold == number], labels[fold == number]), 1)
        known = every - held_out
        guesses[fold == number] = (known / known.sum(axis=0)).argmax(axis=1)[codes[fold == number]]
    chance, accuracy = 1 / len(sizes), float(np.mean(np.bincount(labels, guesses == labels) / sizes))
    # Guesses that know nothing of the labels are right in a class as often as they name it.
    share = np.bincount(guesses, minlength=len(sizes)) / len(labels)
    error = chance * float(np.sqrt((share * (1 - share) / sizes).sum()))
    return accuracy if accuracy >= max(LEAST_GAIN * chance, chance + SURE * error) else None
