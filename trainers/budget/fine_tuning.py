"""The training that fits the time best: the richest candidate that sees the images often enough, and for how long."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from datasets.opened import OpenedImages
from trainers.auto_resume import find_same_options
from trainers.budget.candidates import AS_GIVEN, Candidate
from trainers.budget.deadline import Deadline, DeadlineHandler
from trainers.budget.pace import Pace, measure
from trainers.config import RunConfig, from_dict
from trainers.options.recipes import filled_in
from trainers.reporting import console
from trainers.run import Handler
from trainers.setup import RunSetup, prepare
from trainers.storage.run_folder import read_json

LEAST_STEPS = 100
"""Minimum steps for fine-tuning after a probe (or one epoch, if that is fewer): in fewer it would not come near it."""


@dataclass(frozen=True)
class PlannedRun:
    """The options of a run, and its handlers (see `trainers.run.train`)."""

    config: RunConfig
    handlers: Sequence[Handler] = ()
    favoured: bool = False
    """True if it is kept where the validation images cannot tell it from the run before it."""
    mixes: bool = False
    """True if it is a mixture of those before it, which is then kept."""


@dataclass(frozen=True)
class Plan:
    """Plan for the time there is, and its reasons."""

    candidate: Candidate
    epochs: int | float
    reasons: tuple[str, ...]


def choose(candidates: Sequence[Candidate], epochs: Sequence[float]) -> Plan:
    """The richest candidate that sees the images often enough in the time; `epochs` says how often each would."""
    chosen = max((n for n, candidate in enumerate(candidates) if epochs[n] >= candidate.wants), default=0)
    best, enough = candidates[chosen], epochs[chosen] > candidates[chosen].most
    planned = rounded(min(epochs[chosen], best.most))
    reasons = [
        f"train {best.name} for {planned:g} epochs, {'all that it gains by' if enough else 'all there is time for'}"
    ]
    if chosen + 1 < len(candidates) and not enough:
        larger = candidates[chosen + 1]
        reasons.append(
            f"{larger.name} needs {larger.wants:g} epochs, and there is time for {rounded(epochs[chosen + 1]):g}"
        )
    return Plan(best, planned, tuple(reasons))


def rounded(epochs: float) -> int | float:
    """Whole epochs where that changes the length by little, else hundredths of one."""
    return int(epochs) if epochs >= 20 else max(0.01, int(100 * epochs) / 100)


def plan_fine_tuning(
    config: RunConfig, candidates: Sequence[Candidate], until: float, images: OpenedImages, *, least: float = 0
) -> PlannedRun | None:
    """Plan the best of the candidates that fits before `until`; a run that was stopped goes on by its own plan.

    None: there is time for neither one pass over the images nor `least` steps."""

    def with_deadline(options: RunConfig, pace: Pace, candidate: Candidate) -> PlannedRun:
        deadline = Deadline(until, pace, most=candidate.most)
        return PlannedRun(options, [lambda trainer: DeadlineHandler(trainer.state.run, deadline)])

    for candidate in candidates:
        stopped = find_same_options(filled_in(config, candidate.options), planned=True)
        if stopped is not None:
            requested = from_dict(RunConfig, read_json(stopped / "meta.json")["requested"])
            with console.quiet():
                pace = measure(trial(requested, AS_GIVEN, images))
            return with_deadline(replace(requested, output=config.output), pace, candidate)
    if not candidates:
        return None
    with console.quiet():
        plan, pace = plan_for(config, candidates, until, images)
    if plan.epochs < min(1, least / pace.steps_per_epoch):
        too_few = f"{plan.candidate.name} would get {plan.epochs:g} epochs"
        console.say(f"no time is left to train more: {too_few}", label="plan")
        return None
    console.say("; ".join(plan.reasons), label="plan")
    chosen = filled_in(config, plan.candidate.options).changed(train={"epochs": plan.epochs})
    return with_deadline(chosen, pace, plan.candidate)


def plan_for(
    config: RunConfig, candidates: Sequence[Candidate], until: float, images: OpenedImages
) -> tuple[Plan, Pace]:
    """Measure one candidate after the other, until one would see the images too seldom."""
    paces, epochs = [], []
    for candidate in candidates:
        paces.append(measure(trial(config, candidate, images)))
        epochs.append(paces[-1].epochs(until - time.monotonic()))
        if epochs[-1] < candidate.wants:
            break
    plan = choose(candidates[: len(epochs)], epochs)
    return plan, paces[candidates.index(plan.candidate)]


def trial(config: RunConfig, candidate: Candidate, images: OpenedImages) -> RunSetup:
    return prepare(filled_in(config, candidate.options).changed(train={"epochs": 1}), images=images)
