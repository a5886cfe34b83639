"""`--minutes M`: the plan of a run, made by a measurement of pace on this machine before it starts."""

import dataclasses
import os
import time

import numpy as np

from datasets.description import native_sizes
from trainers import console
from trainers.config import RunConfig
from trainers.errors import ConfigError
from trainers.job import Job, prepare
from trainers.pace import measure
from trainers.plans import Candidate, Plan, choose, filled_in, from_scratch

AS_GIVEN = Candidate("the model as given", {})


def planned(config: RunConfig, *, minutes: float, until: float) -> RunConfig:
    """The options with whatever was left open chosen for a run that ends at `until` (of `time.monotonic`).

    Raises:
        ConfigError: epochs are given too, or there are several processes.
        whatever `trainers.job.prepare` raises.
    """
    if config.train.epochs is not None:
        raise ConfigError(f"--minutes plans the epochs: leave out --epochs {config.train.epochs:g}, or --minutes")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("--minutes measures the pace of one process; with torchrun give --epochs")
    with console.quiet():
        job, plan = plan_for(config, until)
    images, reasons = job.data.dataset_sizes["train"], "; ".join(plan.reasons)
    console.say(f"{'plan':>9}  {minutes:g} minutes, {images:,} training images: {plan.epochs:g} epochs;")
    console.say(f"{'':>9}  {reasons}")
    chosen = filled_in(config, plan.candidate.options)
    return dataclasses.replace(chosen, train=dataclasses.replace(chosen.train, epochs=plan.epochs))


def plan_for(config: RunConfig, until: float) -> tuple[Job, Plan]:
    """Measure one candidate after the other, until one would see the images too seldom."""
    open_model = config.model.name == "auto" and config.model.weights is None
    job = trial(config, AS_GIVEN)
    candidates, epochs = [AS_GIVEN], []
    if open_model:
        candidates = list(from_scratch(float(np.median(native_sizes(job.data).min(axis=1)))))
    for candidate in candidates:
        epochs.append(measure(trial(config, candidate)).epochs(until - time.monotonic()))
        if epochs[-1] < candidate.wants:
            break
    return job, choose(candidates[: len(epochs)], epochs)


def trial(config: RunConfig, candidate: Candidate) -> Job:
    """The job of a candidate, to be measured."""
    filled = filled_in(config, candidate.options)
    return prepare(dataclasses.replace(filled, train=dataclasses.replace(filled.train, epochs=1)))
