"""Power of a comparison, and sequential testing: seeds that are added until a verdict is certain.

Looking at the results after each seed and stopping when they please raises false alarms, so each look spends a part of
the 5 % (Lan and DeMets 1983): as much as its share of the seeds. Over looks a mean difference is a random walk of which
the images' part stands still: the larger that part, the more the looks agree, and the less has to be taken off each
(Jennison and Turnbull 2000, chapters 7 and 8). The bounds are levels of the Student quantiles of `estimate`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import bisect
from scipy.stats import chi2, norm

from comparison.analysis.runs import Certainty
from comparison.analysis.statistics import (
    LEVEL,
    Bools,
    Estimate,
    Spread,
    estimate,
    images_text,
    minus,
    quantile,
    sign_flip,
)
from datasets.text import pluralise
from trainers.engine.intervals import Clusters, numbered

Floats = NDArray[np.float64]
PATHS = 100_000
FIRST_LOOK = 3
"""Seeds: two may lie together by chance, and then a look at them raises three times the alarms that it may."""
POWER = 0.8
ASSUMED = Spread(images=0.05, runs=0.05, seeds=0.01**2)
"""Assumptions before there is a run: two runs disagree about a tenth of the images, and seeds spread by a point."""


def assumed(clusters: Clusters) -> Spread:
    """`ASSUMED` of images in these groups (N,), where those of a group are right or wrong together."""
    sizes = numbered(clusters, len(clusters))[1]
    most, groups = float((sizes**2).sum()) / len(clusters), len(sizes) / len(clusters)
    return Spread(most * ASSUMED.images, most * ASSUMED.runs, ASSUMED.seeds, groups)


@dataclass(frozen=True)
class Decision:
    """State of knowledge after a look at the first seeds of two arms."""

    verdict: str
    """better, same or undecided."""
    estimate: Estimate
    low: float
    high: float
    """The ends of an interval that holds at every look."""


@lru_cache
def levels(max_seeds: int, alpha: float, still: float = 0.0) -> dict[int, float]:
    """The two-sided level of each look, by its number of seeds, so that all looks together are wrong in `alpha`: found
    on simulated differences of many images, the spread of whose seeds has to be estimated, too.

    `still`: the variance that the images bring, in units of what one seed brings.
    """
    seeds, generator = np.arange(1, max_seeds + 1), np.random.default_rng(0)
    values = generator.standard_normal((PATHS, max_seeds))
    means = values.cumsum(axis=1) / seeds
    squares = (values**2).cumsum(axis=1) - seeds * means**2
    means += math.sqrt(still) * generator.standard_normal((PATHS, 1))
    running, of_look = np.arange(PATHS), {}
    for number in range(FIRST_LOOK, max_seeds + 1):
        of_seeds = squares[running, number - 1] / (number * (number - 1))
        ratios = np.abs(means[running, number - 1]) / np.sqrt(of_seeds + still)
        allowed = round(PATHS * alpha * number / max_seeds) - (PATHS - len(running))
        of_look[number] = level_passed_by(allowed, ratios, of_seeds / (of_seeds + still), number)
        running = running[ratios <= quantile(of_look[number], of_seeds / (of_seeds + still), number, PATHS)]
    return of_look


def level_passed_by(allowed: int, ratios: Floats, shares: Floats, seeds: int) -> float:
    """The level at which the quantiles of these `shares` are passed by so many of these `ratios`."""

    def too_many(log_level: float) -> float:
        return float((ratios > quantile(math.exp(log_level), shares, seeds, PATHS)).sum()) - allowed - 0.5

    return math.exp(bisect(too_many, -30, 0, xtol=1e-4))


def image_variance_ratio(found: Estimate) -> float:
    """`still` of `levels`, rounded down to a power of two. Few seeds may lie together by chance: what one brings is
    taken as the most that it may be, 9 times in 10."""
    of_one = found.spread.seeds + found.spread.runs / found.images
    largest = max(of_one * (found.seeds - 1) / float(chi2.ppf(0.1, found.seeds - 1)), 1e-12)
    ratio = min(found.spread.images / found.images / largest, 16.0)
    return 2.0 ** math.floor(math.log2(ratio)) if ratio > 2**-5 else 0.0


def interim_analysis(
    differences: NDArray[np.int8], certainty: Certainty, clusters: Clusters | None = None, *, claims: int = 1
) -> Decision:
    """Judge differences (K, N) between two arms, one of `claims` that share the level: at most 5 % of equal arms are
    called better at any look, and at most 5 % of those that differ by the margin the same (two one-sided tests)."""
    found = estimate(differences, clusters)
    still = image_variance_ratio(found)
    to_differ, to_equal = (
        levels(certainty.max_seeds, alpha / claims, still)[found.seeds] for alpha in (LEVEL, 2 * LEVEL)
    )
    half, verdict = found.half_width(to_differ), "undecided"
    if abs(found.centre) > half and sign_flip(differences, clusters) <= to_differ:
        verdict = "better"
    elif abs(found.centre) + found.half_width(to_equal) < certainty.margin:
        verdict = "same"
    return Decision(verdict, found, found.centre - half, found.centre + half)


def decide(
    first: Bools, second: Bools, certainty: Certainty, clusters: Clusters | None = None, *, claims: int = 1
) -> Decision:
    """The second of two arms (K, N) beside the first: look after each seed, up to the one that makes it certain."""
    differences = minus(second, first)
    seeds = range(FIRST_LOOK, min(len(differences), certainty.max_seeds) + 1)
    for number in seeds:
        decision = interim_analysis(differences[:number], certainty, clusters, claims=claims)
        if decision.verdict != "undecided":
            break
    return decision


def sentence_of(
    decision: Decision, names: tuple[str, str], certainty: Certainty, *, scored: str, claims: int = 1
) -> str:
    """One plain sentence on the second of two arms beside the first, as one of `claims` of a report."""
    found, margin = decision.estimate, f"{100 * certainty.margin:g} point{'s' * (certainty.margin != 0.01)}"
    sign = -1 if found.centre < 0 else 1
    low, high = sorted((100 * sign * decision.low, 100 * sign * decision.high))
    best, other = names[::-sign]
    by = f"{100 * abs(found.mean):.1f} points ({low:.1f} to {high:.1f} at every look)"
    data = f"{found.seeds} of at most {certainty.max_seeds} seeds, {images_text(found.images, found.groups, scored)}"
    if decision.verdict == "better":
        return f"{best} is better than {other} by {by}; certain after {data}."
    if decision.verdict == "same":
        return f"{best} and {other} are the same within {margin}: they differ by {by}; certain after {data}."
    needed = seeds_or_images_needed(found, certainty.margin, claims=claims)
    return f"Undecided between {best} and {other}, which differ by {by} after {data}; {needed}."


def seeds_or_images_needed(found: Estimate, margin: float = 0.0, *, claims: int = 1) -> str:
    """Number of seeds, or images, that would decide a difference like this one, as one of `claims` that share the
    level."""

    def decides(seeds: int, images: int) -> bool:
        half = half_width(found.spread, seeds, images, claims=claims)
        return max(abs(found.centre), margin - abs(found.centre)) > half

    sizes = (int(found.images * 1.25**n) for n in range(100))
    seeds = next((k for k in range(found.seeds, 101) if decides(k, found.images)), None)
    images = next((size for size in sizes if size <= 1_000_000 and decides(found.seeds, size)), None)
    rounded = f"{float(f'{images or 0:.2g}'):,.0f} images{' in such groups' * (found.groups != found.images)}"
    ways = [f"{seeds} seeds"] * (seeds is not None) + [rounded] * (images is not None)
    return f"it would take about {' or '.join(ways)}" if ways else "100 seeds or a million images would not do either"


def half_width(spread: Spread, seeds: int, images: int, *, claims: int = 1) -> float:
    """Half-width of the interval at this pair's share of the level (Bonferroni's, which Holm's is never below)."""
    level = float(quantile(LEVEL / claims, spread.share(seeds, images), seeds, spread.groups * images))
    return level * spread.error(seeds, images)


def smallest_difference(spread: Spread, seeds: int, images: int, *, claims: int = 1) -> float:
    """The true difference that is told in 8 of 10 cases."""
    return half_width(spread, seeds, images, claims=claims) + float(norm.ppf(POWER)) * spread.error(seeds, images)


def power_line(images: int, seeds: int, spread: Spread = ASSUMED, *, scored: str = "test", claims: int = 1) -> str:
    """Say what difference is detected with a power of 80 %, if there is one."""
    what = images_text(images, spread.groups * images, scored)
    what = f"{what} and {pluralise(seeds, 'seed')}"
    points = 100 * smallest_difference(spread, seeds, images, claims=claims)
    together = f", as one of {claims} comparisons" * (claims > 1)
    if points > 100:
        return f"{what} are too few to detect any difference 80 % of the time{together}"
    return f"{what} detect a difference of {points:.1f} points or more 80 % of the time{together}"


def any_undecided(
    arms: Sequence[Bools],
    certainty: Certainty,
    clusters: Clusters | None = None,
    *,
    conditions: int = 1,
) -> bool:
    """Return whether some pair of arms, each (K, N), is undecided under one of so many conditions that share the
    level."""
    pairs = [*combinations(arms, 2)]
    claims = len(pairs) * conditions
    return any(decide(*pair, certainty, clusters, claims=claims).verdict == "undecided" for pair in pairs)
