"""Rehearse a run: two batches of every stage (`--dry-run`), or a range test of the learning rate (`--find-lr`).

Faults show in seconds, and nothing stays behind. The range test is that of Smith 2017 (arXiv:1506.01186), by Ignite's
finder.
"""

import dataclasses
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

import numpy as np
from ignite.handlers import FastaiLRFinder
from matplotlib.figure import Figure

from common.errors import OptionError, TrainingError
from common.files import made_whole
from common.text import pluralise
from datasets.bundle import LEFT_OUT, DataBundle, evenly
from datasets.image_dataset import ImageDataset
from datasets.loaders import loader_like, stop_workers
from datasets.open import OpenedImages
from datasets.sampling import OrderedBatchSampler, batch_sampler
from trainers.budget.pace import BATCHES, measure
from trainers.config import RunConfig
from trainers.engine.handlers import endless_batches
from trainers.reporting import console, screen
from trainers.reporting.figures.results import save, tidy
from trainers.run import execute
from trainers.run_record import write_inputs
from trainers.setup import RunSetup, prepare, trainer_of
from trainers.storage.checkpoint_file import load, read_checkpoint
from trainers.storage.data_folder import claimed_folder, data_folder
from trainers.storage.run_folder import RunFolder
from trainers.storage.run_result import RunResult


@console.model_log()
def dry_run(config: RunConfig, *, opened: OpenedImages | None = None, number: int | None = None) -> RunResult:
    """Train, validate, save, load and resume on two batches each, in a temporary folder.

    `number`: that of a run of a plan, whose later runs need it; its folder in `config.output.output_dir` stays.
    """
    opened = opened or OpenedImages()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run" if number is None else config.output.output_dir / f"run_{number}"
        config = config.changed(output={"output_dir": folder.parent, "tracker": None})
        setup = prepare(config, opened=opened)
        screen.announce(setup, None)
        pace, epochs = measure(setup), setup.config.train.epochs or 0
        first = on_few_batches(setup, epochs=1)
        with made_whole(folder) as aside:
            write_inputs(RunFolder(aside), first, config)
        run = RunFolder(folder)
        execute(first, run)
        load(folder)
        checkpoint = read_checkpoint(run.checkpoints("step")[0])
        checkpoint["trainer"]["max_epochs"] = 2
        result = execute(
            on_few_batches(prepare(config, checkpoint=checkpoint, run=run, opened=opened), epochs=2),
            run,
            checkpoint,
        )
        steps, recorded = len(first.data.dataloaders["train"]), [row["step"] for row in result.epochs]
        expected = [0, steps, 2 * steps] if first.total_steps else [0, 0]
        if recorded != expected:
            raise OptionError(f"dry run: the resumed run recorded steps {recorded}, not {expected}")
    console.say(
        f"dry run passed: trained, validated, saved, loaded and resumed. A step takes about {pace.step:.3g} s, so an"
        f" epoch {console.duration(pace.epoch)} with its validation, and {pluralise(epochs, 'epoch')} with their"
        f" pictures {console.duration(pace.seconds(epochs))}. Nothing is left behind"
    )
    return result


def on_few_batches(setup: RunSetup, *, epochs: int) -> RunSetup:
    """Restrict a setup to a few batches of each split."""
    train = {"epochs": epochs, "warmup_epochs": 0.0, "log_every": 1}
    samples, loaders = setup.data.samples, dict(setup.data.dataloaders)
    for split, loader in loaders.items():
        rows = samples.indices(split)
        some = evenly(len(rows), BATCHES * batch_sampler(loader).batch_size)
        samples = samples.with_splits({LEFT_OUT: np.delete(rows, some)})
    for split, loader in setup.data.dataloaders.items():
        whole, size = cast("ImageDataset", loader.dataset), batch_sampler(loader).batch_size
        few = ImageDataset(samples, split, whole.pipeline, seed=whole.seed)
        loaders[split] = loader_like(loader, few, OrderedBatchSampler(len(few), size))
    sizes = {split: len(samples.indices(split)) for split in loaders}
    data = DataBundle(loaders, setup.data.class_names, sizes)
    return dataclasses.replace(setup, config=setup.config.changed(train=train), data=data)


LOWEST, HIGHEST = 1e-7, 1.0
STEPS = 100


def find_lr(config: RunConfig) -> Path:
    """Raise the rate until the loss diverges; return the path of the figure.

    Raises OptionError: the run takes no steps, or the loss falls at no rate.
    """
    if config.train.start_head == "fit":
        raise OptionError("--find-lr: the head is fitted at once, and no step follows for which a rate could be found")
    data_folder(config.output, config.data.source)  # before the steps: it may lie among the images
    console.say(f"trying {STEPS} learning rates, one step each")
    finder = range_test(config)
    history = finder.get_results()
    rates = [rate[0] if isinstance(rate, list) else rate for rate in history["lr"]]  # a list: one per group
    try:
        suggestion = finder.lr_suggestion()
    except (RuntimeError, IndexError):  # IndexError: not even the first loss was finite
        raise OptionError("the loss fell at no learning rate tried: look at the data, or at --weights") from None
    suggestion = suggestion[0] if isinstance(suggestion, list) else suggestion
    path = claimed_folder(config.output, config.data.source) / "lr_finder.png"
    draw_curve(rates, history["loss"], suggestion, path)
    console.say(f"steepest fall of the loss at --lr {suggestion:.2g}, of {len(rates)} rates tried")
    console.say(f"curve: {path}")
    return path


def range_test(config: RunConfig) -> FastaiLRFinder:
    """Return a finder with the tried rates and the smoothed loss at each."""
    setup, finder = prepare(config), FastaiLRFinder()
    trainer, batches = trainer_of(setup), endless_batches(setup.data.dataloaders["train"], 0)
    start = {"model": setup.model, "optimizer": setup.optimizer}
    options = {"num_iter": STEPS, "start_lr": LOWEST, "end_lr": HIGHEST, "smooth_f": 0.1, "diverge_th": 3.0}
    attached = finder.attach(trainer, start, lambda output: output["loss"], **options)
    try:
        # A loss that is not finite counts as diverged; Ignite warns if none diverges.
        with warnings.catch_warnings(action="ignore"), attached, suppress(TrainingError):
            trainer.run(batches, max_epochs=1, epoch_length=STEPS)
    finally:
        stop_workers(setup.data.dataloaders.values())
    return finder


def draw_curve(rates: Sequence[float], losses: Sequence[float], suggestion: float, path: Path) -> None:
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(rates, losses)
    axes.axvline(suggestion, linestyle="--", color="tab:orange", label=f"steepest fall: {suggestion:.2g}")
    lowest, first = min(losses), losses[0]
    axes.set_ylim(lowest - 0.1 * (first - lowest) - 1e-3, first + 0.5 * (first - lowest) + 1e-3)
    axes.set(xscale="log", xlabel="learning rate", ylabel="training loss, smoothed")
    axes.legend()
    tidy(axes)
    save(figure, path)
