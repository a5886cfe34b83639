"""Choice of the pictures to label next: centres first, then uncertain and diverse ones (Gupte et al. 2024, arXiv
2401.14555).

1. While labels are few, pictures that stand for many: clusters of all pictures, those without a label and the largest
   first (as in TypiClust, Hacohen, Dekel and Weinshall 2022), and of each the picture nearest to its centre.
2. From `SWITCH` labels a class on, of the pictures that a model of the labels is least sure about those that differ:
   clusters weighted by how unsure it is, and of each the picture nearest to its centre (Zhdanov 2019).

A picture that has a labelled or skipped copy is never chosen, and of copies one at most.
"""

import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from inference.labels.out_of_fold import fit_logistic

SWITCH = 2
"""Labels a class, on average, from which on uncertain pictures are chosen."""
AMONG = 10
"""Multiple of the pictures wanted that are the least certain ones, among which diverse ones are chosen."""
MOST_CLUSTERS = 500
PENALTY = 30.0
"""scikit-learn's C of the logistic regression on the labels so far, for features of length 1."""
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


class Chosen(NamedTuple):
    """One picture to label next."""

    row: int
    uncertain: bool
    """Chosen because the model is unsure; else as typical of many."""
    score: float
    """1 less the lead of the likeliest class over the next; of a typical one 1 / (1 + its distance to the centre)."""


def free_rows(groups: Ints, usable: NDArray[np.bool_], taken: Ints) -> Ints:
    """Rows to choose from: usable ones, of copies the first, none with a copy among those that are taken."""
    rows = np.flatnonzero(usable & ~np.isin(groups, groups[taken]))
    _, first = np.unique(groups[rows], return_index=True)
    return rows[np.sort(first)]


def few_labels(labels: Ints) -> bool:
    """Return whether it is too early to ask a model: under `SWITCH` labels a class on average, or a single class."""
    classes = len(np.unique(labels))
    return classes < 2 or len(labels) < SWITCH * classes


def probabilities_of(features: Floats, rows: Ints, labels: Ints, classes: int) -> NDArray[np.float64]:
    """(N, C): what logistic regression on the labelled `rows` says of every picture."""
    model = fit_logistic(features[rows], labels, PENALTY)
    values = np.zeros((len(features), classes))
    values[:, model.classes_] = model.predict_proba(features)
    return values


def lead(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N,): by how much the likeliest class leads the next one; 1 where there is one class alone."""
    if probabilities.shape[1] < 2:
        return np.ones(len(probabilities))
    top = np.partition(probabilities, -2, axis=1)
    return top[:, -1] - top[:, -2]


def choose(
    features: Floats,
    free: Ints,
    labelled: Ints,
    count: int,
    *,
    probabilities: NDArray[np.float64] | None = None,
    seed: int = 0,
) -> list[Chosen]:
    """Up to `count` of the `free` rows of features (N, D), which have length 1: by `probabilities` (N, C) uncertain
    ones, the least certain first; without them typical ones, those of the largest clusters first."""
    count = min(count, len(free))
    if probabilities is None:
        return typical(features, free, labelled, count, seed=seed)
    return uncertain(features, free, probabilities, count, seed=seed)


def typical(features: Floats, free: Ints, labelled: Ints, count: int, *, seed: int) -> list[Chosen]:
    """The picture nearest to the centre of each of `count` clusters: of as many as there are labels and picks together,
    those with the fewest labels, and of these the largest first."""
    rows = np.concatenate([free, labelled])
    clusters = min(count + len(labelled), max(MOST_CLUSTERS, count), len(rows))
    means = clustered(features[rows], clusters, seed=seed)
    size = np.bincount(means.labels_[: len(free)], minlength=clusters)
    covered = np.bincount(means.labels_[len(free) :], minlength=clusters)
    order = np.lexsort((-size, covered))[:count]
    distances = means.transform(features[free])[:, order]
    return [Chosen(int(free[at]), False, float(1 / (1 + distances[at, n]))) for n, at in enumerate(nearest(distances))]


def nearest(distances: NDArray[np.floating]) -> list[int]:
    """Take for each column of (N, K), in turn, the nearest row that is not taken yet."""
    taken = np.zeros(len(distances), bool)
    rows = []
    for column in distances.T:
        rows.append(int(np.where(taken, np.inf, column).argmin()))
        taken[rows[-1]] = True
    return rows


def uncertain(
    features: Floats, free: Ints, probabilities: NDArray[np.float64], count: int, *, seed: int
) -> list[Chosen]:
    """Of the least certain pictures those nearest to the centres of clusters weighted by how unsure the model is."""
    doubt = 1 - lead(probabilities[free])
    most = np.argsort(-doubt, kind="stable")[: AMONG * count]
    rows, weights = free[most], doubt[most] + 1e-6
    distances = clustered(features[rows], count, weights=weights, seed=seed).transform(features[rows])
    return [Chosen(int(rows[place]), True, float(doubt[most[place]])) for place in sorted(nearest(distances))]


def clustered(values: Floats, clusters: int, *, weights: NDArray[np.float64] | None = None, seed: int = 0) -> KMeans:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different pictures than clusters
        return KMeans(clusters, n_init=1, max_iter=30, tol=1e-3, random_state=seed).fit(values, sample_weight=weights)
