"""Confidence interval of an accuracy: Wilson's, also where test images belong together in groups.

Copies, shots of one burst and frames of one film are right or wrong together, so that many of them say little more than
one. A mean over N images in G groups has the variance

    V = sum over groups (sum of the residuals in the group)^2 / N^2,

the cluster-robust or sandwich variance (Liang and Zeger 1986; for accuracies and paired comparisons: Hong, Lim and Bae
2026, arXiv 2606.03656). Divided by that of N independent images it is the design effect (Kish 1965), N divided by the
design effect is the effective number of images, and Wilson's interval of that many is the one for surveys (Korn and
Graubard 1998), with Student's quantile of G - 1 degrees of freedom in place of the normal one.

Of few groups V is often too small: where a model is right 19 times in 20, chance may have spared every group, and then
nothing shows that images go together. So to what was seen a quarter of a group that is right throughout is added, and a
quarter of one that is wrong throughout; and there is a most that groups can take, which is where each agrees in itself.
How often the interval holds the truth: docs/compare.md.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEVEL = 0.05
NORMAL = 1.959964
"""The quantile that leaves out LEVEL on both sides."""
PRIOR = 0.25
"""Groups at each end of the scale that are added to those that were seen."""
Clusters = NDArray[np.int64]
"""(N,): images of one group share a number, an image that stands alone has one of its own."""


@dataclass(frozen=True)
class Design:
    """Design effect of groups among N images."""

    images: int
    groups: int
    """An image that stands alone is one."""
    effect: float = 1.0
    """Variance of the mean, in units of that of N independent images."""
    most: float = 1.0
    """The largest that `effect` can be: all images of each group agree."""

    @property
    def alone(self) -> bool:
        return self.groups == self.images

    @property
    def worth(self) -> float:
        """Independent images that are as precise."""
        return self.images / self.effect

    def __str__(self) -> str:
        """Text such as `in 60 groups, worth about 75`; empty where every image stands alone."""
        return "" if self.alone else f"in {self.groups:,} groups, worth about {max(1, round(self.worth)):,}"

    def interval(self, share: float) -> tuple[float, float]:
        """The 95 % interval of a share of these images (Wilson 1927)."""
        return score_interval(share, self.images if self.alone else self.images / self._widening())

    def _widening(self) -> float:
        if self.groups == 1:
            return self.most
        from scipy.stats import t  # takes a second to import, which only groups need

        return min(self.most, self.effect * (float(t.isf(LEVEL / 2, self.groups - 1)) / NORMAL) ** 2)


def score_interval(share: float, images: float) -> tuple[float, float]:
    """The 95 % interval of a share of so many independent images (Wilson 1927)."""
    squared = NORMAL**2 / images
    middle, half = share + squared / 2, (squared * (share * (1 - share) + squared / 4)) ** 0.5
    return max(0.0, (middle - half) / (1 + squared)), min(1.0, (middle + half) / (1 + squared))


def wilson(correct: int, n: int, design: Design | None = None) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927): what n images say about one run; nothing about another seed."""
    if design is not None and not design.alone:
        return design.interval(correct / n)
    from scipy.stats import binomtest

    interval = binomtest(int(correct), int(n)).proportion_ci(1 - LEVEL, method="wilson")
    return float(interval.low), float(interval.high)


def design_of(values: ArrayLike, clusters: Clusters | None, *, prior: float = PRIOR) -> Design:
    """The design of values from 0 to 1, such as which images are right: (N,), or (K, N) of K runs together. With
    `prior` 0 the values may have any scale."""
    values = np.atleast_2d(np.asarray(values, np.float64))
    images = values.shape[1]
    numbers, sizes = numbered(clusters, images)
    if len(sizes) == images:
        return Design(images, images)
    means = values.mean(axis=1, keepdims=True)
    residuals, pairs = values - means, sizes * (sizes - 1)
    size = float((pairs * sizes).sum() / pairs.sum())  # of the group that a pair of images is in
    added = prior * float((means**2 + (1 - means) ** 2).sum())
    together = float((summed(residuals, numbers) ** 2).sum()) + added * size**2
    apart = float((residuals**2).sum()) + added * size
    most = float((sizes**2).sum()) / images
    return Design(images, len(sizes), min(max(together / apart, 1.0), most) if apart else most, most)


def numbered(clusters: Clusters | None, images: int) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """Each image's group (N,), counted from 0, and the groups' sizes (G,); without clusters every image is one."""
    if clusters is None:
        return np.arange(images), np.ones(images, np.int64)
    _, numbers, sizes = np.unique(clusters, return_inverse=True, return_counts=True)
    return (np.arange(images), sizes) if len(sizes) == images else (numbers, sizes)


def summed(values: NDArray, numbers: NDArray[np.intp]) -> NDArray[np.float64]:
    """Sums of values (K, N) over each group, (K, G)."""
    return np.stack([np.bincount(numbers, weights=row) for row in values])
