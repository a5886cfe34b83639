"""Time that a comparison takes on this machine, and the epochs with which it takes the time that a person has."""

import time
from collections.abc import Sequence

import torch

from comparison.request.plan import ComparisonPlan, PlannedArm
from datasets.opened import OpenedImages
from trainers.budget.pace import Pace, measure
from trainers.reporting import console
from trainers.setup import prepare

WORTH_MEASURING = 1e13
"""Operations of all runs from which a measurement of pace is worth its seconds."""

REPORT = 10.0
"""Seconds that the tables, figures and pages at the end take."""


def settle_time(plan: ComparisonPlan) -> None:
    """Fit the epochs of all runs to `--minutes`, and say how long those that are left take where that is not a
    moment."""
    left = sum(runs_left(plan, place, arm) for place in range(len(plan.request.labels)) for arm in plan.arms)
    work = plan.all_work * left / plan.number_of_runs
    if not left or (plan.until is None and work < WORTH_MEASURING):
        return
    if plan.sharing.threads is not None:
        torch.set_num_threads(plan.sharing.threads)
    paces = plan.paces = [pace_of(arm, plan.images) for arm in plan.arms]
    if plan.until is not None and not plan.continued:
        seconds = plan.until - time.monotonic() - REPORT
        plan.epochs = epochs_within(plan, paces, seconds * plan.sharing.jobs)
    seconds = seconds_left(plan, paces) / plan.sharing.jobs
    if seconds >= 90:
        which = f"the {left} of " * (left < plan.number_of_runs), " that are left" * (left < plan.number_of_runs)
        runs = f"{plan.number_of_runs} runs".join(which)
        console.say(f"about {console.duration(seconds)} for {runs}", label="time")


def pace_of(arm: PlannedArm, images: OpenedImages) -> Pace:
    with console.quiet():
        return measure(prepare(arm.config.changed(data={"allow_seen": True}), images=images))


def runs_left(plan: ComparisonPlan, place: int, arm: PlannedArm) -> int:
    """Count the runs of an arm under a condition that are still to be trained."""
    return max(0, plan.runs_of(arm) - plan.finished_runs(place, arm))


def seconds_left(plan: ComparisonPlan, paces: Sequence[Pace]) -> float:
    """Estimate the seconds of all runs that are still to be trained, one after the other."""
    seconds = 0.0
    for place in range(len(plan.request.labels)):
        for number, arm in enumerate(plan.arms):
            runs, some = runs_left(plan, place, arm), plan.finished_runs(place, arm) > 0
            seconds += sum(seconds_of_run(plan, paces, (place, number), first=not some and n == 0) for n in range(runs))
    return seconds


def seconds_of_run(plan: ComparisonPlan, paces: Sequence[Pace], cell: tuple[int, int], *, first: bool) -> float:
    """Estimate the seconds of one run under a condition; the `first` of an arm whose features are kept leaves them to
    its others."""
    place, number = cell
    pace, share = paces[number], plan.train_images[place] / max(plan.train_images)
    kept = plan.arms[number].resolved.train.cache_features == "on" and not first
    return pace.fixed - kept * pace.decoding + plan.epochs[place] * seconds_of_epoch(pace, share)


def seconds_of_epoch(pace: Pace, share: float) -> float:
    """Estimate the seconds of an epoch on this share of the training images."""
    return share * pace.step * pace.steps_per_epoch + pace.validation


def fixed_and_passing(plan: ComparisonPlan, paces: Sequence[Pace]) -> tuple[float, float]:
    """Seconds of all runs that do not depend on their epochs, and those that do."""
    fixed = passing = 0.0
    for images, epochs in zip(plan.train_images, plan.epochs, strict=True):
        for arm, pace in zip(plan.arms, paces, strict=True):
            share = images / max(plan.train_images)
            fixed += plan.runs_of(arm) * pace.fixed
            if arm.resolved.train.cache_features == "on":  # the first run leaves its features to the others
                fixed -= (plan.runs_of(arm) - 1) * pace.decoding
            passing += plan.runs_of(arm) * epochs * seconds_of_epoch(pace, share)
    return fixed, passing


def epochs_within(plan: ComparisonPlan, paces: Sequence[Pace], seconds: float) -> list[int | float]:
    """Epochs for each condition, in the proportions of the plan, so that all runs take so many seconds together."""
    fixed, passing = fixed_and_passing(plan, paces)
    scale = max(0.0, seconds - fixed) / passing
    return [max(0.1, round(scale * epochs, 2)) for epochs in plan.epochs]
