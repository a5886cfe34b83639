"""Time that a run takes on this machine: one measurement, for the plan before it, the dry run and what is said before
its first step."""

import copy
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from statistics import median
from typing import Any

import torch
from ignite.engine import Engine, Events
from torch.utils.data import DataLoader

from datasets.bundle import DataBundle
from datasets.loaders import loader_like, stop_workers
from datasets.sampling import OrderedBatchSampler, batch_sampler
from trainers.engine.engines import autocast, create_evaluator
from trainers.engine.handlers import reset_peak_memory
from trainers.reporting import console
from trainers.setup import RunSetup, head_of, optimizer_of, trainer_of
from trainers.system import distributed
from vit.parts import inputs_of, parts

BATCHES = 2
PARTS = 8
PICTURES_AND_FILES = 6.0
"""Seconds allowed for pictures, checkpoints and TensorBoard in a run of minutes, start to end: an allowance, not a
measurement. Where they take less, a plan ends sooner."""
SHORT, LONG = 90.0, 1800.0
"""Seconds below which nothing is said, and above which a processor has something better to offer."""
SOON_OVER = 2e12
"""Operations that no machine takes more than some seconds for: not worth a measurement."""


@dataclass(frozen=True)
class Pace:
    """Seconds that the parts of a run take, measured on its own images, model and machine."""

    step: float
    """One optimizer step, its images at hand or decoded again where they are not kept."""
    steps_per_epoch: int
    validation: float
    """One pass over the validation images."""
    decoding: float
    """Reading training and validation images for the first time, beyond what it takes from then on."""
    conclusion: float
    """The test images, once."""
    compiling: float = 0.0
    """The first steps, with `--compile`."""

    @property
    def epoch(self) -> float:
        return self.step * self.steps_per_epoch + self.validation

    @property
    def fixed(self) -> float:
        """Seconds that do not depend on the number of epochs; the first validation is of the untrained model."""
        return self.compiling + self.decoding + self.validation + self.conclusion + PICTURES_AND_FILES

    @property
    def ending(self) -> float:
        """Seconds after the last step: the scores of the best weights, and pictures."""
        return self.conclusion + PICTURES_AND_FILES / 2

    def seconds(self, epochs: float) -> float:
        """A whole run, from its first validation to its end."""
        return self.fixed + epochs * self.epoch

    def epochs(self, seconds: float) -> float:
        """Return the epochs that fit into so many seconds; never fewer than one step."""
        return max(1 / self.steps_per_epoch, (seconds - self.fixed) / self.epoch)


def measure(setup: RunSetup, *, seconds: float = 1.0) -> Pace:
    """Read a few batches and take steps with a copy of the model for about `seconds`; the setup stays as it is."""
    few = few_batches(setup.data)
    train, val = few.dataloaders["train"], few.dataloaders["val"]
    first, _ = read(train)
    again, batches = read(train)
    copied, cached = copy_of(setup), setup.config.train.cache_features == "on"
    compiles = setup.config.train.compile and not cached
    compiling = seconds_of(lambda: step_times(copied, batches, seconds=0.0)) if compiles else 0.0
    step = 0.0 if cached else seconds_of_step(copied, batches, seconds=seconds)
    evaluator = create_evaluator(copied.model, setup.device, amp_dtype=setup.amp_dtype)
    _, val_again = (seconds_of(lambda: evaluator.run(val)) for _ in range(2))
    stop_workers(few.dataloaders.values())
    sizes, reading = setup.data.dataset_sizes, again / len(batches)
    per_image = max(0.0, first - again) / sum(len(batch[1]) for batch in batches)
    evaluation = val_again / len(batch_sampler(val).indices)
    if cached:
        whole = (evaluation + per_image) * sum(sizes.values())
        step, scoring = seconds_on_features(copied, batches)
        validation = scoring * sizes["val"] / batch_sampler(val).batch_size
        return Pace(step, setup.steps_per_epoch, validation=validation, decoding=whole, conclusion=0.0)
    return Pace(
        step=max(step, reading) if train.num_workers else step + reading,
        steps_per_epoch=setup.steps_per_epoch,
        validation=evaluation * sizes["val"],
        decoding=per_image * (sizes["train"] + sizes["val"]),
        conclusion=(evaluation + per_image) * sizes.get("test", 0),
        compiling=compiling,
    )


def copy_of(setup: RunSetup) -> RunSetup:
    """Copy a setup, its model and its optimizer."""
    model = copy.deepcopy(setup.model)
    return dataclasses.replace(setup, model=model, optimizer=optimizer_of(model, setup.config))


def seconds_of(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def read(loader: DataLoader) -> tuple[float, list[Any]]:
    """The batches of the first epoch, and how long they took, without what is imported and started once."""
    batch_sampler(loader).set_position(0)
    ready = iter(loader)
    started = time.perf_counter()
    batches = list(ready)
    return time.perf_counter() - started, batches


def seconds_of_step(setup: RunSetup, batches: Sequence[Any], *, seconds: float) -> float:
    """Median of some steps after the first, which is slower; of a part of each batch, where the whole takes long."""
    least = 2 * setup.config.train.accumulate  # a batch norm may not take one image alone
    part = [tuple(values[: max(least, -(-len(values) // PARTS))] for values in batch) for batch in batches]
    step = PARTS * median(step_times(setup, part, seconds=seconds / 4))
    return step if step > seconds else median(step_times(setup, batches, seconds=seconds))


def seconds_on_features(setup: RunSetup, batches: Sequence[Any]) -> tuple[float, float]:
    """Seconds that the head alone takes on cached features: for a step, and to score a batch."""
    with torch.no_grad(), inputs_of(parts(setup.model).head[0]) as seen:
        setup.model(batches[0][0][:1].to(setup.device))
    features = seen[0].cpu()  # (1, D): of one image, in the place of all
    on_features = [(features.expand(len(labels), *features.shape[1:]), labels) for _, labels in batches]
    head = dataclasses.replace(setup, model=head_of(setup.model), whole=setup.model)
    evaluator = create_evaluator(head.model, setup.device, amp_dtype=setup.amp_dtype)
    _, scoring = (seconds_of(lambda: evaluator.run(on_features)) for _ in range(2))
    return median(step_times(head, on_features, seconds=0.05)), scoring / len(on_features)


def step_times(setup: RunSetup, batches: Sequence[Any], *, seconds: float) -> list[float]:
    """Seconds of each step but the first, of at least three."""
    trainer = trainer_of(setup)
    ends: list[float] = []

    @trainer.on(Events.ITERATION_COMPLETED)
    def note(engine: Engine) -> None:
        ends.append(time.perf_counter())
        if len(ends) >= 4 and ends[-1] - ends[0] > seconds:
            engine.terminate()

    trainer.run(cycle(batches), max_epochs=1, epoch_length=1000)
    return [after - before for before, after in pairwise(ends)]


def few_batches(data: DataBundle) -> DataBundle:
    """Return the same images, of which loaders give a few batches of each split only, spread over it."""
    loaders: dict[str, DataLoader] = {}
    for split, loader in data.dataloaders.items():
        whole = batch_sampler(loader)
        sampler = OrderedBatchSampler(whole.length, whole.batch_size, sample=BATCHES * whole.batch_size)
        loaders[split] = loader_like(loader, loader.dataset, sampler)
    return DataBundle(loaders, data.class_names, data.dataset_sizes)


def say_forecast(setup: RunSetup) -> None:
    """Measure the pace of a run before its first step and say how long it takes; nothing where that is a moment."""
    if distributed.world_size() > 1 or setup.on_features or operations(setup) < SOON_OVER:
        return
    if 3 * seconds_of_forward(setup, setup.total_steps * (setup.config.data.batch_size or 1)) > SHORT / 2:
        for line in forecast(measure(setup), setup.total_steps / setup.steps_per_epoch, device=setup.device.type):
            console.say(line)
        reset_peak_memory(setup.device)  # the measurement took steps with a copy of the model


def images_timed(setup: RunSetup) -> int:
    """Return the images of a batch that is timed: on a GPU those of a step, as a few take as long there."""
    return 8 if setup.device.type == "cpu" else setup.config.data.batch_size or 64


@torch.inference_mode()
def seconds_of_forward(setup: RunSetup, images: int) -> float:
    """Measure the seconds of one pass over so many images, from a batch that is passed twice: the first time is
    slower."""
    side = setup.spec.image_size
    batch = torch.zeros(images_timed(setup), setup.spec.in_channels, side, side, device=setup.device)
    was_training = setup.model.training
    setup.model.eval()
    with autocast(setup.device, setup.amp_dtype):
        seconds = [seconds_of(lambda: setup.model(batch).cpu()) for _ in range(2)]  # a GPU's work is awaited
    setup.model.train(was_training)
    return seconds[-1] / len(batch) * images


def operations(setup: RunSetup) -> float:
    """Estimate the operations of a whole run, very roughly: three products a weight and image, once for each patch of
    16 pixels."""
    images = setup.total_steps * (setup.config.data.batch_size or 1)
    weights = sum(parameter.numel() for parameter in setup.model.parameters())
    return 6.0 * weights * images * (setup.spec.image_size / 16) ** 2


def forecast(pace: Pace, epochs: float, *, device: str) -> Iterator[str]:
    seconds = pace.seconds(epochs)
    if seconds >= SHORT:
        parts = f"a step takes {pace.step:.3g} s, an epoch {console.duration(pace.epoch)} with its validation"
        yield f"{'time':>9}  about {console.duration(seconds)}: {parts}"
    if seconds >= LONG and device == "cpu":
        yield f"{'':>9}  for a result sooner: the same command with --minutes 5, or 30, in place of --epochs"
