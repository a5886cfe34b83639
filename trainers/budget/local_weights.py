"""The first answer: which of the weights at hand suits these images, from one look at each image with each of them.

Nothing is downloaded and nothing is trained: a frozen backbone turns the training images into features, and
cross-validation of the head of `trainers.heads` says how many a linear head would get right.
"""

import dataclasses
import math
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from common.errors import MissingPackage, WeightsError
from common.text import format_table
from datasets.opened import OpenedImages
from trainers.budget.pace import seconds_of_forward
from trainers.config import RunConfig
from trainers.features import features_of
from trainers.heads.fit import as_images
from trainers.heads.linear import cross_validate
from trainers.options import defaults
from trainers.reporting import console
from trainers.setup import RunSetup, prepare, resolve_fit
from trainers.statistics import design_of
from trainers.user_objects import UserObjects
from vit import ModelConfig
from vit.factory import image_spec, local_pretrained_models

MOST_IMAGES = 3_000
"""Training images looked at: with them an accuracy of 90 % is known to one point."""
SAMPLE = 1_000
"""Images of a larger set, where time is short: to two points. The features of a part are of no use to a run on all
images."""


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


def rank(
    config: RunConfig, *, seconds: float | None = None, sample: int = MOST_IMAGES, images: OpenedImages | None = None
) -> list[Ranked]:
    """Look at the training images with all weights at hand, cheap ones first; print the table; best first.

    The least log loss is the best; weights of which there are too few images to say come in the order of their cost.

    With `seconds`, weights that would take longer than what is left of them are not tried. Of more than `MOST_IMAGES`
    so many are looked at, `sample`. Without any weights at hand the list is empty. The features stay for a probe that
    trains on them.
    """
    rows, start = [], time.perf_counter()
    models = (dataclasses.replace(model, in_channels=config.model.in_channels) for model in local_pretrained_models())
    for model, setup in probes(config, models, sample=sample, images=images):
        wanted = 0.0 if seconds is None else seconds_of_forward(setup, setup.data.dataset_sizes["train"])
        if seconds is not None and wanted > seconds - (time.perf_counter() - start):
            console.say(f"{name_of(model)}: left out, it would take about {console.duration(wanted)}", label="weights")
            continue
        row = _judge(setup, model)
        rows.append(dataclasses.replace(row, seconds=max(row.seconds, wanted)))
    rows.sort(key=lambda row: row.loss)
    for line in table(rows) if rows else ():
        console.say(line)
    return rows


def table(rows: list[Ranked]) -> list[str]:
    """The lines about weights, best first, in 80 columns for all that are local."""
    cells = [("  weights", "frozen, with a linear head", "acc", "95 % interval", "loss", "time")]
    for row in rows:
        interval = f"{100 * row.low:.1f} to {row.high:.1%}".replace("100.0", "100")
        right, error = console.percent(row.accuracy), f"{row.loss:.3f}"
        cells.append(("", row.name, right, interval, error, console.duration(row.seconds)))
    return list(format_table(cells, left=(0, 1)))


def probes(
    config: RunConfig,
    models: Iterable[ModelConfig],
    *,
    labels: int = 1,
    sample: int = MOST_IMAGES,
    images: OpenedImages | None = None,
) -> Iterator[tuple[ModelConfig, RunSetup]]:
    """The linear probe of each model that can be had, on up to `MOST_IMAGES` training images, of more on `sample`, or
    at least `labels` of each class; a line about each that cannot. They share the images, decoded, where they can."""
    images, previous = images or OpenedImages(), None
    for model in models:
        try:
            setup = _prepared(_probe(config, model), previous, images)
            if setup.data.dataset_sizes["train"] > MOST_IMAGES:
                most = max(labels, -(-sample // len(setup.data.class_names)))
                config = config.changed(data={"labels_per_class": most, "fraction": None})
                setup = _prepared(_probe(config, model), previous, images)
        except (WeightsError, MissingPackage, FileNotFoundError) as error:
            console.say(f"{name_of(model)}: left out; {error}", label="weights")
            continue
        previous = setup
        yield model, setup


def _prepared(config: RunConfig, previous: RunSetup | None, images: OpenedImages) -> RunSetup:
    """The setup of these options, with the images of the previous one where they are prepared and batched alike."""
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
