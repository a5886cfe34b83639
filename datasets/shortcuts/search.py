"""Shortcuts: facts beside the content of an image that tell its class (Geirhos et al. 2020, arXiv 2004.07780).

Each fact is given to a small tree, which guesses the classes of images that it has not learnt from. A fact of the file
counts where it tells surely and usefully more than chance. But what a picture shows is bright, coloured and detailed in
some way, too, the sea in another than a forest. So of facts that content makes as well, such as bytes per pixel, only
what they tell beside light and colour counts; and light and colour themselves are no more than a note.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.bundle import Samples
from datasets.checking.inspection import Inspection
from datasets.facts import CORNERS
from datasets.shortcuts.columns import FILE, LIGHT, MIXED, NUMBER, Fact, facts_of
from datasets.shortcuts.pictures import both_kinds
from datasets.shortcuts.trait import Shortcut, trait_of
from datasets.shortcuts.tree import FOLDS, Told, told
from datasets.shortcuts.words import advice, as_json, note, sentence
from datasets.sources.problems import Problem

LEVEL = 0.01
"""Share of sets without any shortcut in which a fact is named by chance (Bonferroni over the facts)."""
LEAST_GAIN = 0.04
"""Nats that a fact has to tell of a class, to be worth a word: as much as a trait of 64 % of one class and of 36 % of
another."""
BESIDE = 3.0
"""Standard errors by which a fact must help beside light and colour."""
FEW = 0.02
"""Share of the images that a class has at least, for its numbers to be compared with those of others."""
LEAST_IMAGES = 20
MOST_IMAGES = 4_000
"""Images that are judged, spread over a larger set."""


@dataclass(frozen=True)
class Shortcuts:
    """Shortcuts found in a set, the likeliest cause first."""

    found: tuple[Shortcut, ...] = ()
    by_light: tuple[Shortcut, ...] = ()
    """Facts that content may well be the reason for, and numbers that only say in which order files were named."""
    pictures: bytes = b""
    """A PNG with pictures of both kinds; empty where there is nothing to show."""
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()

    def lines(self, picture: str) -> Iterator[str]:
        """Say what was found: the likeliest cause, what to do, and where pictures are."""
        if not self.found:
            return
        first, *others = self.found
        yield f"shortcut: {sentence(first)}"
        yield f"{'what to do':>12}  {advice(first.fact.name)}"
        if others:
            yield f"{'so do':>12}  {', '.join(f'{one.fact.name} ({one.told.accuracy:.0%})' for one in others)}"
        yield f"{'pictures':>12}  {picture}"

    def as_json(self) -> dict[str, Any]:
        return {
            "found": [as_json(one) for one in self.found],
            "only_notes": [as_json(one) for one in self.by_light],
        }


def shortcuts_in(
    samples: Samples, rows: Sequence[int], seen: Sequence[Inspection], units: NDArray[np.int64]
) -> Shortcuts:
    """Look for shortcuts among the readable of these rows of a set; images of one of the `units` belong together, and
    one of each and of each class is looked at."""
    places = _one_of_each(samples, rows, seen, units)
    labels, classes = _used_classes(samples.labels[[rows[place] for place in places]])
    if len(places) < LEAST_IMAGES or len(classes) < 2:
        return Shortcuts()
    chosen = [rows[place] for place in places]
    facts = facts_of(samples, chosen, [seen[place] for place in places])
    names = [samples.class_names[label] for label in classes]
    found, light = _judged(facts, labels, names)
    shown = both_kinds(samples, chosen, found)
    notes = (note(light),) if light else ()
    return Shortcuts(found, light, shown, tuple(_problem(samples, chosen, one) for one in found), notes)


def _one_of_each(
    samples: Samples, rows: Sequence[int], seen: Sequence[Inspection], units: NDArray[np.int64]
) -> list[int]:
    """Places of images, the first of each unit and class, as many as are judged."""
    usable = np.array([place for place, one in enumerate(seen) if one.facts is not None and one.facts.pixels], np.int64)
    keys = np.stack([units[usable], samples.labels[[rows[place] for place in usable]]], axis=1)
    usable = usable[np.sort(np.unique(keys, axis=0, return_index=True)[1])] if len(usable) else usable
    return usable[np.linspace(0, len(usable) - 1, min(len(usable), MOST_IMAGES)).astype(int)].tolist()


def _used_classes(labels: NDArray) -> tuple[NDArray[np.int64], NDArray]:
    """Labels counted from 0, and the classes that they stand for."""
    classes, numbers = np.unique(labels, return_inverse=True)
    return numbers.astype(np.int64), classes


def _judged(
    facts: Sequence[Fact], labels: NDArray[np.int64], names: Sequence[str]
) -> tuple[tuple[Shortcut, ...], tuple[Shortcut, ...]]:
    """The facts that are shortcuts, and those that are no more than a note."""
    fold, classes = _folds(labels), len(names)
    judged = [(fact, told(fact.numbers, labels, fold, classes)) for fact in facts]
    content = [fact.numbers for fact in facts if fact.source == LIGHT and fact.name != "border"]
    beside = told(np.concatenate(content, axis=1), labels, fold, classes) if content else None
    found: list[Shortcut] = []
    light: list[Shortcut] = []
    for fact, result in judged:
        if not _tells(result, len(facts)):
            continue
        one = Shortcut(fact, result, trait_of(fact, labels, names))
        if fact.name == NUMBER:
            within = _in_all_spans(fact.numbers[:, 0], labels)
            named = within.sum() >= LEAST_IMAGES
            named = named and _tells(told(fact.numbers[within], labels[within], fold[within], classes), len(facts))
            if not named and within.any():
                continue
        else:
            beside_light = fact.source == MIXED and (beside is None or _helps(beside, result, fact.beside))
            named = fact.source == FILE or beside_light or _one_sided(fact, labels, fold, classes)
        (found if named else light).append(one)
    light.sort(key=lambda one: one.fact.name == "bytes per pixel")  # which follows from all the others
    return _cause_first(found), _cause_first(light)


def _folds(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The fold of each image, the same share of each class in every fold, as the seed 0 draws it."""
    order = np.lexsort((np.random.default_rng(0).random(len(labels)), labels))
    fold = np.empty(len(labels), np.int64)
    fold[order] = np.arange(len(labels)) % FOLDS
    return fold


def _helps(beside: Told, result: Told, least: float) -> bool:
    """Return whether a fact tells so much more than `beside` does by itself, when both speak as independent
    witnesses."""
    return _surely(beside.joined(result).of_images - beside.of_images, least)


def _surely(more: NDArray[np.float64], least: float) -> bool:
    """Return whether the mean is at least so much, and surely more than nothing."""
    return float(more.mean()) >= max(least, BESIDE * float(more.std()) / len(more) ** 0.5)


def _tells(result: Told, facts: int) -> bool:
    """Return whether one of so many facts tells surely and usefully more than chance."""
    return result.chance <= LEVEL / facts and result.mean >= LEAST_GAIN


def _in_all_spans(numbers: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mask of the images whose number lies between the lowest and the highest of each class: where files are counted
    class by class, other numbers say no more than how many images a class has."""
    sizes = np.bincount(labels)
    classes = np.flatnonzero(sizes >= FEW * len(labels))
    low = max(numbers[labels == label].min() for label in classes)
    high = min(numbers[labels == label].max() for label in classes)
    return np.asarray((numbers >= low) & (numbers <= high))


def _one_sided(fact: Fact, labels: NDArray[np.int64], fold: NDArray[np.int64], classes: int) -> bool:
    """Return whether a corner tells surely more than the one across from it: in photographs left and right are
    alike."""
    if fact.columns != CORNERS:
        return False
    corners = [told(fact.numbers[:, at : at + 2], labels, fold, classes) for at in range(0, len(CORNERS), 2)]
    pairs = [(corners[at], corners[at + 1]) for at in (0, 2)]
    return any(_surely(a.of_images - b.of_images, fact.beside) for pair in pairs for a, b in (pair, pair[::-1]))


def _cause_first(found: Sequence[Shortcut]) -> tuple[Shortcut, ...]:
    """The shortcuts by what they tell; but of two that tell about as much the one that causes the other: PNG files have
    no JPEG tables and more bytes. `found` is in the order of causes."""
    left, order = list(found), []
    while left:
        best = max(left, key=lambda one: one.told.mean)
        first = next(one for one in left if _as_much(one.told, best.told))
        order.append(first)
        left = [one for one in left if one is not first]
    return tuple(order)


def _as_much(one: Told, best: Told) -> bool:
    less = best.of_images - one.of_images
    return float(less.mean()) <= 0.01 + 2 * float(less.std()) / np.sqrt(len(less))


def _problem(samples: Samples, rows: Sequence[int], one: Shortcut) -> Problem:
    row = rows[one.trait.example]
    return Problem("shortcut", samples.paths[row], label=one.trait.most, detail=sentence(one))
