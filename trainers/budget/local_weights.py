"""Frozen backbones, judged one by one on the training images by cross-validation of the head of `trainers.heads`.

For `rank`, and for labels; nothing is trained.
"""

import dataclasses
import math
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from common.errors import MissingPackage, WeightsError
from datasets.opened import OpenedImages
from trainers.budget.pace import seconds_of_forward
from trainers.config import RunConfig
from trainers.features import features_of
from trainers.heads.fit import as_images, ranking
from trainers.heads.linear import cross_validate
from trainers.options import defaults
from trainers.reporting import console
from trainers.setup import RunSetup, UserObjects, prepare, resolve_fit
from trainers.statistics import design_of
from vit import ModelConfig
from vit.factory import image_spec, local_pretrained_models

SCORES = ("accuracy", "low", "high", "loss")
MOST_IMAGES = 3_000
"""Training images looked at: with them an accuracy of 90 % is known to one point."""


@dataclass(frozen=True)
class Ranked:
    """Cross-validation of frozen weights on the training images."""

    name: str
    options: dict[str, dict[str, Any]]
    """Options that train the linear probe of these weights, as in a recipe."""
    accuracy: float
    low: float
    high: float
    """95 % interval of this many images (Wilson 1927), which may come in groups."""
    loss: float
    """Log loss, by which they are ranked."""
    seconds: float
    """Seconds as measured; where the features had been left by an earlier look and time is short, at least as
    estimated."""
    images: int = 0
    """Looked at."""


def rank(config: RunConfig, *, seconds: float | None = None, images: OpenedImages | None = None) -> list[Ranked]:
    """Judge all weights on this machine, cheap ones first; print the table; the least log loss first.

    With `seconds`, weights that would take longer than what is left of them are not tried. The features stay on disk.
    """
    rows, start = [], time.perf_counter()
    models = (dataclasses.replace(model, in_channels=config.model.in_channels) for model in local_pretrained_models())
    for model, setup in probes(config, models, images=images):
        wanted = 0.0 if seconds is None else seconds_of_forward(setup, setup.data.dataset_sizes["train"])
        if seconds is not None and wanted > seconds - (time.perf_counter() - start):
            console.say(f"{name_of(model)}: left out, it would take about {console.duration(wanted)}", label="weights")
            continue
        row = _judge(setup, model)
        rows.append(dataclasses.replace(row, seconds=max(row.seconds, wanted)))
    rows.sort(key=lambda row: row.loss)
    parts = {row.name: {"cross-validation": {name: vars(row)[name] for name in SCORES}} for row in rows}
    for line in ranking(parts) if rows else ():
        console.say(line, label="")
    return rows


def probes(
    config: RunConfig, models: Iterable[ModelConfig], *, images: OpenedImages | None = None
) -> Iterator[tuple[ModelConfig, RunSetup]]:
    """Yield the linear probe of each model that can be had, on up to `MOST_IMAGES` training images; say which cannot.

    They share the decoded images, where they can."""
    images, previous = images or OpenedImages(), None
    for model in models:
        try:
            setup = _prepared(_probe(config, model), previous, images)
            if setup.data.dataset_sizes["train"] > MOST_IMAGES:
                most = -(-MOST_IMAGES // len(setup.data.class_names))
                config = config.changed(data={"labels_per_class": most, "fraction": None})
                setup = _prepared(_probe(config, model), previous, images)
        except (WeightsError, MissingPackage, FileNotFoundError) as error:
            console.say(f"{name_of(model)}: left out; {error}", label="weights")
            continue
        previous = setup
        yield model, setup


def _prepared(config: RunConfig, previous: RunSetup | None, images: OpenedImages) -> RunSetup:
    """Prepare a run of these options, with the images of the previous one where they are prepared and batched alike."""
    given = UserObjects()
    with suppress(ValueError):  # `prepare` says what is wrong
        resolved = defaults.resolve(config)
        if previous and resolved.data == previous.config.data:
            spec = resolve_fit(image_spec(resolved.model), resolved, UserObjects(), images)
            given = UserObjects(dataloaders=previous.data) if spec == previous.spec else given
    return prepare(config, given=given, images=images)


def _probe(config: RunConfig, model: ModelConfig) -> RunConfig:
    train = {"cache_features": "on", "mixup": 0.0, "cutmix": 0.0}
    of_model = vars(model) | {"trainable": "head", "fit": config.model.fit, "decoding": config.model.decoding}
    return config.changed(model=of_model, data={"augment": "none"}, train=train)


def name_of(model: ModelConfig) -> str:
    size = f"@{model.image_size}" if model.image_size else ""
    return f"{model.name}{size} ({model.weights})"


def _judge(setup: RunSetup, model: ModelConfig) -> Ranked:
    start = time.perf_counter()
    images = as_images(setup, "train", features_of(setup, "train", keep=True))
    judged = cross_validate(images)
    accuracy, low, high, loss = 0.0, 0.0, 1.0, math.log(images.classes)
    if judged is not None:
        low, high = design_of(judged.right, judged.images.units).interval(judged.right.mean())
        accuracy, loss = judged.accuracy, judged.loss
    options = {name: getattr(model, name) for name in ("name", "weights", "image_size") if getattr(model, name)}
    return Ranked(
        name=name_of(model),
        options={"model": {**options, "trainable": "head"}, "data": {"augment": "none"}},
        accuracy=accuracy,
        low=low,
        high=high,
        loss=loss,
        seconds=time.perf_counter() - start,
        images=len(images.labels),
    )
