"""Find labels that models doubt which have not learnt from them.

By confident learning (Northcutt et al. 2021) of cleanlab; also copies under two labels, and images that are like no
others.
"""

import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold
from sklearn.neighbors import NearestNeighbors

from common.errors import DataError, import_optional

DOUBTED, TWO, COPY, OUTLIER = "doubted label", "two classes", "duplicate, two labels", "outlier"
SECOND, BOTH = 0.25, 0.8
"""An image of two classes: the probability of its label, and of the two together, at least."""
NEIGHBOURS = 10
FENCE = 2.0
"""Interquartile ranges above the third quartile from which the logarithm of a distance is an outlier's: of a normal
distribution 4 in 10,000 do (Tukey 1977 draws fences at 1.5 and 3)."""
PENALTIES = (0.001, 0.01, 0.1, 1.0)
"""Regularisation of logistic regression (scikit-learn's C), the strongest first; the features have deviation 1."""
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def fold_of_each(labels: Ints, groups: Ints, *, folds: int) -> Ints:
    """Assign the fold, from 0, that each image is left out in: (N,).

    The images of a group share one; the groups of each class, which is that of their first image, are spread evenly.
    Raises DataError: no class has two groups."""
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)
    folds = min(folds, int(np.bincount(labels[first]).max()))
    if folds < 2:
        raise DataError("no class has two different images: nothing can be learnt of one from another")
    numbers = np.empty(len(first), np.int64)
    splitter = StratifiedKFold(folds, shuffle=True, random_state=0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The least populated class")
        for number, (_, left_out) in enumerate(splitter.split(first, labels[first])):
            numbers[left_out] = number
    return numbers[group]


def out_of_fold(features: NDArray[np.float32], labels: Ints, folds: Ints, learns: Bools) -> Floats:
    """Predict each image by a model of the other folds: (N, C).

    It learns from those of their images that `learns` allows. Where these have none of its class, an image is said to
    be what its label says."""
    probabilities, cuts = np.eye(int(labels.max()) + 1)[labels], []
    for fold in range(int(folds.max()) + 1):
        learnt = learns & (folds != fold)
        known = np.unique(labels[learnt])
        asked = (folds == fold) & np.isin(labels, known)
        if len(known) > 1 and asked.any():
            cuts.append((learnt, known, asked))
    choices = [(learnt, asked & learns) for learnt, _, asked in cuts if (asked & learns).any()]
    penalty = best_penalty(features, labels, *choices[0]) if choices else PENALTIES[0]
    for learnt, known, asked in cuts:
        shares = fit_logistic(features[learnt], labels[learnt], penalty).predict_proba(features[asked])
        probabilities[np.ix_(asked, known)] = shares
    return probabilities


def best_penalty(features: NDArray[np.float32], labels: Ints, learnt: Bools, asked: Bools) -> float:
    """Choose from PENALTIES by the log loss on the images asked about."""

    def loss(penalty: float) -> float:
        model = fit_logistic(features[learnt], labels[learnt], penalty)
        return float(log_loss(labels[asked], model.predict_proba(features[asked]), labels=model.classes_))

    return min(PENALTIES, key=loss)


def fit_logistic(features: NDArray[np.float32], labels: Ints, penalty: float) -> LogisticRegression:
    model = LogisticRegression(C=penalty, max_iter=300)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # nearly there is near enough
        return model.fit(features, labels)


class Issue(NamedTuple):
    """One doubtful label. Images and classes are numbers."""

    image: int
    kind: str
    suggested: int
    """The most probable class; of a copy the label of the other one."""
    other: int | None = None
    """Number of a copy that has the suggested label; None for other kinds of issue."""


def cleanlab_filter() -> Any:
    """Import cleanlab. Raises MissingPackage: it is not installed."""
    return import_optional("cleanlab.filter", "clean needs cleanlab: pip install cleanlab==2.9.0")


def label_issues(
    labels: NDArray[np.int64],
    probabilities: NDArray[np.float64],
    groups: NDArray[np.int64],
    features: NDArray[np.float32],
) -> list[Issue]:
    """Find the doubtful labels among N images, each once.

    Copies come first, then labels by how little probability they have, then outliers of the `features` (N, D).
    `probabilities` are (N, C); copies share a number in `groups`."""
    first: dict[int, Issue] = {}
    for issue in (
        *copies(labels, probabilities, groups),
        *doubted_labels(labels, probabilities),
        *outliers(features, probabilities),
    ):
        first.setdefault(issue.image, issue)
    return list(first.values())


def doubted_labels(labels: NDArray[np.int64], probabilities: NDArray[np.float64]) -> Iterator[Issue]:
    """Yield as many labels as cleanlab estimates to be wrong, the least probable ones.

    None of them is the most probable class."""
    order = {"filter_by": "low_self_confidence", "return_indices_ranked_by": "self_confidence"}
    for image in issues_found(labels, probabilities, **order).tolist():
        suggested, label = int(probabilities[image].argmax()), labels[image]
        of_label, of_both = probabilities[image, label], probabilities[image, [label, suggested]].sum()
        if suggested != label:
            yield Issue(image, TWO if of_label >= SECOND and of_both >= BOTH else DOUBTED, suggested)


def issues_found(labels: NDArray[np.int64], probabilities: NDArray[np.float64], **options: str) -> NDArray[Any]:
    """Call cleanlab's find_label_issues: by default bool (N,)."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="May not flag all label issues")
        return cleanlab_filter().find_label_issues(labels, probabilities, n_jobs=1, **options)


def copies(labels: NDArray[np.int64], probabilities: NDArray[np.float64], groups: NDArray[np.int64]) -> Iterator[Issue]:
    """Yield images whose copies have another label, which is more probable on average."""
    order = np.argsort(groups, kind="stable")
    for group in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
        given = np.unique(labels[group])
        if len(given) > 1:
            likely = int(given[probabilities[group].mean(axis=0)[given].argmax()])
            other = int(group[labels[group] == likely][0])
            yield from (Issue(int(image), COPY, likely, other) for image in group if labels[image] != likely)


def outliers(features: NDArray[np.float32], probabilities: NDArray[np.float64]) -> Iterator[Issue]:
    """Yield images whose nearest ones are far, by the angle between features, the farthest first."""
    count = min(NEIGHBOURS, len(features) - 1)
    distances, _ = NearestNeighbors(n_neighbors=count + 1, metric="cosine").fit(features).kneighbors(features)
    scores = np.log(distances[:, 1:].mean(axis=1) + 1e-12)
    low, high = np.percentile(scores, (25, 75))
    for image in np.argsort(-scores)[: int((scores > high + FENCE * (high - low)).sum())]:
        yield Issue(int(image), OUTLIER, int(probabilities[image].argmax()))
