"""Frozen backbones, scored one by one on the training images by cross-validation of the head of `trainers.heads`.

For `rank`; nothing is trained. The images and the folds are the same for every backbone.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.errors import MissingPackage, WeightsError
from datasets.bundle import LEFT_OUT, VAL, Samples, image_set
from datasets.open import OpenedImages
from trainers.config import RunConfig
from trainers.features import features_of
from trainers.heads import linear
from trainers.heads.fit import PartScores, as_images
from trainers.heads.linear import Judged, cross_validate
from trainers.options.defaults import STILL_IMAGES
from trainers.reporting.console import say
from trainers.seen import Start, starts_of, without_seen
from trainers.setup import RunSetup, prepare
from vit import ModelConfig

MOST_IMAGES = 3_000
"""Training images looked at: with them an accuracy of 90 % is known to one point."""


@dataclass(frozen=True)
class Ranked:
    """Result of one backbone."""

    name: str
    model: ModelConfig
    judged: Judged | None
    """None of too few images."""
    parameters: int
    seconds: float
    """Seconds to compute the features, if no earlier look has left them, and to score them."""


def rank(config: RunConfig, models: Mapping[ModelConfig, str], *, most: int = linear.MOST_IMAGES) -> list[Ranked]:
    """Score backbones with their names; the least log loss first.

    `most`: images that each is scored on, without those that one was trained on. The features stay on disk. Raises
    DataError: too few images are left of those."""
    rows, unseen = list[Ranked](), None
    starts = dict.fromkeys(start for model in models for start in starts_of(model))
    for model, setup in probes(config.changed(data={"allow_seen": True}), models):
        if unseen is None:
            unseen = images_to_judge(setup.data.samples, starts, allow=config.data.allow_seen)
        began, loader = time.perf_counter(), setup.data.dataloaders["train"]
        features = features_of(setup, "train", keep=True)
        known = as_images(loader, features, len(setup.data.class_names), setup.model)
        judged = cross_validate(known.take(np.flatnonzero(unseen[image_set(loader).indices])), most=most)
        parameters = sum(parameter.numel() for parameter in setup.model.parameters())
        rows.append(Ranked(models[model], model, judged, parameters, time.perf_counter() - began))
    return sorted(rows, key=lambda row: row.judged.loss if row.judged else 0.0)


def probes(config: RunConfig, models: Iterable[ModelConfig]) -> Iterator[tuple[ModelConfig, RunSetup]]:
    """Yield the linear probe of each model that can be had.

    It has up to `MOST_IMAGES` images. A line says which models cannot be had."""
    opened = OpenedImages()
    opened.split(config.data)  # where there are none, that is no fault of a model
    for model in models:
        try:
            setup = prepare(probe_of(config, model), opened=opened)
            if setup.data.dataset_sizes["train"] > MOST_IMAGES:
                most = -(-MOST_IMAGES // len(setup.data.class_names))
                config = config.changed(data={"labels_per_class": most, "fraction": None})
                setup = prepare(probe_of(config, model), opened=opened)
        except (WeightsError, MissingPackage, FileNotFoundError) as error:
            say(f"{name_of(model)}: left out; {error}", label="weights")
            continue
        yield model, setup


def probe_of(config: RunConfig, model: ModelConfig) -> RunConfig:
    """Return the options of a model's linear probe on images that stay the same."""
    of_model = vars(model) | {"trainable": "head", "fit": config.model.fit, "decoding": config.model.decoding}
    train = STILL_IMAGES["train"] | {"cache_features": "on"}
    return config.changed(model=of_model, data=STILL_IMAGES["data"], train=train)


def name_of(model: ModelConfig) -> str:
    size = f"@{model.image_size}" if model.image_size else ""
    return f"{model.name}{size} ({model.weights})"


def images_to_judge(samples: Samples, starts: Collection[Start], *, allow: bool) -> NDArray[np.bool_]:
    """Choose the training images that no start was trained on; with `allow` all.

    The result is (n,) over all samples. Prints how many others there are. Raises DataError: less than half is left."""
    train = samples.indices("train")
    others = np.setdiff1d(np.arange(len(samples)), train)
    judged, said = without_seen(samples.with_splits({LEFT_OUT: others, VAL: train}), starts, allow=allow)
    for line in said:
        say(line.replace("val images", "train images"), label="note")
    return judged.splits != LEFT_OUT


def scores_by_name(rows: Sequence[Ranked]) -> PartScores:
    """Return the cross-validation of each backbone by its name, as `trainers.heads.fit.ranking` prints it."""
    return {row.name: {"cross-validation": row.judged.scores} for row in rows if row.judged}
