"""Slices of scored images that are known beforehand, such as the darkest fifth or one camera, and those of them in
which a model is surely wrong more often than on other images of the same classes. Nothing is clustered: a slice that
was found by looking for errors is weak by construction."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from datasets.bundle import Samples
from datasets.checking.inspection import Inspection, inspections
from datasets.errors import DataError
from datasets.facts import GREY, PIXELS, ImageFacts
from datasets.grouping.option import folders
from datasets.units import are_copies, units_of
from trainers.engine.intervals import design_of

LEVEL = 0.05
"""Share of evaluations without a weak slice in which one is named (Holm 1979 over all slices tested)."""
LEAST_IMAGES, MOST_SHARE = 15, 0.5
"""Images of a slice, at least; and the share of all that it is, at most."""
MOST_IMAGES = 5_000
"""Images whose files are looked at, spread over a larger set: it takes about 2 ms for each."""
MOST_OF_A_KIND = 20
"""Groups, cameras and folders that are looked at, the largest ones."""
NUMBERS = {
    "brightness": ("mean level", "the darkest fifth", "the lightest fifth"),
    "sharpness": ("sharpness", "the least sharp fifth", "the sharpest fifth"),
    "detail": ("coarse detail", "the fifth with the least detail", "the fifth with the most detail"),
}
"""Fact -> its number in `datasets.facts`, and what its lowest and its highest fifth are called."""


class Slice(NamedTuple):
    """Images that have something in common."""

    fact: str
    name: str
    members: NDArray[np.bool_]
    """(N,)"""


class WeakSlice(NamedTuple):
    """A slice with an accuracy that is surely and visibly lower than that of other images of the same classes."""

    fact: str
    name: str
    images: int
    accuracy: float
    others: float
    """Accuracy of other images of the same classes, each class counted as often as it is in the slice: a slice of easy
    classes may be right more often than all other images and yet be weak."""
    p: float
    """P-value after Holm's correction."""


class Weakness(NamedTuple):
    """Slices that were tested, and the weak ones, the surest first."""

    looked_at: int
    facts: tuple[str, ...]
    weak: tuple[WeakSlice, ...]

    def lines(self) -> Iterator[str]:
        for one in self.weak:
            yield (
                f"{'weak where':>17}  {one.fact}: {one.name}: {one.accuracy:.1%} of {one.images:,} images right, "
                f"{one.others:.1%} of others in the same mix of classes"
            )
        if self.looked_at:
            found = "surely weaker than other images of the same classes"
            start = "" if self.weak else "none is "
            yield f"{'':>17}  {start}{found}: {self.looked_at} slices looked at, by {', '.join(self.facts)} (Holm, 5%)"


def weakness(dataset: Any, correct: ArrayLike) -> Weakness:
    """The weak slices of the images of a data set (`samples`, `indices`), of which these were `correct`."""
    return weaknesses(dataset, [correct])[0]


def weaknesses(dataset: Any, several: Sequence[ArrayLike]) -> list[Weakness]:
    """Find the weak slices of several models, each with what it had `correct`; files are looked at once."""
    samples, rows = dataset.samples, np.asarray(dataset.indices, np.int64)
    if samples.root is None and samples.pixels is None:  # a program's own images
        return [Weakness(0, (), ()) for _ in several]
    places = np.linspace(0, len(rows) - 1, min(len(rows), MOST_IMAGES)).astype(int) if len(rows) else np.arange(0)
    rows = rows[places]
    known = list(slices_of(samples, rows, inspections(samples, rows.tolist(), workers=0, with_facts=True)))
    units, labels = units_of(samples, rows), samples.labels[rows].astype(np.int64)
    found = []
    for correct in several:
        right = np.asarray(correct, bool)[places]
        effect = design_of(right, units).effect if len(rows) else 1.0
        found.append(weakest(known, right, labels, effect))
    return found


def slices_of(samples: Samples, rows: NDArray[np.int64], seen: Sequence[Inspection]) -> Iterator[Slice]:
    """The slices by group, camera, folder of origin, type of file, size, colour, brightness, sharpness and detail."""
    facts = [picture.facts or ImageFacts() for picture in seen]
    groups = [samples.group_of(row) for row in rows.tolist()]
    yield from _categories("group", ["" if are_copies(name) else name for name in groups])
    yield from _categories("camera", [fact.camera for fact in facts])
    yield from _categories("folder", _folders(samples, rows))
    yield from _categories("file type", [picture.format for picture in seen])
    sizes = np.array([picture.width * picture.height for picture in seen], np.float64)
    yield from _fifths("size", sizes, "the smallest fifth", "the largest fifth")
    read = np.array([bool(fact.pixels) for fact in facts])
    if not read.all():
        return
    pixels = np.frombuffer(b"".join(fact.pixels for fact in facts), np.float32).reshape(-1, len(PIXELS))
    grey = pixels[:, PIXELS.index("most colour")] <= GREY
    yield from _categories("colour", np.where(grey, "grey", "coloured").tolist())
    for fact, (number, low, high) in NUMBERS.items():
        yield from _fifths(fact, pixels[:, PIXELS.index(number)].astype(np.float64), low, high)


def _folders(samples: Samples, rows: NDArray[np.int64]) -> list[str]:
    if samples.root is None:
        return [""] * len(rows)
    try:
        return [name or "" for name in folders(samples, rows.tolist())[0]]
    except DataError:  # all images lie in one folder of their class
        return [""] * len(rows)


def _categories(fact: str, names: Sequence[str]) -> Iterator[Slice]:
    """A slice for each name; of many names for the most frequent ones. An empty name is none."""
    array = np.array(names)
    for name, count in Counter(name for name in names if name).most_common(MOST_OF_A_KIND):
        if LEAST_IMAGES <= count <= MOST_SHARE * len(names):
            yield Slice(fact, name, array == name)


def _fifths(fact: str, values: NDArray[np.float64], low: str, high: str) -> Iterator[Slice]:
    """The lowest and the highest fifth, where a number has enough values."""
    if not len(values):
        return
    for name, members in ((low, values <= np.quantile(values, 0.2)), (high, values >= np.quantile(values, 0.8))):
        if LEAST_IMAGES <= members.sum() <= MOST_SHARE * len(values):
            yield Slice(fact, name, members)


def weakest(
    slices: Sequence[Slice], right: NDArray[np.bool_], labels: NDArray[np.int64], effect: float = 1.0
) -> Weakness:
    """The slices with surely more errors than other images of their classes; `effect`: the design effect of groups."""
    from scipy.stats import norm  # takes most of a second to import

    chances = np.array([chance(one.members, ~right, labels) for one in slices])
    if effect > 1:
        chances = norm.sf(norm.isf(chances.clip(1e-300, 1)) / np.sqrt(effect))
    found, largest = [], 0.0
    order = np.argsort(chances, kind="stable")
    for place, at in enumerate(order.tolist()):
        largest = max(largest, min(1.0, float(chances[at]) * (len(slices) - place)))
        if largest > LEVEL:
            break
        one = slices[at]
        inside, outside = float(right[one.members].mean()), comparable(one.members, right, labels)
        if inside < outside:
            found.append(WeakSlice(one.fact, one.name, int(one.members.sum()), inside, outside, largest))
    return Weakness(len(slices), tuple(dict.fromkeys(one.fact for one in slices)), tuple(found))


def comparable(members: NDArray[np.bool_], right: NDArray[np.bool_], labels: NDArray[np.int64]) -> float:
    """Accuracy of the images that are no members, by class, weighted by the members of each class (direct
    standardisation). A class that has members alone counts as they are: it tells of no difference."""
    total = 0.0
    for label in np.unique(labels[members]):
        inside, others = members & (labels == label), ~members & (labels == label)
        total += inside.sum() * right[others if others.any() else inside].mean()
    return float(total / members.sum())


def chance(members: NDArray[np.bool_], wrong: NDArray[np.bool_], labels: NDArray[np.int64]) -> float:
    """p-value of a slice's errors, if each class's errors fell anywhere among its images: Fisher's
    exact test, one-sided and stratified by class (Mantel and Haenszel 1959)."""
    from scipy.stats import hypergeom

    distribution = np.ones(1)
    for label in np.unique(labels[members]):
        of_class = labels == label
        images, errors, inside = of_class.sum(), (wrong & of_class).sum(), (members & of_class).sum()
        if errors:
            most = min(errors, inside)
            distribution = np.convolve(distribution, hypergeom.pmf(np.arange(most + 1), images, errors, inside))
    return min(1.0, float(distribution[int((wrong & members).sum()) :].sum()))
