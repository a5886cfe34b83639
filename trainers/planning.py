"""`--minutes M`: the plan of a run or two, made by a measurement of pace on this machine before it starts."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from datasets.description import native_sizes
from datasets.text import read_rows
from trainers import console, plans
from trainers.assembly import Run
from trainers.config import RunConfig, from_dict
from trainers.errors import ConfigError
from trainers.fitting import Deadline, Fit
from trainers.job import Job, prepare
from trainers.pace import Pace, measure
from trainers.plans import Candidate, Plan, filled_in
from trainers.recipes import RECIPES
from trainers.result import RunResult
from trainers.resume import find_same_options
from trainers.run_directory import read_json
from trainers.threads import with_threads
from trainers.weights_at_hand import HINT, Ranked, rank
from vit.at_hand import at_hand
from vit.config import EMBEDDED_WEIGHTS, PACKAGED_MODELS

AS_GIVEN = Candidate("the model as given", {})
LOOKING = 0.3
"""Share of the time that may be spent on looking at the images with weights at hand."""
PROBE_STEPS = 1500


@dataclass(frozen=True)
class PlannedRun:
    """The options of a run, and what is to be called with it before its steps (see `trainers.run.train`)."""

    config: RunConfig
    before_steps: Callable[[Run], object] | None = None
    favoured: bool = False
    """Whether it is kept where the validation images cannot tell it from the run before it."""


def planned(config: RunConfig, *, minutes: float, until: float) -> Iterator[PlannedRun]:
    """The runs that make the most of the time until `until` (of `time.monotonic`), each planned when it is asked for;
    the best of them is to be kept.

    Where the model was left open and there are weights at hand, their linear probe comes first. It takes a moment, and
    a model that is trained follows where it may do better. Raises ConfigError: epochs are given too, or there are
    several runs or processes; and whatever `trainers.job.prepare` raises.
    """
    if config.train.epochs is not None:
        raise ConfigError(f"--minutes plans the epochs: leave out --epochs {config.train.epochs:g}, or --minutes")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("--minutes measures the pace of one process; with torchrun give --epochs")
    if config.data.folds is not None and config.data.fold is None:
        raise ConfigError("--minutes plans one run; with --folds give --epochs, or one --fold")
    with console.quiet():
        job = trial(config, AS_GIVEN)
    images, per_epoch = job.data.dataset_sizes["train"], job.steps_per_epoch
    console.say(f"{minutes:g} minutes, {images:,} training images", label="plan")
    candidates = [AS_GIVEN]
    if config.model.name == "auto" and config.model.weights in (None, "none"):
        side = float(np.median(native_sizes(job.data).min(axis=1)))
        candidates = list(plans.from_scratch(side))
    config = with_threads(config, partial(trial, config, candidates[0]))
    rows: list[Ranked] = []
    if candidates != [AS_GIVEN] and config.model.weights is None:
        rows = rank(config, seconds=LOOKING * (until - time.monotonic()))
        if rows:
            yield PlannedRun(named(probe_of(config, rows[0].options, per_epoch), "probe"))
        if all(model.name not in PACKAGED_MODELS for model in at_hand()):
            console.say(HINT, label="note")
        if rows:
            candidates = fine_tuned(rows, images=images, side=side)
    if candidates:
        run = fitting(config, candidates, until)
        yield replace(run, favoured=bool(rows) and candidates[0].weights == rows[0].name)


def named(config: RunConfig, kind: str) -> RunConfig:
    """The options with a name of its own for the first of two runs, where a person gave one."""
    name = config.output.run_name
    return config if name is None else config.changed(output={"run_name": f"{name}_{kind}"})


def probe_of(config: RunConfig, options: dict[str, dict[str, Any]], per_epoch: int) -> RunConfig:
    """A linear probe with enough steps, each of which takes milliseconds."""
    probe = filled_in(config, options)
    return probe.changed(train={"epochs": min(100, max(20, -(-PROBE_STEPS // per_epoch)))})


def fine_tuned(rows: Sequence[Ranked], *, images: int, side: float) -> list[Candidate]:
    """All of an embedded ViT trained, where that may do better than the best linear probe: as its recipe says, and
    with time to see the images, of `side` pixels, often: many of them mixed, few of them larger. Of several models, the
    best of the ranking; the larger where images are many."""
    recipe = RECIPES["finetune-small"].options
    many = images >= plans.MIXED_IMAGES
    if many:
        rows = sorted(rows, key=lambda row: row.options["model"]["name"] != recipe["model"]["name"])
    best = max((row.accuracy for row in rows), default=0.0)
    for row in rows:
        model = row.options["model"]
        if model["name"] in EMBEDDED_WEIGHTS.values() and plans.may_do_better(row.accuracy, best):
            train = recipe["train"] | {"schedule": "cooldown"}
            options = recipe | {"model": model | {"trainable": "all"}, "train": train}
            alone = Candidate(f"{row.name}, all of it trained,", options, weights=row.name, most=plans.ENOUGH)
            if many:
                words, changed, wants = "with MixUp and CutMix", {"train": train | plans.MIXED}, plans.MIXED_PASSES
            else:
                larger = {"model": options["model"] | {"image_size": plans.LARGER}}
                words, changed, wants = f"at {plans.LARGER} px", larger, plans.LARGER_PASSES
            richer = replace(alone, name=f"{alone.name} {words},", options=options | changed, wants=wants)
            return [alone, richer] if many or side >= plans.LARGER else [alone]
    return []


def fitting(config: RunConfig, candidates: Sequence[Candidate], until: float) -> PlannedRun:
    """The run of the best of the candidates, and what fits its end to the time; one that was stopped has its plan."""
    for candidate in candidates:
        stopped = find_same_options(filled_in(config, candidate.options), planned=True)
        if stopped is not None:
            requested = from_dict(RunConfig, read_json(stopped / "meta.json")["requested"])
            return PlannedRun(replace(requested, output=config.output))
    with console.quiet():
        plan, pace = plan_for(config, candidates, until)
    console.say(f"{plan.epochs:g} epochs: {'; '.join(plan.reasons)}", label="plan")
    chosen = filled_in(config, plan.candidate.options).changed(train={"epochs": plan.epochs})
    return PlannedRun(chosen, partial(Fit, deadline=Deadline(until, pace, most=plan.candidate.most)))


def plan_for(config: RunConfig, candidates: Sequence[Candidate], until: float) -> tuple[Plan, Pace]:
    """Measure one candidate after the other, until one would see the images too seldom."""
    paces, epochs = [], []
    for candidate in candidates:
        paces.append(measure(trial(config, candidate)))
        epochs.append(paces[-1].epochs(until - time.monotonic()))
        if epochs[-1] < candidate.wants:
            break
    plan = plans.choose(candidates[: len(epochs)], epochs)
    return plan, paces[candidates.index(plan.candidate)]


def better(later: RunResult, earlier: RunResult, *, favoured: bool) -> bool:
    """Whether the later of two runs is the one to keep: where it leads, by the validation images that one alone has
    right, by more than one standard error (McNemar 1947), or if `favoured` where it is no more than one image behind.
    """
    gains = [now - before for now, before in zip(hits(later.run_dir), hits(earlier.run_dir), strict=True)]
    lead, error = sum(gains), sum(map(abs, gains)) ** 0.5
    return lead > error or (favoured and lead >= -1)


def trial(config: RunConfig, candidate: Candidate) -> Job:
    return prepare(filled_in(config, candidate.options).changed(train={"epochs": 1}))


def hits(run_dir: Path) -> list[int]:
    """For each validation image, in stored order, 1 where the best weights of a finished run are right, else 0."""
    path = run_dir / "eval" / "val_predictions.npz"
    if path.is_file():
        with np.load(path, allow_pickle=False) as file:
            return (file["labels"] == file["predicted"]).astype(int).tolist()
    rows = read_rows(path.with_suffix(".csv"), ("label", "predicted"))
    return [int(row["label"] == row["predicted"]) for row in rows]
