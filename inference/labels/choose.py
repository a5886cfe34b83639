"""Choice of the pictures to label next: centres first, then uncertain and diverse ones (Gupte et al. 2024, arXiv
2401.14555).

1. While labels are few, pictures that stand for many: clusters of all pictures, those without a label and the largest
   first (as in TypiClust, Hacohen, Dekel and Weinshall 2022), and of each the picture nearest to its centre.
2. From `SWITCH` labels a class on, of the pictures that a model of the labels is least sure about those that differ:
   clusters weighted by how unsure it is, and of each the picture nearest to its centre (Zhdanov 2019).

A picture that has a labelled or skipped copy is never chosen, and of copies one at most.
"""

import warnings

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from inference.labels.label_issues import fit_logistic

SWITCH = 2
"""Labels a class, on average, from which on uncertain pictures are chosen."""
AMONG = 10
"""Multiple of the pictures wanted that are the least certain ones, among which diverse ones are chosen."""
MOST_CLUSTERS = 500
PENALTY = 30.0
"""scikit-learn's C of the logistic regression on the labels so far, for features of length 1."""
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Chosen = list[tuple[int, float]]
"""Up to `count` rows of features (N, D), which have length 1, each with its score."""


def free_rows(groups: Ints, usable: NDArray[np.bool_], taken: Ints) -> Ints:
    """Return the rows to choose from: usable ones, of copies the first, none with a copy among those that are taken."""
    rows = np.flatnonzero(usable & ~np.isin(groups, groups[taken]))
    _, first = np.unique(groups[rows], return_index=True)
    return rows[np.sort(first)]


def probabilities_of(features: Floats, rows: Ints, labels: Ints) -> NDArray[np.float64] | None:
    """Ask logistic regression on the labelled `rows` about every picture: (N, C), of labels 0 to C - 1.

    None where labels are too few: under `SWITCH` a class on average, or of a single class."""
    classes = len(np.unique(labels))
    if classes < 2 or len(labels) < SWITCH * classes:
        return None
    return fit_logistic(features[rows], labels, PENALTY).predict_proba(features)


def typical(features: Floats, free: Ints, labelled: Ints, count: int) -> Chosen:
    """Take the picture nearest to the centre of each of `count` clusters: of as many as there are labels and picks
    together, those with the fewest labels, and of these the largest first. Score: 1 / (1 + distance)."""
    count, rows = min(count, len(free)), np.concatenate([free, labelled])
    clusters = min(count + len(labelled), max(MOST_CLUSTERS, count), len(rows))
    means = clustered(features[rows], clusters)
    size = np.bincount(means.labels_[: len(free)], minlength=clusters)
    covered = np.bincount(means.labels_[len(free) :], minlength=clusters)
    order = np.lexsort((-size, covered))[:count]
    distances = means.transform(features[free])[:, order]
    return [(int(free[at]), float(1 / (1 + distances[at, n]))) for n, at in enumerate(one_each(distances))]


def uncertain(features: Floats, free: Ints, probabilities: NDArray[np.float64], count: int) -> Chosen:
    """Take the nearest to the centres of clusters of the least certain pictures, weighted by how unsure the model is,
    the least certain first. Score: 1 less the lead of the likeliest class over the next."""
    top = np.partition(probabilities[free], -2, axis=1)
    doubt = 1 - (top[:, -1] - top[:, -2])
    count = min(count, len(free))
    most = np.argsort(-doubt, kind="stable")[: AMONG * count]
    rows, weights = free[most], doubt[most] + 1e-6
    distances = clustered(features[rows], count, weights).transform(features[rows])
    return [(int(rows[place]), float(doubt[most[place]])) for place in sorted(one_each(distances))]


def one_each(distances: NDArray[np.floating]) -> list[int]:
    """Take for each column of (N, K), in turn, the nearest row that is not taken yet."""
    taken = np.zeros(len(distances), bool)
    rows = []
    for column in distances.T:
        rows.append(int(np.where(taken, np.inf, column).argmin()))
        taken[rows[-1]] = True
    return rows


def clustered(values: Floats, clusters: int, weights: NDArray[np.float64] | None = None) -> KMeans:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different pictures than clusters
        return KMeans(clusters, n_init=1, max_iter=30, tol=1e-3, random_state=0).fit(values, sample_weight=weights)
