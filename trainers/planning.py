"""`--minutes M`: the plan of a run, made by a measurement of pace on this machine before it starts."""

import dataclasses
import os
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from datasets.description import native_sizes
from trainers import console
from trainers.assembly import Run
from trainers.config import RunConfig
from trainers.errors import ConfigError
from trainers.fitting import Deadline, Fit
from trainers.job import Job, prepare
from trainers.pace import Pace, measure
from trainers.plans import Candidate, Plan, choose, filled_in, from_scratch

AS_GIVEN = Candidate("the model as given", {})


def planned(config: RunConfig, *, minutes: float, until: float) -> tuple[RunConfig, Callable[[Run], object]]:
    """The options with whatever was left open chosen for a run that ends at `until` (of `time.monotonic`), and what
    fits its end to that time while it runs: the `before_steps` of `trainers.run.train`.

    Raises:
        ConfigError: epochs are given too, or there are several processes.
        whatever `trainers.job.prepare` raises.
    """
    if config.train.epochs is not None:
        raise ConfigError(f"--minutes plans the epochs: leave out --epochs {config.train.epochs:g}, or --minutes")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("--minutes measures the pace of one process; with torchrun give --epochs")
    if config.data.folds is not None and config.data.fold is None:
        raise ConfigError("--minutes plans one run; with --folds give --epochs, or one --fold")
    with console.quiet():
        job, plan, pace = plan_for(config, until)
    images, reasons = job.data.dataset_sizes["train"], "; ".join(plan.reasons)
    console.say(f"{'plan':>9}  {minutes:g} minutes, {images:,} training images: {plan.epochs:g} epochs;")
    console.say(f"{'':>9}  {reasons}")
    chosen = filled_in(config, plan.candidate.options)
    chosen = dataclasses.replace(chosen, train=dataclasses.replace(chosen.train, epochs=plan.epochs))
    return chosen, partial(Fit, deadline=Deadline(until, pace))


def plan_for(config: RunConfig, until: float) -> tuple[Job, Plan, Pace]:
    """Measure one candidate after the other, until one would see the images too seldom."""
    open_model = config.model.name == "auto" and config.model.weights is None
    job = trial(config, AS_GIVEN)
    candidates, paces, epochs = [AS_GIVEN], [], []
    if open_model:
        candidates = list(from_scratch(float(np.median(native_sizes(job.data).min(axis=1)))))
    for candidate in candidates:
        paces.append(measure(trial(config, candidate)))
        epochs.append(paces[-1].epochs(until - time.monotonic()))
        if epochs[-1] < candidate.wants:
            break
    plan = choose(candidates[: len(epochs)], epochs)
    return job, plan, paces[candidates.index(plan.candidate)]


def trial(config: RunConfig, candidate: Candidate) -> Job:
    """The job of a candidate, to be measured."""
    filled = filled_in(config, candidate.options)
    return prepare(dataclasses.replace(filled, train=dataclasses.replace(filled.train, epochs=1)))
