"""Run two batches of everything, so that faults show in seconds, and leave nothing behind: `--dry-run`."""

import dataclasses
import tempfile
from pathlib import Path
from typing import cast

import numpy as np

from common.errors import OptionError
from common.files import made_whole
from common.text import pluralise
from datasets.bundle import LEFT_OUT, DataBundle, evenly
from datasets.image_dataset import ImageDataset
from datasets.loaders import loader_like
from datasets.opened import OpenedImages
from datasets.sampling import OrderedBatchSampler, batch_sampler
from trainers.budget.pace import BATCHES, measure
from trainers.config import RunConfig
from trainers.reporting import console, screen
from trainers.run import execute
from trainers.run_start import write_inputs
from trainers.setup import RunSetup, prepare
from trainers.storage.checkpoint_file import load, read_checkpoint
from trainers.storage.run_folder import RunFolder
from trainers.storage.run_result import RunResult


@console.model_log()
def dry_run(config: RunConfig, *, images: OpenedImages | None = None, number: int | None = None) -> RunResult:
    """Train, validate, save, load and resume on two batches each, in a temporary folder.

    `number`: that of a run of a plan, whose later runs need it; its folder in `config.output.output_dir` stays.
    """
    images = images or OpenedImages()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run" if number is None else config.output.output_dir / f"run_{number}"
        config = config.changed(output={"output_dir": folder.parent, "tracker": None})
        setup = prepare(config, images=images)
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
            on_few_batches(prepare(config, checkpoint=checkpoint, run=run, images=images), epochs=2),
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
