"""Out-of-fold predictions for every image of a set: logistic regression in folds, on the frozen features of the local
pretrained weights that suit the set best."""

import warnings

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler

from common.errors import DataError, OptionError
from datasets.bundle import Samples, image_set
from datasets.opened import OpenedImages
from datasets.shared_split import PRETRAINED_ON, have_seen
from trainers.budget.local_weights import MOST_IMAGES, rank
from trainers.config import RunConfig
from trainers.features import features_of
from trainers.options.recipes import filled_in
from trainers.reporting.console import duration, say
from trainers.setup import prepare

PENALTIES = (0.001, 0.01, 0.1, 1.0)
"""Regularisation of logistic regression (scikit-learn's C), the strongest first; the features have deviation 1."""
MOST_COMPONENTS = 256
"""Principal components that are kept, so that a fit takes less time."""
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def features_of_set(config: RunConfig, *, images: int, seconds: float) -> tuple[Samples, Ints, NDArray[np.float32]]:
    """A set, which of its samples are in use, and what frozen backbones make of these, side by side (N, D): of the two
    networks that suit the training images best (of fewer images than features: of the best), by one look at up to 3,000
    with each that the time for all `images` allows for. Raises OptionError: it is too short for any."""
    looked_at = min(images, MOST_IMAGES)
    share = looked_at / (images + looked_at) if images > MOST_IMAGES else 1.0  # features of fewer are kept
    say(
        f"looking at {images:,} images with the pretrained networks on this machine, for at most {duration(seconds)}",
        label="features",
    )
    opened = OpenedImages()
    ranking = rank(config, seconds=seconds * share, images=opened)
    if not ranking:
        raise OptionError(
            f"{duration(seconds)} are too short for any pretrained network on this machine: give more --minutes"
        )
    networks = dict.fromkeys(ranked.options["model"]["name"] for ranked in ranking)
    best = [next(ranked for ranked in ranking if ranked.options["model"]["name"] == name) for name in networks]
    chosen, parts = best[: 2 if images > 2 * MOST_COMPONENTS else 1], []
    wanted = duration(sum(ranked.seconds for ranked in chosen) * images / looked_at)
    say(f"taking {' and '.join(ranked.name for ranked in chosen)}, for about {wanted}", label="features")
    for ranked in chosen:
        if have_seen(ranked.options["model"]["weights"], config.data.source):
            say(f"{PRETRAINED_ON[config.data.source]}: wrong labels that they know look right", label="note")
        setup = prepare(filled_in(config, ranked.options), images=opened)
        features = torch.cat(
            [features_of(setup, split, keep=True).flatten(1).float() for split in setup.data.dataloaders]
        ).numpy()
        features = StandardScaler().fit_transform(features)
        components = min(MOST_COMPONENTS, len(features))
        if features.shape[1] > components:
            features = PCA(components, svd_solver="randomized", random_state=0).fit_transform(features)
        parts.append(features)
    rows = np.concatenate([image_set(loader).indices for loader in setup.data.dataloaders.values()])
    order = np.argsort(rows)
    values = np.concatenate([part * (parts[0].std() / part.std()) for part in parts], axis=1)
    return setup.data.samples, rows[order], values[order]


def fold_of_each(labels: Ints, groups: Ints, *, folds: int) -> Ints:
    """(N,): the fold, from 0, that each image is left out in. The images of a group share one; the groups of each
    class, which is that of their first image, are spread evenly. Raises DataError: no class has two groups."""
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


def out_of_fold(features: NDArray[np.float32], labels: Ints, folds: Ints, learns: Bools) -> tuple[Floats, float]:
    """(N, C): the probabilities of each image, and the penalty of the models that gave them, each of which learnt from
    the images in the other folds that may be learnt from. Where these have none of its class, an image is said to be
    what its label says."""
    probabilities, penalty = np.eye(int(labels.max()) + 1)[labels], 0.0
    for fold in range(int(folds.max()) + 1):
        learnt = learns & (folds != fold)
        known = np.unique(labels[learnt])
        asked = (folds == fold) & np.isin(labels, known)
        if len(known) > 1 and asked.any():
            penalty = penalty or best_penalty(features, labels, learnt, asked & learns)
            shares = fit_logistic(features[learnt], labels[learnt], penalty).predict_proba(features[asked])
            probabilities[np.ix_(asked, known)] = shares
    return probabilities, penalty or PENALTIES[0]


def best_penalty(features: NDArray[np.float32], labels: Ints, learnt: Bools, asked: Bools) -> float:
    """Choose from PENALTIES the one with which a model fits the labels of the images asked about best, by its log
    loss."""

    def loss(penalty: float) -> float:
        model = fit_logistic(features[learnt], labels[learnt], penalty)
        return float(log_loss(labels[asked], model.predict_proba(features[asked]), labels=model.classes_))

    return min(PENALTIES, key=loss)


def fit_logistic(features: NDArray[np.float32], labels: Ints, penalty: float) -> LogisticRegression:
    model = LogisticRegression(C=penalty, max_iter=300)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # nearly there is near enough
        return model.fit(features, labels)
