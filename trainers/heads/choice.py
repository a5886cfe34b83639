"""Choice of the networks and the head: each candidate is judged by images that its head has not learnt from.

The loss that counts is the cross-entropy after the best temperature. Of candidates whose loss is within one standard
error of the least, the cheapest is taken (Breiman et al. 1984, section 3.4.3): the error is that of the difference,
image by image.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from trainers.engine.temperature import Floats, Ints, losses, sharpness
from trainers.heads import inner_products
from trainers.heads.linear import Linear, Scale, basis_of, discriminant, logistic, ridge, scale
from trainers.heads.validation import folds_of, out_of_fold

Fit = Callable[[Floats, Ints, int], Linear]
Answers = Callable[[Ints, Ints], Floats]
"""Logits that a head which learns from some rows gives others."""
PENALTIES = {"ridge": (0.1, 1.0, 10.0), "logistic": (0.01, 0.1, 1.0)}
"""Penalties on features whose variance, summed over those of a network, is 1."""
DISCRIMINANT = "discriminant analysis"
RIDGE = {f"ridge {penalty:g}": partial(ridge, penalty=penalty) for penalty in PENALTIES["ridge"]}
RIDGE_BY_PRODUCTS = {
    f"ridge {penalty:g}": partial(inner_products.ridge, penalty=penalty) for penalty in PENALTIES["ridge"]
}
LOGISTIC = {f"logistic {penalty:g}": partial(logistic, penalty=penalty) for penalty in PENALTIES["logistic"]}
QUICK = (DISCRIMINANT, *RIDGE)
SLOW = tuple(LOGISTIC)
MOST_IMAGES = 1_500
"""Training images that heads are cross-validated on; the one that is chosen learns from all of them."""
FEW = 20
"""Images a class up to which all networks are taken."""
MOST_WORK = 4e9
"""Images x features x classes above which no logistic regression is tried: it would take minutes."""


@dataclass(frozen=True)
class Judged:
    """A head on some of the networks, and what cross-validation says of it."""

    networks: tuple[int, ...]
    """Their places."""
    head: str
    logits: Floats
    """(n, K), each image's by a head that did not learn from it, after the best temperature."""
    losses: Floats
    """(n,): their cross-entropy."""
    sharpness: float
    """One over that temperature."""

    right: NDArray[np.bool_]
    """(n,)"""

    @property
    def loss(self) -> float:
        return float(self.losses.mean())

    @property
    def accuracy(self) -> float:
        return float(self.right.mean())


@dataclass(frozen=True)
class Images:
    """Features (N, D) of images, their labels and units, and the columns of each network."""

    features: NDArray
    labels: Ints
    units: Ints
    classes: int
    columns: Sequence[slice]
    levels: Sequence[slice] = ()
    """Columns of features that share a scale, within those of the networks; by default those of each network."""

    def some(self, most: int = MOST_IMAGES) -> "Images":
        """About so many of them, of each class the same share, with whole units."""
        if len(self.labels) <= most:
            return self
        _, first, unit = np.unique(self.units, return_index=True, return_inverse=True)
        by_class = np.argsort(self.labels[first], kind="stable")  # of the units, each of which is that of its first
        count = max(1, len(by_class) * most // len(self.labels))
        kept = np.isin(unit, by_class[np.arange(count) * len(by_class) // count])
        return replace(self, features=self.features[kept], labels=self.labels[kept], units=self.units[kept])

    @cached_property
    def ready(self) -> dict[tuple[int, ...], "Prepared"]:
        """Features of networks that `prepared` has made ready."""
        return {}

    @cached_property
    def products(self) -> dict[int, Floats]:
        """The Gram matrices (N, N) of networks on that scale, as far as they were asked for."""
        return {}

    def gram(self, networks: Sequence[int]) -> Floats:
        """(N, N): inner products of the images, seen by some networks side by side."""
        for place in {*networks} - {*self.products}:
            part = self.features[:, self.columns[place]]
            part = scale(part, self.levels_of(place))(part)
            self.products[place] = part @ part.T
        total: Floats = sum((self.products[place] for place in networks[1:]), self.products[networks[0]])
        return total

    def levels_of(self, place: int, start: int = 0) -> list[slice]:
        """The columns of each level of a network whose features begin at column `start`."""
        own = self.columns[place]
        within = [level for level in self.levels if own.start <= level.start < own.stop] or [own]
        return [slice(level.start - own.start + start, level.stop - own.start + start) for level in within]

    def of(self, networks: Sequence[int]) -> tuple[NDArray, list[slice], list[slice]]:
        """The features (N, d) of some networks, the columns of each of these, and those of their levels."""
        parts, columns, levels, start = [], [], [], 0
        for place in networks:
            parts.append(self.features[:, self.columns[place]])
            columns.append(slice(start, start + parts[-1].shape[1]))
            levels += self.levels_of(place, start)
            start = columns[-1].stop
        return np.concatenate(parts, axis=1), columns, levels


@dataclass(frozen=True)
class Prepared:
    """Features of some networks on one scale (N, d), in fewer dimensions where that loses nothing, and the way back."""

    values: Floats
    scaling: Scale
    basis: Floats | None
    columns: Sequence[slice]
    heads: Mapping[str, Fit]
    """Heads that may be fitted to them, the quick ones first."""

    def back(self, head: Linear) -> Linear:
        """A head on the features as they come."""
        return self.scaling.undone(head if self.basis is None else Linear(head.weight @ self.basis.T, head.bias))


def prepared(images: Images, networks: Sequence[int]) -> Prepared:
    """The features of some networks, ready for heads; they are made ready once."""
    known = tuple(networks)
    if known not in images.ready:
        images.ready[known] = _prepared(images, networks)
    return images.ready[known]


def _prepared(images: Images, networks: Sequence[int]) -> Prepared:
    features, columns, levels = images.of(networks)
    scaling = scale(features, levels)
    values = scaling(features)
    basis = basis_of(values)
    heads: dict[str, Fit] = {DISCRIMINANT: partial(discriminant, dimensions=values.shape[1]), **RIDGE, **LOGISTIC}
    return Prepared(values if basis is None else values @ basis, scaling, basis, columns, heads)


def answering(images: Images, networks: Sequence[int], names: Sequence[str]) -> Iterator[tuple[str, Answers]]:
    """The heads of these names on some networks. Where there are more features than half as many as images, those that
    can be are fitted by inner products, which is quicker."""
    dimensions = sum(images.columns[place].stop - images.columns[place].start for place in networks)
    if 2 * dimensions > len(images.labels) and set(names) <= set(QUICK):
        gram = images.gram(networks)
        of_products = {DISCRIMINANT: partial(inner_products.discriminant, dimensions=dimensions), **RIDGE_BY_PRODUCTS}
        for name in names:
            yield name, partial(of_products[name], gram, images.labels, images.classes)
        return
    ready = prepared(images, networks)
    for name in names:
        yield name, partial(fit_and_ask, ready.heads[name], images, ready.values)


def fit_and_ask(fit: Fit, images: Images, values: Floats, learn: Ints, ask: Ints) -> Floats:
    return fit(values[learn], images.labels[learn], images.classes)(values[ask])


def judge(images: Images, networks: Sequence[int], names: Sequence[str], folds: Sequence[Ints]) -> list[Judged]:
    """Cross-validate the heads of these names on some networks."""
    found = []
    for name, answers in answering(images, networks, names):
        logits = out_of_fold(answers, folds)
        factor = sharpness(logits, images.labels)
        missed = losses(factor * logits, images.labels)
        right = logits.argmax(axis=1) == images.labels
        found.append(Judged(tuple(networks), name, factor * logits, missed, factor, right))
    return found


def fitted(images: Images, networks: Sequence[int], name: str) -> Linear:
    """A head of this name, fitted to all the images, on the features of all networks: 0 for those it does not use."""
    ready = prepared(images, networks)
    head = ready.back(ready.heads[name](ready.values, images.labels, images.classes))
    weight = np.zeros((images.classes, images.features.shape[1]))
    for place, column in zip(networks, ready.columns, strict=True):
        weight[:, images.columns[place]] = head.weight[:, column]
    return Linear(weight, head.bias)


def one_thread() -> AbstractContextManager[Any]:
    """Linear algebra on one thread while entered: the products of heads are so small that threads wait for each other
    longer than they compute, and many times as long where others use the machine."""
    return threadpool_limits(limits=1, user_api="blas")


@dataclass(frozen=True)
class Choice:
    """Choice among all heads that were tried; `single` is the best of one network."""

    taken: Judged
    single: Judged
    judged: Sequence[Judged]


def choose(
    images: Images, costs: Sequence[float], in_time: Callable[[tuple[int, ...]], bool] = lambda networks: True
) -> Choice | None:
    """Judge each network alone, then the best one with others beside it, one more at a time; `costs` of each network
    say which candidate is the cheaper. Taken are networks that are `in_time` together, and of few images, which do not
    tell networks apart, as many as can be. None where there are too few images to judge by."""
    images = images.some()
    folds = folds_of(images.labels, images.units)
    if not folds:
        return None
    places = range(len(images.columns))
    with one_thread():
        judged = [each for place in places for each in judge(images, [place], QUICK, folds)]
        grown: tuple[int, ...] = ()
        while len(grown) < len(places):
            more = [(*grown, place) for place in places if place not in grown]
            found = [each for networks in more if grown for each in judge(images, networks, QUICK, folds)]
            judged += found
            grown = min(found or judged, key=lambda each: each.loss).networks
    price = {each.networks: sum(costs[place] for place in each.networks) for each in judged}
    possible = [each for each in judged if in_time(each.networks)] or judged
    if len(images.labels) > FEW * images.classes:
        taken = cheapest_of_the_best(possible, price, images.units)
    else:
        taken = min(possible, key=lambda each: (-len(each.networks), each.loss))
    single = cheapest_of_the_best([each for each in judged if len(each.networks) == 1], price, images.units)
    return Choice(taken, single, judged)


def cheapest_of_the_best(judged: Sequence[Judged], price: Mapping[tuple[int, ...], float], units: Ints) -> Judged:
    """The cheapest candidate whose loss is within one standard error of the least, images of a unit counting as one; of
    several that cost the same, the one with the least loss."""
    best = min(judged, key=lambda each: each.loss)
    clusters = np.unique(units, return_inverse=True)[1]

    def close(each: Judged) -> bool:
        behind = np.bincount(clusters, each.losses - best.losses)
        error = behind.std() * len(behind) ** 0.5 / len(units)
        return bool(each.loss - best.loss <= error)

    return min(filter(close, judged), key=lambda each: (price[each.networks], each.loss))
