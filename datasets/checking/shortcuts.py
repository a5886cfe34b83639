"""Find shortcuts: facts of files that tell the class without the content (Geirhos et al. 2020, arXiv 2004.07780).

A small decision tree guesses the class of each image from one fact alone, learnt from other images. If it does better
than chance, a model may learn the fact in place of what the picture shows, and the test images do not reveal it.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.errors import DataError
from common.text import printable
from datasets.bundle import Samples
from datasets.checking.inspection import Inspection
from datasets.groups import folders

MOST_IMAGES, LEAST_IMAGES = 3_000, 20
"""Images that are judged, and fewer that are not."""
LEAST_GAIN = 1.3
"""Ratio to chance from which a fact is named: a trait that 65 % of some classes and 35 % of the others have."""
SURE = 3.5
"""Standard errors above chance from which it is named."""
MOST_VALUES = 16
"""Values of a category that are told apart, the most frequent ones."""
LEAST_SHARE = 0.05
"""Share of the images that a folder must hold to count as where they come from."""
FOLDS, DEPTH, LEAST_LEAF = 5, 4, 5
"""Of the cross-validation, where classes of fewer images are left out, and of the tree."""
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


class Shortcut(NamedTuple):
    """A fact that tells the classes."""

    fact: str
    """A key of FACTS."""
    accuracy: float
    """Balanced accuracy of a tree that knows nothing else, out of fold."""
    chance: float
    trait: str
    """The one question that tells most: `width <= 500`."""
    shares: dict[str, float]
    """The class of which most images have the trait, and that of which fewest have, with these shares."""
    row: int
    """First image with the trait."""

    def __str__(self) -> str:
        shares = ", ".join(f"{share:.0%} of {name!r}" for name, share in self.shares.items())
        return printable(
            f"{self.fact} alone tells the class of {self.accuracy:.0%} of the images, {self.chance:.0%} by chance"
            f" ({self.trait}: {shares}); {FACTS[self.fact]}"
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "fact": self.fact,
            "guessed_right": round(self.accuracy, 4),
            "by_chance": round(self.chance, 4),
            "trait": self.trait,
            "shares": {name: round(share, 4) for name, share in self.shares.items()},
            "advice": FACTS[self.fact],
        }


def find_shortcuts(
    samples: Samples, rows: Sequence[int], seen: Sequence[Inspection], units: NDArray[np.int64]
) -> list[Shortcut]:
    """Return the shortcuts among images with facts, the one that tells most first.

    `units`: a number for each image; of copies and images of one group, which have the same, one of each class counts.
    """
    usable = np.array([place for place, picture in enumerate(seen) if picture.facts is not None], np.int64)
    labels = samples.labels[[rows[place] for place in usable]]
    first = np.unique(np.stack([units[usable], labels]), axis=1, return_index=True)[1]
    first = np.sort(first[np.bincount(labels[first])[labels[first]] >= FOLDS]) if len(first) else first
    usable, (classes, labels) = usable[first], np.unique(labels[first], return_inverse=True)
    if len(usable) < LEAST_IMAGES or len(classes) < 2:
        return []
    names, found = [samples.class_names[label] for label in classes], []
    chosen = [rows[place] for place in usable]
    for fact, columns in _facts(samples, chosen, [seen[place] for place in usable]):
        numbers = np.column_stack(list(columns.values())).astype(np.float64)
        if not np.ptp(numbers, axis=0).any() or (accuracy := _accuracy(numbers, labels)) is None:
            continue
        trait, has = _trait(list(columns), numbers, labels)
        shares = np.bincount(labels, has) / np.bincount(labels)
        ends = {names[at]: float(shares[at]) for at in (shares.argmax(), shares.argmin())}
        found.append(Shortcut(fact, accuracy, 1 / len(names), trait, ends, chosen[int(has.argmax())]))
    return sorted(found, key=lambda one: -round(one.accuracy, 2))


def _facts(
    samples: Samples, rows: Sequence[int], seen: Sequence[Inspection]
) -> Iterator[tuple[str, dict[str, NDArray[Any]]]]:
    """Yield each fact with its columns, (N,) each; of a category one for each value."""
    facts = [picture.facts for picture in seen if picture.facts is not None]
    width, height = np.array([(picture.width, picture.height) for picture in seen], np.float64).T
    modes = {"P": " with a palette", "RGBA": " with transparency", "LA": " with transparency", "1": " of 1 bit"}
    types = [picture.format + modes.get(fact.mode, "") for picture, fact in zip(seen, facts, strict=True)]
    yield "camera", _category([fact.camera for fact in facts])
    yield "folder", _category(_origins(samples, rows))
    yield "day", {"day": np.array([fact.day for fact in facts])}
    yield "file type", _category(types)
    yield "aspect ratio", {"width / height": (width / height).round(2)}
    yield "size", {"width": width, "height": height, "pixels": width * height}
    yield "grey or colour", _category(["grey" if fact.is_grey else "colour" for fact in facts])
    yield "JPEG quality", _category([fact.jpeg for fact in facts])


def _category(values: Sequence[str]) -> dict[str, NDArray[Any]]:
    common = [value for value, _ in Counter(values).most_common(MOST_VALUES)]
    return {value or "none": np.array([other == value for other in values]) for value in common}


def _origins(samples: Samples, rows: Sequence[int]) -> list[str]:
    """Return the folder below the class or above it; empty where folders only name the classes, or a few images."""
    try:
        names = [name or "" for name in folders(samples, rows)[0]] if samples.root is not None else []
    except DataError:
        names = []
    sizes = Counter(names)
    names = [name if sizes[name] >= LEAST_SHARE * len(names) else "" for name in names]
    pairs = {(name, label) for name, label in zip(names, samples.labels[rows].tolist(), strict=False) if name}
    are_shared = len({name for name, _ in pairs}) < len(pairs)
    return names if are_shared or len(pairs) == len({label for _, label in pairs}) == 2 else [""] * len(rows)


def _accuracy(numbers: NDArray[np.float64], labels: NDArray[np.int64]) -> float | None:
    """Return the balanced accuracy of a tree, out of fold; None where it is not surely and usefully above chance."""
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    guesses = cross_val_predict(_tree(DEPTH), numbers, labels, cv=folds)
    sizes = np.bincount(labels)
    chance, accuracy = 1 / len(sizes), float(np.mean(np.bincount(labels, guesses == labels) / sizes))
    # Guesses that know nothing of the labels are right in a class as often as they name it.
    share = np.bincount(guesses, minlength=len(sizes)) / len(labels)
    error = chance * float(np.sqrt((share * (1 - share) / sizes).sum()))
    return accuracy if accuracy >= max(LEAST_GAIN * chance, chance + SURE * error) else None


def _trait(
    columns: Sequence[str], numbers: NDArray[np.float64], labels: NDArray[np.int64]
) -> tuple[str, NDArray[np.bool_]]:
    """Return the question that tells the classes best, in words, and which images have the trait."""
    stump = _tree(1).fit(numbers, labels).tree_
    column, bound = int(stump.feature[0]), float(stump.threshold[0])
    name, values = columns[column], numbers[:, column]
    if set(np.unique(values)) <= {0.0, 1.0}:
        return name, values > bound
    shown = str(date.fromordinal(int(bound))) if name == "day" and bound >= 1 else f"{bound:.6g}"
    return f"{name} <= {shown}", values <= bound


def _tree(depth: int) -> Any:
    """Return a decision tree; scikit-learn takes a second to import, which sets without varied files are spared."""
    from sklearn.tree import DecisionTreeClassifier

    return DecisionTreeClassifier(max_depth=depth, min_samples_leaf=LEAST_LEAF, class_weight="balanced", random_state=0)
