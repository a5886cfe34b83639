"""`--dry-run`: two batches of everything, so that what can go wrong goes wrong in seconds, and nothing left behind."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, Sampler

from datasets import DataBundle
from datasets.loaders import Loader
from trainers import console, defaults
from trainers.checkpoint import checkpoints, read_checkpoint
from trainers.config import RunConfig, to_dict
from trainers.errors import ConfigError
from trainers.job import Job, prepare
from trainers.result import RunResult, load
from trainers.run import execute
from trainers.start import describe_start, made_whole, write_inputs

BATCHES = 2


class FirstBatches(Sampler):
    """The first few batches of another sampler, in every epoch."""

    def __init__(self, sampler: Any, batches: int = BATCHES) -> None:
        self.sampler, self.batches = sampler, min(batches, len(sampler))
        self.batch_size = sampler.batch_size
        if hasattr(sampler, "indices"):
            self.indices = sampler.indices[: self.batches * sampler.batch_size]
        if hasattr(sampler, "labels"):
            self.labels, self.set_position = sampler.labels, sampler.set_position

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.sampler), self.batches)


def dry_run(config: RunConfig) -> RunResult:
    """Train, validate, save, load and resume on two batches each, in a folder that is removed again.

    Raises:
        whatever `trainers.run.train` raises.
    """
    console.show_model_log()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        config = dataclasses.replace(config, output=dataclasses.replace(config.output, output_dir=Path(name)))
        job = prepare(config)
        console.announce(job, folder, defaults_source=defaults.lookup(job.config).source)
        console.say_what_has_no_effect(job)
        first = shortened(job, epochs=1)
        with made_whole(folder) as aside:
            write_inputs(aside, first, describe_start(first, to_dict(config)))
        execute(first, folder)
        load(folder)
        checkpoint = read_checkpoint(checkpoints(folder / "checkpoints", "step")[0])
        checkpoint["trainer"]["max_epochs"] = 2
        result = execute(shortened(prepare(config, checkpoint=checkpoint), epochs=2), folder, checkpoint)
        _require_resumed(result, steps=len(first.data.dataloaders["train"]))
    step = min(row["seconds"] / (row["step"] - before["step"]) for before, row in pairwise(result.history))
    per_epoch = step * job.steps_per_epoch
    total = per_epoch * (job.config.train.epochs or 0)
    console.say(
        f"dry run passed: trained, validated, saved, loaded and resumed. A step takes about {step:.3g} s, so an"
        f" epoch {console.duration(per_epoch)} and the {job.config.train.epochs} epochs {console.duration(total)},"
        " validation not counted. Nothing is left behind"
    )
    return result


def shortened(job: Job, *, epochs: int) -> Job:
    """The same job on the first batches of each split. A probe then sees images: features would take all of them."""
    loaders: dict[str, DataLoader] = {
        split: Loader(
            loader.dataset,
            batch_sampler=FirstBatches(loader.batch_sampler),
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            worker_init_fn=loader.worker_init_fn,
            pin_memory=loader.pin_memory,
        )
        for split, loader in job.data.dataloaders.items()
    }
    train = dataclasses.replace(job.config.train, epochs=epochs, warmup_epochs=0.0, log_every=1, cache_features="off")
    data = DataBundle(loaders, job.data.class_names, job.data.dataset_sizes)
    return dataclasses.replace(job, config=dataclasses.replace(job.config, train=train), data=data)


def _require_resumed(result: RunResult, *, steps: int) -> None:
    steps_recorded = [row["step"] for row in result.history]
    if steps_recorded != [0, steps, 2 * steps]:
        raise ConfigError(f"dry run: the resumed run recorded steps {steps_recorded}, not {[0, steps, 2 * steps]}")
