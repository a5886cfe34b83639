"""Statistics of accuracies: intervals, the effect of groups, the paired difference of two models, Holm's correction.

Shapes: K seeds (runs of one model), N images, G groups of images. `correct` arrays are bool (K, N): whether run k
classifies image i correctly. Shares are fractions.

Images of one group (copies of a picture, shots of a burst, frames of a film) are right or wrong together, so many of
them say little more than one. A mean over N images in G groups has the variance

    V = sum over groups (sum of the residuals in the group)^2 / N^2,

the cluster-robust or sandwich variance (Liang and Zeger 1986; for accuracies and paired comparisons: Hong, Lim and Bae
2026, arXiv 2606.03656). V divided by the variance of N independent images is the design effect (Kish 1965). N divided
by the design effect is the effective number of images. Wilson's interval for that number is used for surveys (Korn and
Graubard 1998), with Student's quantile of G - 1 degrees of freedom in place of the normal quantile.

With few groups V is often too small: if a model is right 19 times in 20, all groups may agree by chance, and the
correlation within groups does not show. So a quarter of a group of correct images and a quarter of a group of wrong
ones are added to the data, and the effect is at most that of groups whose images all agree. How often the interval
contains the true accuracy: docs/compare.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

# scipy.stats takes a second to import, and `train` rarely needs it, so the functions below import it.

LEVEL = 0.05
NORMAL = 1.959963984540054
"""Two-sided quantile of the normal distribution at LEVEL."""
QUANTILE_OF_POWER = 0.8416212335729143
"""Quantile of the normal distribution at a power of 80 %."""
PRIOR = 0.25
"""Groups added at each end of the scale."""
Bools = NDArray[np.bool_]
Clusters = NDArray[np.int64]
"""(N,): the number of each image's group; a single image has a number of its own."""


def wilson(share: float, images: float) -> tuple[float, float]:
    """Return the 95 % interval of a share of independent images (Wilson 1927).

    Another seed may lie outside."""
    squared = NORMAL**2 / images
    middle, half = share + squared / 2, (squared * (share * (1 - share) + squared / 4)) ** 0.5
    return max(0.0, (middle - half) / (1 + squared)), min(1.0, (middle + half) / (1 + squared))


@dataclass(frozen=True)
class Design:
    """Design effect of G groups among N images."""

    images: int
    groups: int
    """A single image counts as a group."""
    effect: float = 1.0
    """Variance of the mean divided by the variance of N independent images."""
    most: float = 1.0
    """Largest possible effect: all images of each group agree."""

    @property
    def alone(self) -> bool:
        return self.groups == self.images

    @property
    def effective(self) -> float:
        """Return the effective number of images."""
        return self.images / self.effect

    def __str__(self) -> str:
        """Return text such as `in 60 groups, effectively about 75`.

        It is empty if every image is a group of its own."""
        return "" if self.alone else f"in {self.groups:,} groups, effectively about {max(1, round(self.effective)):,}"

    def interval(self, share: float) -> tuple[float, float]:
        """Return the 95 % interval of a share of these images."""
        return wilson(share, self.images if self.alone else self.images / self._widening())

    def _widening(self) -> float:
        if self.groups == 1:
            return self.most
        from scipy.stats import t

        return min(self.most, self.effect * (float(t.isf(LEVEL / 2, self.groups - 1)) / NORMAL) ** 2)


def design_of(values: ArrayLike, clusters: Clusters | None, *, prior: float = PRIOR) -> Design:
    """Compute the design effect for values (N,), or (K, N) of K runs.

    They lie between 0 and 1; on any scale if `prior` is 0."""
    values = np.atleast_2d(np.asarray(values, np.float64))
    images = values.shape[1]
    numbers, sizes = numbered(clusters, images)
    if len(sizes) == images:
        return Design(images, images)
    means = values.mean(axis=1, keepdims=True)
    residuals, pairs = values - means, sizes * (sizes - 1)
    size = float((pairs * sizes).sum() / pairs.sum())  # of the group of a random pair of images
    added = prior * float((means**2 + (1 - means) ** 2).sum())
    together = float((summed(residuals, numbers) ** 2).sum()) + added * size**2
    apart = float((residuals**2).sum()) + added * size
    most = float((sizes**2).sum()) / images
    return Design(images, len(sizes), min(max(together / apart, 1.0), most) if apart else most, most)


def numbered(clusters: Clusters | None, images: int) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """Return each image's group (N,), counted from 0, and the sizes (G,).

    Without clusters there are N groups of one."""
    if clusters is None:
        return np.arange(images), np.ones(images, np.int64)
    _, numbers, sizes = np.unique(clusters, return_inverse=True, return_counts=True)
    return (np.arange(images), sizes) if len(sizes) == images else (numbers, sizes)


def summed(values: NDArray, numbers: NDArray[np.intp]) -> NDArray[np.float64]:
    """Sum values (K, N) over each group: (K, G)."""
    return np.stack([np.bincount(numbers, weights=row) for row in values])


@dataclass(frozen=True)
class Spread:
    """Variances of the difference between two runs.

    They are those of an image over all seeds, of an image in one run, of a seed."""

    images: float
    runs: float
    seeds: float
    groups: float = 1.0
    """Independent groups per image; 1 if every image is a group of its own."""

    def error(self, seeds: int, images: int) -> float:
        """Return the standard error of the mean difference over this many seeds and images."""
        return math.sqrt((self.images + self.runs / seeds) / images + self.seeds / seeds)

    def share(self, seeds: int, images: int) -> float:
        """Return the part of the squared error that shows as spread between seeds."""
        return min(1.0, (self.runs / images + self.seeds) / seeds / self.error(seeds, images) ** 2)

    def half_width(self, seeds: int, images: int, *, claims: int = 1) -> float:
        """Return the interval's half-width at Bonferroni's share of the level.

        Holm's is never below."""
        level = float(quantile(LEVEL / claims, self.share(seeds, images), seeds, self.groups * images))
        return level * self.error(seeds, images)

    def smallest_difference(self, seeds: int, images: int, *, claims: int = 1) -> float:
        """Return the true difference that is detected with a power of 80 %."""
        return self.half_width(seeds, images, claims=claims) + QUANTILE_OF_POWER * self.error(seeds, images)


@dataclass(frozen=True)
class Estimate:
    """A mean difference, its standard error, and the sources of that error."""

    centre: float
    error: float
    share: float
    """Part of the squared error that comes from the spread between seeds."""
    seeds: int
    images: int
    spread: Spread

    @property
    def groups(self) -> float:
        return self.images * self.spread.groups

    def half_width(self, level: float) -> float:
        """Return the half-width of the two-sided interval at this level."""
        return self.error * float(quantile(level, self.share, self.seeds, self.groups))

    def p_value(self) -> float:
        """Return the level at which the interval ends at 0, by interpolation.

        The grid is a fine logarithmic one."""
        grid = np.append(np.logspace(-12, 0, 2401), 1.0)
        quantiles = quantile(grid, self.share, self.seeds, self.groups)
        return float(np.interp(-abs(self.centre) / self.error, -quantiles, grid))


@dataclass(frozen=True)
class PairedDifference:
    """Accuracy of the first model minus accuracy of the second, with its 95 % interval."""

    mean: float
    low: float
    high: float
    p: float
    identical: bool
    """Both models are right about the same images at every seed."""
    found: Estimate


def estimate(differences: NDArray[np.int8], clusters: Clusters | None = None) -> Estimate:
    """Estimate the mean of differences (K, N) of -1, 0, 1 between two models.

    They share seeds and images. The variance of the mean is that of a bootstrap over images and, if K > 1, over seeds,
    in closed form. Plain resampling is wrong in two ways. Drawing whole rows and columns counts the variance of a
    single seed and image three times (Owen 2007, "The pigeonhole bootstrap"), so the spread between seeds counts only
    as far as it exceeds that of the images. And few seeds underestimate their spread: by (K - 1) / K on average, and 2
    or 3 may agree by chance (Efron and Tibshirani 1993, chapters 6 and 12). So the variance is divided by K - 1, and
    the quantiles are Student's, with K - 1 degrees of freedom for the seeds' share of the variance and N - 1 for the
    rest (Cochran and Cox 1950). Two more images, one that only the first model gets right and one for the second, keep
    unanimous results from looking certain (Bonett and Price 2012).

    If images come in G groups, groups are drawn in place of images: both variances of images, with and without the
    runs, are multiplied by their design effects, the two more images are two effective ones, and Student's degrees of
    freedom count groups.
    """
    by_image = differences.mean(axis=0)
    design = design_of(by_image, clusters, prior=0.0)
    seeds, n = len(differences), differences.shape[1] + 2 * design.effect
    of_seeds = differences.sum(axis=1, dtype=np.int64) / n
    centre = float(of_seeds.mean())
    squares = float((by_image**2).sum())
    of_images = ((squares + 2 * design.effect) / n - centre**2) / n * design.effect
    per_image = design.groups / design.images
    if seeds == 1:
        return Estimate(centre, math.sqrt(of_images), 0.0, 1, design.images, Spread(n * of_images, 0, 0, per_image))
    deviations = float(((of_seeds - centre) ** 2).sum())
    residuals = np.count_nonzero(differences) - seeds * squares - n * deviations
    noise = max(0.0, residuals) / n / ((seeds - 1) * (n - design.effect) * seeds)
    noise *= design_of(differences - by_image, clusters, prior=0.0).effect
    between = deviations / ((seeds - 1) * seeds)
    variance = of_images + max(0.0, between - noise)
    spreads = n * max(0.0, of_images - noise), seeds * n * noise, seeds * max(0.0, between - noise)
    share = min(1.0, between / variance)
    return Estimate(centre, math.sqrt(variance), share, seeds, design.images, Spread(*spreads, per_image))


def quantile(level: ArrayLike, share: ArrayLike, seeds: int, groups: float) -> NDArray[np.float64]:
    """Return the two-sided quantile: Student's of seeds and of groups.

    They are weighted by the seeds' share of the variance."""
    from scipy.stats import t

    of_images = t.isf(np.asarray(level) / 2, groups + 1)
    if seeds == 1:
        return of_images
    return np.asarray(share) * (t.isf(np.asarray(level) / 2, seeds - 1) - of_images) + of_images


def paired_difference(correct_a: Bools, correct_b: Bools, clusters: Clusters | None = None) -> PairedDifference:
    """Compare two models (K, N) with a 95 % interval and a p value.

    They share images and seeds. The p value is at least that of the sign-flip test over images, which for K = 1 is
    McNemar's; the interval then contains 0. How often equal models are called different: docs/results.md.
    """
    differences = correct_a.astype(np.int8) - correct_b.astype(np.int8)
    mean, found = float(differences.mean()), estimate(differences, clusters)
    p = max(found.p_value(), sign_flip(differences, clusters))
    half = found.half_width(LEVEL)
    low, high = max(-1.0, found.centre - half), min(1.0, found.centre + half)
    if p > LEVEL:
        low, high = min(low, 0.0), max(high, 0.0)
    low, high, identical = min(low, mean), max(high, mean), bool((correct_a == correct_b).all())
    return PairedDifference(mean, low, high, p, identical, found)


def sign_flip(differences: NDArray[np.int8], clusters: Clusters | None = None) -> float:
    """Compute the exact two-sided p value of differences (K, N) by the sign-flip test.

    The sum of each group may have either sign. A single image is a group; for K = 1 without groups this is the exact
    McNemar test. Groups of one absolute sum m add m * (2 * Binomial(count, 1/2) - count); the sums of all m are added
    by convolution.
    """
    from scipy.stats import binom

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


def is_claim(difference: PairedDifference, adjusted_p: float | None = None) -> bool:
    """Return whether the difference is significant at 5 %, by Holm's p value if given."""
    return (difference.p if adjusted_p is None else adjusted_p) <= LEVEL and difference.mean != 0


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p values, in the given order (Holm 1979).

    The smallest of m is taken times m, the next times m - 1 ..."""
    values = np.asarray(p_values, dtype=float)
    order = np.argsort(values)
    steps = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(steps, 1.0)
    return adjusted.tolist()
