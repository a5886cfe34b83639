"""Time that a run takes on this machine: one measurement, for comparisons, the dry run, and the line before a run."""

import copy
import dataclasses
import time
from collections.abc import Iterator, Sequence
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
from trainers.reporting import console
from trainers.setup import RunSetup, head_of, optimizer_of, trainer_of
from trainers.system import distributed
from vit.parts import inputs_of, parts

BATCHES = 2
PARTS = 8
PICTURES_AND_FILES = 6.0
"""Seconds allowed for pictures, checkpoints and TensorBoard in a run, start to end: not a measurement."""
SHORT, LONG = 90.0, 1800.0
"""Seconds below which nothing is said, and above which a processor has something better to offer."""


class Pace(NamedTuple):
    """Seconds that the parts of a run take, measured on its own images, model and machine."""

    step: float
    """One optimizer step with its images, which are kept or decoded again."""
    steps: float
    """All steps of an epoch."""
    validation: float
    """One pass over the validation images."""
    decoding: float
    """Reading all images for the first time, with their features where a head alone is trained on them."""
    fixed: float
    """All that does not depend on the number of epochs: `decoding`, the scores before and after training, files."""

    @property
    def epoch(self) -> float:
        return self.steps + self.validation

    def seconds(self, epochs: float) -> float:
        """A whole run, from its first validation to its end."""
        return self.fixed + epochs * self.epoch


def measure(setup: RunSetup, *, seconds: float = 1.0) -> Pace:
    """Read a few batches and take steps with a copy of the model for about `seconds`; the setup stays as it is."""
    few = few_batches(setup.data.dataloaders["train"])
    first, _ = read(few)
    again, batches = read(few)
    stop_workers([few])
    images, sizes = sum(len(batch[1]) for batch in batches), setup.data.dataset_sizes

    def together(computing: float, reading: float) -> float:
        return max(computing, reading) if few.num_workers else computing + reading

    decoding = max(0.0, first - again) / images
    batch = batches[0][0][: images_timed(setup)].to(setup.device)
    passing = together(seconds_of_forward(setup, 1, batch), again / images)
    model = copy.deepcopy(setup.model)
    copied = dataclasses.replace(setup, model=model, optimizer=optimizer_of(model, setup.config))
    if setup.config.train.cache_features == "on":
        starting, step = step_times(*on_features(copied, batches), seconds=seconds / 20)
        decoding, passing = decoding + passing, step / len(batches[0][1])  # no scores of a head take longer
    else:
        starting, step = seconds_of_step(copied, batches, seconds=seconds)
        step = together(step, again / len(batches))
    decoding, validation = decoding * sum(sizes.values()), passing * sizes["val"]
    fixed = starting + decoding + validation + passing * sizes.get("test", 0) + PICTURES_AND_FILES
    return Pace(step, step * setup.steps_per_epoch, validation, decoding, fixed)


def few_batches(loader: DataLoader) -> DataLoader:
    """Return a loader of a few batches of the same images, spread over them."""
    whole = batch_sampler(loader)
    sampler = OrderedBatchSampler(whole.length, whole.batch_size, sample=BATCHES * whole.batch_size)
    return loader_like(loader, loader.dataset, sampler)


def read(loader: DataLoader) -> tuple[float, list[Any]]:
    """Return the batches of the first epoch, and how long they took, without what is imported and started once."""
    batch_sampler(loader).set_position(0)
    ready = iter(loader)
    started = time.perf_counter()
    batches = list(ready)
    return time.perf_counter() - started, batches


def on_features(setup: RunSetup, batches: Sequence[Any]) -> tuple[RunSetup, list[Any]]:
    """Return a setup of the head alone, and batches of features: those of one image in the place of all."""
    with torch.no_grad(), inputs_of(parts(setup.model).head[0]) as seen:
        setup.model(batches[0][0][:1].to(setup.device))
    features = seen[0].cpu()  # (1, D)
    head = dataclasses.replace(setup, model=head_of(setup.model), whole=setup.model)
    return head, [(features.expand(len(labels), *features.shape[1:]), labels) for _, labels in batches]


def seconds_of_step(setup: RunSetup, batches: Sequence[Any], *, seconds: float) -> tuple[float, float]:
    """Return what `step_times` does; of a part of each batch, where the whole takes long."""
    least = 2 * setup.config.train.accumulate  # a batch norm may not take one image alone
    part = [tuple(values[: max(least, -(-len(values) // PARTS))] for values in batch) for batch in batches]
    starting, step = step_times(setup, part, seconds=seconds / 4)
    return (starting, PARTS * step) if PARTS * step > seconds else step_times(setup, batches, seconds=seconds)


def step_times(setup: RunSetup, batches: Sequence[Any], *, seconds: float) -> tuple[float, float]:
    """Return how much longer the first step takes, as with `--compile`, and the median of three others or more."""
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
    """Return the images of a batch that is timed: on a GPU those of a step, as a few take as long there."""
    return 8 if setup.device.type == "cpu" else setup.config.data.batch_size or 64


@torch.inference_mode()
def seconds_of_forward(setup: RunSetup, images: int, batch: Tensor | None = None) -> float:
    """Measure the seconds of one pass over so many images, from the second pass of a batch: the first is slower."""
    side = setup.spec.image_size
    if batch is None:
        batch = torch.zeros(images_timed(setup), setup.spec.in_channels, side, side, device=setup.device)
    was_training = setup.model.training
    setup.model.eval()
    with autocast(setup.device, setup.amp_dtype):
        for _ in range(2):
            started = time.perf_counter()
            setup.model(batch).cpu()  # a GPU's work is awaited
            seconds = time.perf_counter() - started
    setup.model.train(was_training)
    return seconds / len(batch) * images


def say_forecast(setup: RunSetup) -> None:
    """Measure the pace of a run before its first step and say how long it takes; nothing where that is a moment."""
    if distributed.world_size() > 1 or setup.on_features:
        return
    if 3 * seconds_of_forward(setup, setup.total_steps * (setup.config.data.batch_size or 1)) > SHORT / 2:
        for line in forecast(measure(setup), setup.total_steps / setup.steps_per_epoch, device=setup.device.type):
            console.say(line)
        reset_peak_memory(setup.device)  # the measurement took steps with a copy of the model


def forecast(pace: Pace, epochs: float, *, device: str) -> Iterator[str]:
    seconds = pace.seconds(epochs)
    if seconds >= SHORT:
        parts = f"a step takes {pace.step:.3g} s, an epoch {console.duration(pace.epoch)} with its validation"
        yield f"{'time':>9}  about {console.duration(seconds)}: {parts}"
    if seconds >= LONG and device == "cpu":
        yield f"{'':>9}  for a result sooner: the same command with --minutes 5, or 30, in place of --epochs"
