"""Worth of keeping groups together: how many images a frozen network gets right in cross-validation when folds are
drawn at random, so that it learns from images of the group that it is asked about, and when groups stay whole."""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.preprocessing import StandardScaler

from common.errors import DataError
from datasets.bundle import LEFT_OUT, SPLITS, Samples
from datasets.config import DataConfig
from datasets.grouping.option import with_groups
from datasets.loaders import evaluation_loader, read_samples
from datasets.units import units_of
from trainers.engine.feature_sets import features_of
from trainers.multirun.out_of_fold import fold_of_each, out_of_fold
from vit.config import ModelConfig
from vit.factory import Blueprint

WEIGHTS, MODEL = "tiny_imagenet", "vit_stem_16"
MOST_IMAGES = 400
"""Images that are looked at, in whole groups: a few seconds on one core."""
FOLDS = 5


def accuracies(data: DataConfig, option: str) -> tuple[float, float, int] | None:
    """The accuracy in random folds, that in folds which keep the groups of `option` whole, and of how many images.
    None: images cannot be read, or no class has two groups."""
    try:
        samples = with_groups(read_samples(replace(data, group=None)), option)
        rows, groups = whole_groups(samples)
        labels = samples.labels[rows].astype(np.int64)
        features = StandardScaler().fit_transform(frozen_features(samples, rows))
        folds = (fold_of_each(labels, units, folds=FOLDS) for units in (np.arange(len(rows)), groups))
        random, grouped = (accuracy(features, labels, fold) for fold in folds)
    except DataError:
        return None
    return random, grouped, len(rows)


def whole_groups(samples: Samples) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of groups drawn one after the other until there are MOST_IMAGES, and the number of the group of each."""
    used = np.flatnonzero(samples.splits != LEFT_OUT)
    groups = units_of(samples, used)
    numbers, sizes = np.unique(groups, return_counts=True)
    order = np.random.default_rng(0).permutation(len(numbers))
    chosen = numbers[order[: max(1, int((sizes[order].cumsum() <= MOST_IMAGES).sum()))]]
    kept = np.isin(groups, chosen)
    return used[kept], groups[kept]


def frozen_features(samples: Samples, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """(n, D): what reaches the head of the embedded ViT, untrained on these images."""
    blueprint = Blueprint(ModelConfig(name=MODEL, weights=WEIGHTS))
    model = blueprint.build(num_classes=len(samples.class_names))
    looked_at = samples.replace(splits=np.full(len(samples), LEFT_OUT, np.int8))
    looked_at = looked_at.with_splits({SPLITS.index("val"): rows})
    loader = evaluation_loader(looked_at, "val", blueprint.image_spec, DataConfig(workers=0))
    return features_of(model, loader, torch.device("cpu"), amp_dtype=None).flatten(1).float().numpy()


def accuracy(features: NDArray[np.float32], labels: NDArray[np.int64], folds: NDArray[np.int64]) -> float:
    learns = np.ones(len(labels), bool)
    return float((out_of_fold(features, labels, folds, learns)[0].argmax(axis=1) == labels).mean())
