"""Simulated test sets whose images come in groups, and arms of equal accuracy on them."""

import numpy as np
from numpy.typing import NDArray

from trainers.statistics import design_of, is_claim, paired_difference

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
ACCURACIES = (0.6, 0.7, 0.8, 0.9, 0.95)
SIZES = (100, 200, 400)
LAWS = ("beta", "copy", "whole")
FLIPPED = 0.02
"""Answers to near copies that differ from the answer to the first."""


def groups_of(kind: str, images: int, generator: np.random.Generator) -> Ints:
    """(images,): groups of 8 (the last may be smaller); of 1, 2, 3, 5, 8, 13 or 21 by chance; half of the images alone
    and half in groups of 8; four groups of 10, all others alone; or one group of a quarter, all others alone."""
    if kind == "eights":
        sizes = [8] * -(-images // 8)
    elif kind == "unequal":
        sizes = generator.choice([1, 2, 3, 5, 8, 13, 21], size=images).tolist()
    else:
        size, count = {"half in eights": (8, images // 16), "four of ten": (10, 4), "one": (images // 4, 1)}[kind]
        sizes = [size] * count + [1] * (images - size * count)
    return np.repeat(np.arange(len(sizes)), sizes)[:images]


KINDS = ("eights", "unequal", "half in eights", "four of ten", "one")


def right_images(
    groups: Ints, accuracy: float, *, correlation: float, law: str, generator: np.random.Generator
) -> Bools:
    """Which images are right, (N,), with this correlation between any two of a group. beta: each group has its own
    probability. copy: an image repeats its group's answer or has one of its own. whole: all of a group do, or none."""
    images, count = len(groups), groups.max() + 1
    own = generator.random(images) < accuracy
    if law == "beta":
        spread = 1 / correlation - 1
        return generator.random(images) < generator.beta(accuracy * spread, (1 - accuracy) * spread, count)[groups]
    shared = (generator.random(count) < accuracy)[groups]
    repeats = generator.random(images) < correlation**0.5
    if law == "whole":
        repeats = (generator.random(count) < correlation)[groups]
    return np.where(repeats, shared, own)


def coverage(
    kind: str, law: str, *, correlation: float, accuracy: float, images: int, sets: int
) -> tuple[float, float]:
    """How often the interval holds the accuracy, by groups and by images."""
    generator, held = np.random.default_rng([round(1000 * accuracy), images]), np.zeros(2)
    for _ in range(sets):
        groups = groups_of(kind, images, generator)
        right = right_images(groups, accuracy, correlation=correlation, law=law, generator=generator)
        for place, clusters in enumerate((groups, None)):
            low, high = design_of(right, clusters).interval(right.mean())
            held[place] += low <= accuracy <= high
    by_groups, by_images = held / sets
    return float(by_groups), float(by_images)


def equal_arms(
    pictures: int, copies: int, *, seeds: int, agree: bool, generator: np.random.Generator
) -> tuple[Bools, Bools]:
    """Two arms (K, N) of the same accuracy, whose runs agree as those of linear probes do, or differ as those from
    scratch do, also from seed to seed as a whole; one run alone has no such shift, which would be its own."""
    difficulty, of_runs = generator.normal(2.4, 2, pictures), 0.2 if agree else 1.5
    of_seeds = 0.0 if agree or seeds == 1 else 0.1
    arms = []
    for _ in range(2):
        noise = of_runs * generator.standard_normal((seeds, pictures)) + of_seeds * generator.normal(size=(seeds, 1))
        right = np.repeat(difficulty + generator.standard_normal(pictures) + noise > 0, copies, axis=1)
        arms.append(right ^ (generator.random(right.shape) < FLIPPED) if copies > 1 else right)
    return arms[0], arms[1]


def told_apart(pictures: int, copies: int, *, seeds: int, agree: bool, pairs: int) -> tuple[float, float]:
    """How often equal arms are called different, by groups and by images."""
    generator, told = np.random.default_rng([copies, seeds]), np.zeros(2)
    groups = np.repeat(np.arange(pictures), copies)
    for _ in range(pairs):
        arms = equal_arms(pictures, copies, seeds=seeds, agree=agree, generator=generator)
        for place, clusters in enumerate((groups, None)):
            told[place] += is_claim(paired_difference(*arms, clusters))
    by_groups, by_images = told / pairs
    return float(by_groups), float(by_images)
