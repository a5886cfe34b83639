"""Worth of pretraining in labels: how many labels from scratch reach its accuracy, and where two arms meet.

Over the logarithm of the labels an arm's accuracy is a line between two rungs, give or take what a curve deviates from
it: half the second derivative times the distances to both rungs, the error of linear interpolation. How large that
derivative is, the ladder's own rungs tell. Nothing is said beyond the ladder.
"""

import math
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from comparison.analysis.runs import Arm, Condition
from comparison.analysis.statistics import Bools
from trainers.engine.intervals import Clusters, numbered, summed
from trainers.reporting.console import duration

Floats = NDArray[np.float64]
DRAWS = 2000
TAILS = (5, 50, 95)
"""Percentiles: the ends of a 90 % interval, and the middle."""
POINTS = 200
"""Numbers of labels at which curves are looked at, evenly over the logarithm."""
FEWEST = 3
"""Rungs without which nothing is known of a curve's bend."""


def sentences(conditions: Sequence[Condition]) -> list[str]:
    """Say what each later arm's labels are worth to the first arm, and where the two meet; empty below `FEWEST`
    rungs."""
    rungs = sorted(conditions, key=label_count)
    if len(rungs) < FEWEST:
        return []
    labels = np.array([label_count(rung) for rung in rungs])
    first, *others = zip(*(rung.arms for rung in rungs), strict=True)
    return [sentence(labels, first, other, rungs[0].clusters) for other in others]


def sentence(labels: Floats, first: Sequence[Arm], second: Sequence[Arm], clusters: Clusters) -> str:
    """Compares two arms on a ladder of labels per class."""
    both = [[arm.correct for arm in rungs] for rungs in (first, second)]
    matching, (low, middle, high) = matching_and_meeting(labels, both[0], both[1], clusters)
    worth = [as_text(found, labels) for found in matching]
    alike = [[*group] for _, group in groupby(zip(labels, worth, strict=True), key=itemgetter(1))]
    equal = "; ".join(
        f"{group[0][0]:.0f}{f' to {group[-1][0]:.0f}' * (len(group) > 1)} worth {group[0][1]}" for group in alike
    )
    ends = f"they meet at {as_text((low, middle, high), labels)} labels"
    if np.isinf(middle):
        ends = f"they do not meet up to {labels[-1]:.0f} labels"
    elif middle:
        times = [duration(float(np.interp(middle, labels, median_seconds(arm)))) for arm in (first, second)]
        ends += f", where a run takes {times[0]} and {times[1]}"
    return f"labels per class of {second[0].name}, in those of {first[0].name} (90 % interval): {equal}; {ends}"


def median_seconds(rungs: Sequence[Arm]) -> list[float]:
    return [float(np.median([run.summary["seconds"] for run in arm.runs])) for arm in rungs]


def as_text(found: Sequence[float] | Floats, labels: Floats) -> str:
    """Low end, middle and high end of a number of labels; beyond the ladder nothing is said."""
    names = {0.0: f"{labels[0]:.0f} or fewer", math.inf: f"more than {labels[-1]:.0f}"}
    low, middle, high = (names.get(value) or f"{value:.0f}" for value in found)
    if low == high:
        return middle
    return f"{low} to {high}" if found[0] == 0 and np.isinf(found[2]) else f"{middle} ({low} to {high})"


def label_count(condition: Condition) -> float:
    """Training images per class, on average: a run counts those that it has seen."""
    run = condition.arms[0].runs[0]
    return condition.labels_per_class or run.summary["images_seen"] / run.summary["epochs"] / len(run.class_names)


def drawn_accuracies(
    correct: Sequence[Bools], generator: np.random.Generator, clusters: Clusters | None = None
) -> Floats:
    """Draws (D, R) of the accuracies of R rungs, each (K, N) on the same images: as they spread with the images, or
    groups of images, which all rungs share, and with the seeds, by Student's law with the spread of a rung and its
    neighbours."""
    by_image = np.stack([rung.mean(axis=0) for rung in correct])
    means, images = by_image.mean(axis=1), by_image.shape[1]
    numbers, sizes = numbered(clusters, images)
    # Sums over a group, less the mean of all its images but one: their deviations are the group's residuals.
    sums = summed(by_image, numbers) - (sizes - 1) * means[:, None]
    draws = generator.multivariate_normal(means, np.cov(sums) / (images * (images / len(sizes))), DRAWS)
    seeds = min(len(rung) for rung in correct)
    if seeds > 1:
        variances = np.array([rung.mean(axis=1).var(ddof=1) / len(rung) for rung in correct])
        pooled = np.array([variances[max(0, rung - 1) : rung + 2].mean() for rung in range(len(correct))])
        draws += np.sqrt(pooled) * generator.standard_t(3 * (seeds - 1), draws.shape)
    return draws


def interpolated(labels: Floats, draws: Floats, at: Floats, generator: np.random.Generator) -> Floats:
    """The drawn curves (D, G) at so many labels, of rungs (D, R). Between two rungs the second derivative is the mean
    of those at both, give or take half of what it is on this ladder."""
    x, place = np.log(labels), np.log(at)
    left = np.clip(np.searchsorted(x, place, side="right") - 1, 0, len(x) - 2)
    width, share = x[left + 1] - x[left], (place - x[left]) / (x[left + 1] - x[left])
    inner = 2 * np.diff(np.diff(draws.mean(axis=0)) / np.diff(x)) / (x[2:] - x[:-2])  # (R - 2,)
    around = np.pad(inner, 1, mode="edge")
    second = (around[:-1] + around[1:]) / 2
    second = second + np.sqrt((inner**2).mean()) / 2 * generator.standard_normal((len(draws), len(second)))
    lines = draws[:, left] + share * (draws[:, left + 1] - draws[:, left])
    return lines - second[:, left] / 2 * share * (1 - share) * width**2


def matching_and_meeting(
    labels: Floats, first: Sequence[Bools], second: Sequence[Bools], clusters: Clusters | None = None
) -> tuple[list[Floats], Floats]:
    """Compute for each rung (K, N) of `second` percentiles (3,) of the label count at which `first` reaches the same
    accuracy; and those of the count from which on both are equally accurate. inf: all labels do not suffice; 0: the
    fewest do."""
    generator, at = np.random.default_rng(0), np.geomspace(labels[0], labels[-1], POINTS)
    rungs = np.split(drawn_accuracies([*first, *second], generator, clusters), 2, axis=1)
    ours, theirs = (interpolated(labels, draws, at, generator) for draws in rungs)  # (D, G)
    return [percentiles(ours >= level[:, None], at) for level in rungs[1].T], percentiles(ours >= theirs, at)


def percentiles(reached: NDArray[np.bool_], at: Floats) -> Floats:
    """Compute percentiles of the labels at which each draw (D, G) first arrives."""
    first = np.where(reached.any(axis=1), at[reached.argmax(axis=1)], np.inf)
    first[reached[:, 0]] = 0.0
    return np.percentile(first, TAILS, method="nearest")
