"""Power of a comparison: what difference its images and seeds detect, and how many would detect a smaller one."""

from scipy.stats import norm

from common.text import pluralise
from comparison.verdict import images_text
from trainers.statistics import LEVEL, Clusters, Estimate, Spread, numbered, quantile

POWER = 0.8
ASSUMED = Spread(images=0.05, runs=0.05, seeds=0.01**2)
"""Assumptions before there is a run: two runs disagree about a tenth of the images, and seeds spread by a point."""


def assumed(clusters: Clusters) -> Spread:
    """`ASSUMED` of images in these groups (N,), where those of a group are right or wrong together."""
    sizes = numbered(clusters, len(clusters))[1]
    most, groups = float((sizes**2).sum()) / len(clusters), len(sizes) / len(clusters)
    return Spread(most * ASSUMED.images, most * ASSUMED.runs, ASSUMED.seeds, groups)


def seeds_or_images_needed(found: Estimate, *, claims: int = 1) -> str:
    """Number of seeds, or images, that would decide a difference like this one, as one of `claims` that share the
    level."""

    def decides(seeds: int, images: int) -> bool:
        return abs(found.centre) > half_width(found.spread, seeds, images, claims=claims)

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
