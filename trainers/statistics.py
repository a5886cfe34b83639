"""Statistics of the scored images: intervals, tests, and one sentence that claims no more than they carry.

Shapes: K seeds (runs of one arm), N images, C classes. `correct` arrays are bool (K, N): run k is right about image i.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binom, t
from torch import Tensor

from common.text import pluralise
from trainers.engine.intervals import LEVEL, Clusters, design_of, numbered, summed
from trainers.engine.metrics import confidence_bins

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class PairedDifference:
    """Accuracy of the first arm minus that of the second, as fractions."""

    mean: float
    low: float
    high: float
    p: float
    seeds: int
    images: int
    identical: bool
    """The arms are right about the very same images, seed by seed."""
    groups: int
    """Number of groups of images that belong together; an image that stands alone is a group, too."""


@dataclass(frozen=True)
class Spread:
    """Variances of the difference of two runs on one image: with the image, whatever the seed; with the run, each image
    by itself; and with the seed, all images together."""

    images: float
    runs: float
    seeds: float
    groups: float = 1.0
    """Independent groups per image; 1 where every image stands alone."""

    def error(self, seeds: int, images: int) -> float:
        """Standard error of the mean difference over so many seeds and images."""
        return math.sqrt((self.images + self.runs / seeds) / images + self.seeds / seeds)

    def share(self, seeds: int, images: int) -> float:
        """Part of the square of that error that shows as spread between seeds."""
        return min(1.0, (self.runs / images + self.seeds) / seeds / self.error(seeds, images) ** 2)


@dataclass(frozen=True)
class Estimate:
    """A mean difference, how sure it is, and why."""

    centre: float
    error: float
    share: float
    """Part of the squared error that was seen as spread between the seeds."""
    seeds: int
    images: int
    spread: Spread
    effect: float = 1.0
    """Design effect of groups of images on the variance (`trainers.engine.intervals`); 1 where every image stands
    alone."""

    @property
    def mean(self) -> float:
        """Mean without the two Bonett-Price pseudo-observations."""
        return self.centre * (self.images + 2 * self.effect) / self.images

    @property
    def groups(self) -> float:
        return self.images * self.spread.groups

    def half_width(self, level: float) -> float:
        """Half-width of the two-sided interval at this level."""
        return self.error * float(quantile(level, self.share, self.seeds, self.groups))

    def p_value(self) -> float:
        """The level at which the interval ends at 0: the quantile falls in it, so a fine logarithmic grid finds it."""
        grid = np.append(np.logspace(-12, 0, 2401), 1.0)
        quantiles = quantile(grid, self.share, self.seeds, self.groups)
        return float(np.interp(-abs(self.centre) / self.error, -quantiles, grid))


def estimate(differences: NDArray[np.int8], clusters: Clusters | None = None) -> Estimate:
    """The mean of differences (K, N) of -1, 0, 1 between two arms on the same seeds and images.

    The variance of the mean is what a bootstrap over images and, where K > 1, over seeds finds, in closed form. Two
    things make plain resampling wrong. Drawing whole rows and columns counts what belongs to one seed and one image
    alone three times (Owen 2007, "The pigeonhole bootstrap"), so of the spread between seeds only that part counts
    which it adds to the spread of the images. And few seeds look too sure: their spread is too small by (K - 1) / K on
    average, and 2 or 3 may lie together by chance (Efron and Tibshirani 1993, chapters 6 and 12). So the variance has
    K - 1 below it, and the quantiles are Student's, of K - 1 degrees of freedom for the seeds' share of the variance
    and of N - 1 for the rest (Cochran and Cox 1950). Two more images, one right for each arm alone, keep unanimous
    results from looking certain (Bonett and Price 2012).

    Where images come in G groups, groups are drawn in place of images: both variances of images, with and without the
    runs, are multiplied by their design effects (`trainers.engine.intervals`), the two more images are two effective
    ones, and Student's degrees of freedom count groups.
    """
    by_image = differences.mean(axis=0)
    design = design_of(by_image, clusters, prior=0.0)
    seeds, n = len(differences), differences.shape[1] + 2 * design.effect
    of_seeds = differences.sum(axis=1, dtype=np.int64) / n
    centre = float(of_seeds.mean())
    squares = float((by_image**2).sum())
    of_images = ((squares + 2 * design.effect) / n - centre**2) / n * design.effect  # what the images bring
    per_image = design.groups / design.images
    if seeds == 1:
        parts = Spread(n * of_images, 0.0, 0.0, per_image)
        return Estimate(centre, math.sqrt(of_images), 0.0, 1, design.images, parts, design.effect)
    deviations = float(((of_seeds - centre) ** 2).sum())
    residuals = np.count_nonzero(differences) - seeds * squares - n * deviations
    noise = max(0.0, residuals) / n / ((seeds - 1) * (n - design.effect) * seeds)
    noise *= design_of(differences - by_image, clusters, prior=0.0).effect
    between = deviations / ((seeds - 1) * seeds)
    variance = of_images + max(0.0, between - noise)
    spreads = n * max(0.0, of_images - noise), seeds * n * noise, seeds * max(0.0, between - noise)
    share = min(1.0, between / variance)
    return Estimate(
        centre, math.sqrt(variance), share, seeds, design.images, Spread(*spreads, per_image), design.effect
    )


def quantile(level: ArrayLike, share: ArrayLike, seeds: int, groups: float) -> NDArray[np.float64]:
    """Two-sided quantile: Student's for the share of the variance that seeds bring, and for that of the images, which
    stand alone or in so many groups."""
    of_images = t.isf(np.asarray(level) / 2, groups + 1)
    if seeds == 1:
        return of_images
    return np.asarray(share) * (t.isf(np.asarray(level) / 2, seeds - 1) - of_images) + of_images


def minus(correct_a: Bools, correct_b: Bools) -> NDArray[np.int8]:
    """-1, 0 or 1 for each image: which of the two is right alone."""
    return correct_a.astype(np.int8) - correct_b.astype(np.int8)


def paired_difference(correct_a: Bools, correct_b: Bools, clusters: Clusters | None = None) -> PairedDifference:
    """Mean difference of two arms, both (K, N) on the same images and seeds, with a 95 % interval and a p.

    The p is at least that of the sign-flip test over images, which for K = 1 is McNemar's; the interval then holds 0.
    How often equal arms are called different: docs/results.md.
    """
    differences = minus(correct_a, correct_b)
    mean, found = float(differences.mean()), estimate(differences, clusters)
    p = max(found.p_value(), sign_flip(differences, clusters))
    half = found.half_width(LEVEL)
    low, high = max(-1.0, found.centre - half), min(1.0, found.centre + half)
    if p > LEVEL:
        low, high = min(low, 0.0), max(high, 0.0)
    low, high, identical = min(low, mean), max(high, mean), bool((correct_a == correct_b).all())
    groups = len(numbered(clusters, found.images)[1])
    return PairedDifference(mean, low, high, p, found.seeds, found.images, identical, groups)


def sign_flip(differences: NDArray[np.int8], clusters: Clusters | None = None) -> float:
    """Exact two-sided p, differences (K, N): the sum of each group of images over all seeds could as well have had the
    other sign; an image that stands alone is a group.

    For K = 1 and lone images this is the exact McNemar test. Groups of one absolute sum m add
    m * (2 * Binomial(count, 1/2) - count); the sums of all m are added by convolution.
    """
    of_images = differences.sum(axis=0, dtype=np.int64)
    sums = summed(of_images[None], numbered(clusters, len(of_images))[0])[0].astype(np.int64)
    largest = int(np.abs(sums).sum())
    spectrum = np.ones(1, complex)
    for size, count in enumerate(np.bincount(np.abs(sums))):
        if size and count:
            law = np.zeros(largest + 1)
            law[: size * count + 1 : size] = binom.pmf(np.arange(count + 1), count, 0.5)
            spectrum = spectrum * np.fft.rfft(law)  # cyclic, but no sum is larger than `largest`
    law = np.fft.irfft(spectrum, largest + 1) if len(spectrum) > 1 else np.ones(1)
    totals = 2 * np.arange(largest + 1) - largest
    return float(min(1.0, max(0.0, law[np.abs(totals) >= abs(int(sums.sum()))].sum())))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p values, in the given order: the smallest of m times m, the next times m - 1 ... (Holm 1979)."""
    values = np.asarray(p_values, dtype=float)
    order = np.argsort(values)
    steps = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(steps, 1.0)
    return adjusted.tolist()


def calibration_bins(probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> Tensor:
    """The sums of `trainers.engine.metrics.confidence_bins` (3, 15), of probabilities (N, C)."""
    right = probabilities.argmax(axis=1) == labels
    return confidence_bins(torch.from_numpy(probabilities.max(axis=1)), torch.from_numpy(right))


def verdict(
    difference: PairedDifference,
    names: tuple[str, str],
    accuracies: tuple[float, float],
    *,
    scored: str = "test",
    adjusted_p: float | None = None,
    claims: int = 1,
) -> str:
    """One plain sentence on two arms (two on one seed). Accuracies and differences are fractions; `scored` says what
    the images are, such as "test"; `adjusted_p` is Holm's, where the report makes several `claims` of this kind."""
    images = images_text(difference.images, difference.groups, scored)
    seeds = pluralise(difference.seeds, "seed")
    if difference.identical:
        return f"No difference: {names[0]} and {names[1]} are right about the same of {images} ({seeds})."
    sign = 1 if difference.mean >= 0 else -1
    low, high = sorted((sign * difference.low, sign * difference.high))
    points = f"{abs(difference.mean) * 100:.1f} points"
    interval = f"95 % interval {low * 100:.1f} to {high * 100:.1f}"
    if is_claim(difference, adjusted_p):
        winner, loser = names[::sign]
        if difference.seeds == 1:
            return (
                f"This run of {winner} beats this run of {loser} by {points} ({interval}, {seeds}, {images}); "
                "one seed says nothing about training noise."
            )
        return f"{winner} beats {loser} by {points} ({interval}, {seeds}, {images})."
    lower, higher = (
        f"{name} ({share * 100:.1f} %)"
        for name, share in sorted(zip(names, accuracies, strict=True), key=lambda pair: pair[1])
    )
    after = ""
    if difference.p <= LEVEL and adjusted_p is not None:
        after = f" once the {claims} comparisons of this report are judged together (Holm's p = {adjusted_p:.2g})"
    return f"{images} and {seeds} cannot tell {lower} from {higher}{after}: difference {points}, {interval}."


def images_text(images: int, groups: float, scored: str) -> str:
    """Describe the images, such as `300 test images`, or `300 test images in 60 groups`."""
    text = pluralise(images, f"{scored} image")
    return text if groups == images else f"{text} in {pluralise(round(groups), 'group')}"


def is_claim(difference: PairedDifference, adjusted_p: float | None = None) -> bool:
    """Return whether the numbers carry a difference at the 5 % level."""
    return (difference.p if adjusted_p is None else adjusted_p) <= LEVEL and difference.mean != 0
