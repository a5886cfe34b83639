"""Time that work on images takes on this machine: measured at two sizes, for plans, comparisons and single runs."""

import copy
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle, pairwise
from statistics import median
from typing import Any, NamedTuple

import torch
from ignite.engine import Engine, Events
from torch import Tensor
from torch.utils.data import DataLoader

from datasets.loaders import loader_like, stop_workers
from datasets.sampling import OrderedBatchSampler, batch_sampler
from trainers.engine.engines import autocast
from trainers.engine.handlers import reset_peak_memory
from trainers.engine.optim import set_learning_rate
from trainers.reporting import console
from trainers.setup import RunSetup, head_of, optimizer_of, trainer_of
from trainers.system import distributed
from vit.anatomy import anatomy_of, recording

BATCHES = 2
PARTS = 8
FILES, PICTURES = 1.0, 5.0
"""Seconds allowed for checkpoints and TensorBoard in a run, start to end, and for its pictures: not a measurement."""
RUN, ENDING = 4.5, 1.5
"""Seconds allowed for a plan's run besides its passes and pictures, and for what comes after its last scores."""
EXPLAINED, MAPS = 100, 6
"""Forward passes with an image for the heat maps that are shown, and with each image for their faithfulness."""
SHORT, LONG = 90.0, 1800.0
"""Seconds below which nothing is said, and above which a processor has something better to offer."""


class Cost(NamedTuple):
    """Seconds of an operation on a batch of images."""

    fixed: float
    """Of any batch."""
    each: float
    """Of each image in it."""

    def seconds(self, images: float, *, batch: int) -> float:
        """Return the seconds of so many images in batches of this size."""
        return math.ceil(images / batch) * self.fixed + images * self.each


def cost_of(seconds: Callable[[int], float], few: int, many: int) -> Cost:
    """Measure an operation at two sizes of batch; `seconds` does it once."""
    first, second = ((images, seconds(images)) for images in (max(1, few), many))
    return cost_between(first, second)


def cost_between(few: tuple[int, float], many: tuple[int, float]) -> Cost:
    """Return the cost of an operation with its seconds for few images and for many.

    Where the machine was so unsteady that many took less, or there is one size, all of it is that of the images."""
    each = (many[1] - few[1]) / (many[0] - few[0]) if many[0] > few[0] else -1.0
    if each < 0:
        return Cost(0.0, many[1] / many[0])
    each = min(each, many[1] / many[0])
    return Cost(many[1] - many[0] * each, each)


class Pace(NamedTuple):
    """Costs of the parts of a run, measured on its own images, model and machine."""

    training: Cost
    """An optimizer step with its images, which are kept or decoded again."""
    scoring: Cost
    """A batch of validation or test images."""
    decoding: float
    """Seconds of an image's first reading, with its features where a head alone is trained on them."""
    starting: float
    """Seconds that the first step takes longer than the others, and of files and pictures."""
    batch: int
    sizes: Mapping[str, int]
    """Images of each split."""

    @property
    def step(self) -> float:
        """Return the seconds of a step."""
        return self.training.seconds(self.batch, batch=self.batch)

    @property
    def epoch(self) -> float:
        """Return the seconds of a pass over the training images, with its validation."""
        return self.training.seconds(self.sizes["train"], batch=self.batch) + self.scored("val")

    def scored(self, split: str) -> float:
        """Return the seconds of the scores of a split."""
        return self.scoring.seconds(self.sizes.get(split, 0), batch=self.batch)

    @property
    def first_reading(self) -> float:
        return self.decoding * sum(self.sizes.values())

    @property
    def fixed(self) -> float:
        """Return the seconds for any number of epochs: first reading, first and last scores, files."""
        return self.starting + self.first_reading + self.scored("val") + self.scored("test")

    def seconds(self, epochs: float) -> float:
        """Return the seconds of a whole run, from its first validation to its end."""
        return self.fixed + epochs * self.epoch


def drawing(a_pass: float, images: int) -> float:
    """Estimate the seconds of a run's pictures by those of a float32 pass.

    `a_pass`: seconds of a pass with one of its validation images."""
    from trainers.reporting.explanations.faithfulness import IMAGES, WAITED_FOR  # and pandas with it

    return PICTURES + EXPLAINED * a_pass + min(MAPS * min(images, IMAGES) * a_pass, WAITED_FOR)


def times_in_float32(setup: RunSetup) -> float:
    """Measure how many times as long a float32 pass takes, as for heat maps."""
    if setup.amp_dtype is None:
        return 1.0
    side, count = setup.spec.image_size, BATCHES
    images = torch.zeros(count, setup.spec.in_channels, side, side, device=setup.device)
    whole = dataclasses.replace(setup, model=setup.network, whole=None)
    exact = dataclasses.replace(whole, config=setup.config.changed(train={"amp": "off"}))
    in_float32, mixed = (cost_of_forward(each, images).seconds(count, batch=count) for each in (exact, whole))
    return in_float32 / mixed


def measure(setup: RunSetup, *, seconds: float = 1.0) -> Pace:
    """Read a few batches and train a copy of the model for about `seconds`.

    The setup stays as it is."""
    few = few_batches(setup.data.dataloaders["train"])
    first, _ = read(few)
    again, batches = read(few)
    stop_workers([few])
    images, size = sum(len(labels) for _, labels in batches), batch_sampler(few).batch_size
    reading, decoding = again / images, max(0.0, first - again) / images

    def together(computing: Cost) -> Cost:
        if not few.num_workers:
            return computing._replace(each=computing.each + reading)
        return max(computing, Cost(0.0, reading), key=lambda cost: cost.seconds(size, batch=size))

    scoring = together(cost_of_forward(setup, batches[0][0][: images_timed(setup)].to(setup.device)))
    model = copy.deepcopy(setup.model)
    copied = dataclasses.replace(setup, model=model, optimizer=optimizer_of(model, setup.config))
    set_learning_rate(copied.optimizer, 0.0)  # the run's own, without its warm-up, could diverge
    if setup.config.train.cache_features == "on":
        starting, training = cost_of_step(*on_features(copied, batches), seconds=seconds / 20)
        decoding, scoring = decoding + scoring.seconds(size, batch=size) / size, training  # no scores take longer
    else:
        starting, step = cost_of_step(copied, batches, seconds=seconds)
        training = together(step)
    starting += FILES + (0.0 if setup.config.output.tb == "scalars" else PICTURES)
    return Pace(training, scoring, decoding, starting, size, setup.data.dataset_sizes)


def few_batches(loader: DataLoader) -> DataLoader:
    """Return a loader of a few batches of the same images, spread over them."""
    whole = batch_sampler(loader)
    sampler = OrderedBatchSampler(whole.length, whole.batch_size, sample=BATCHES * whole.batch_size)
    return loader_like(loader, loader.dataset, sampler)


def read(loader: DataLoader) -> tuple[float, list[Any]]:
    """Return the first epoch's batches, and the seconds without what starts only once."""
    batch_sampler(loader).set_position(0)
    ready = iter(loader)
    started = time.perf_counter()
    batches = list(ready)
    return time.perf_counter() - started, batches


def on_features(setup: RunSetup, batches: Sequence[Any]) -> tuple[RunSetup, list[Any]]:
    """Return a setup of the head alone, and batches of features.

    Each feature is that of one image, in the place of all."""
    with torch.no_grad(), recording([(anatomy_of(setup.model).head[0], "in")]) as seen:
        setup.model(batches[0][0][:1].to(setup.device))
    features = seen[0].cpu()  # (1, D)
    head = dataclasses.replace(setup, model=head_of(setup.model), whole=setup.model)
    return head, [(features.expand(len(labels), *features.shape[1:]), labels) for _, labels in batches]


def cost_of_step(setup: RunSetup, batches: Sequence[Any], *, seconds: float) -> tuple[float, Cost]:
    """Return how much longer the first step takes, and the cost of the others.

    It is measured by a part of a batch and the whole, or where that would take long by two parts."""
    whole, least = max(len(labels) for _, labels in batches), 2 * setup.config.train.accumulate  # for a batch norm

    def times(images: int, seconds: float) -> tuple[float, float]:
        return step_times(setup, [tuple(values[:images] for values in batch) for batch in batches], seconds=seconds)

    part = min(whole, max(least, -(-whole // PARTS)))
    starting, of_part = times(part, seconds / 4)
    is_quick = PARTS * of_part <= seconds
    larger = whole if is_quick else min(whole, 2 * part)
    return starting, cost_between((part, of_part), (larger, times(larger, seconds if is_quick else seconds / 4)[1]))


def step_times(setup: RunSetup, batches: Sequence[Any], *, seconds: float) -> tuple[float, float]:
    """Return how much longer the first step takes, and the others' median.

    The first one is longer with `--compile`. There are three others or more."""
    trainer, ends = trainer_of(setup), [time.perf_counter()]

    @trainer.on(Events.ITERATION_COMPLETED)
    def note(engine: Engine) -> None:
        ends.append(time.perf_counter())
        if len(ends) >= 5 and ends[-1] - ends[1] > seconds:
            engine.terminate()

    trainer.run(cycle(batches), max_epochs=1, epoch_length=1000)
    first, *others = (after - before for before, after in pairwise(ends))
    return max(0.0, first - median(others)), median(others)


def images_timed(setup: RunSetup) -> int:
    """Return the images of a timed batch: on a GPU those of a step.

    Fewer would take as long there."""
    return 8 if setup.device.type == "cpu" else setup.config.data.batch_size or 64


def seconds_of_forward(setup: RunSetup, images: int) -> float:
    """Measure the seconds of one pass of the network over so many images."""
    return cost_of_forward(setup).seconds(images, batch=setup.config.data.batch_size or images_timed(setup))


def cost_of_forward(setup: RunSetup, batch: Tensor | None = None) -> Cost:
    """Measure a pass of the network by the second pass of a batch."""
    side, model = setup.spec.image_size, setup.model
    if batch is None:
        batch = torch.zeros(images_timed(setup), setup.spec.in_channels, side, side, device=setup.device)

    @torch.inference_mode()
    def seconds(images: int) -> float:
        for _ in range(2):
            started = time.perf_counter()
            model(batch[:images]).cpu()  # a GPU's work is awaited
            taken = time.perf_counter() - started
        return taken

    was_training = model.training
    model.eval()
    with autocast(setup.device, setup.amp_dtype):
        cost = cost_of(seconds, len(batch) // 4, len(batch))
    model.train(was_training)
    return cost


def say_forecast(setup: RunSetup) -> None:
    """Measure a run's pace before its first step, and say how long it takes.

    Nothing is said where that is a moment."""
    if distributed.world_size() > 1 or setup.on_features:
        return
    if 3 * seconds_of_forward(setup, setup.total_steps * (setup.config.data.batch_size or 1)) > SHORT / 2:
        lines = forecast(measure(setup), setup.total_steps / setup.steps_per_epoch, device=setup.device.type)
        if text := "\n  ".join(lines):
            console.say(text, label="time")
        reset_peak_memory(setup.device)  # the measurement took steps with a copy of the model


def forecast(pace: Pace, epochs: float, *, device: str) -> Iterator[str]:
    seconds = pace.seconds(epochs)
    if seconds >= SHORT:
        parts = f"a step takes {pace.step:.3g} s, an epoch {console.duration(pace.epoch)} with its validation"
        yield f"about {console.duration(seconds)}: {parts}"
    if seconds >= LONG and device == "cpu":
        yield "for a result sooner: the same command with --minutes 5, or 30, in place of --epochs"
