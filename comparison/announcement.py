"""Say what a comparison will do: its plan, its protocol, and what to doubt from the start."""

import math
from collections.abc import Iterator
from itertools import groupby

import numpy as np

from common.shell import command
from common.text import pluralise
from comparison.plan import ComparisonPlan
from comparison.results import labels_text
from comparison.shared_split import copies_of_training_images
from comparison.timing import whole_time
from comparison.verdict import images_text
from datasets.built_in import have_learnt
from datasets.config import named_set
from datasets.copies import units_of
from trainers.config import metric_of
from trainers.reporting import console
from trainers.statistics import Clusters, Spread, numbered

ASSUMED = Spread(images=0.05, runs=0.05, seeds=0.01**2)
"""Assumption before the first run: two runs disagree on a tenth of the images, and seeds spread by a point."""


def announce_plan(plan: ComparisonPlan) -> None:
    """Print one screen before the first run."""
    request, split = plan.request, plan.split
    held_out = "; half of val was held out as test" if split.halved else ""
    console.say(f"{request.base.data.source}: {sizes(plan)} images{held_out}", label="data")
    for parameters, arms in groupby(plan.arms, key=lambda arm: arm.parameters):
        console.say(f"{', '.join(arm.name for arm in arms)}: {parameters:,} parameters", label="models")
    budgets = [
        f"{'all' if labels is None else f'{labels} a class'}: {images:,} images {passes_text(plan, place)}"
        for place, (labels, images) in enumerate(zip(request.labels, plan.train_images, strict=True))
    ]
    console.say("; ".join(budgets), label="budget")
    if plan.given_up:
        more = f"; --minutes {plan.minutes_for_all} have it" if plan.minutes_for_all else ""
        console.say(f"{request.minutes:g} min leave none for {', '.join(plan.given_up)}{more}", label="time")
    together = "one at a time" if plan.sharing.jobs == 1 else f"{plan.sharing.jobs} at a time"
    threads = "" if plan.sharing.threads is None else f", {pluralise(plan.sharing.threads, 'thread')} each"
    tuned = f"; of the learning rates {_rates(plan)} each model takes the best on val" if plan.grid else ""
    seconds = whole_time(plan)
    time = f" in about {console.duration(seconds)}" if seconds else ", not measured"
    console.say(f"{plan.number_of_runs}{time}, {together} {plan.where}{threads}{tuned}", label="runs")
    clusters = units_of(split.samples, split.samples.indices("test"))
    claims = math.comb(len(plan.arms), 2) * len(request.labels)
    console.say(power_line(len(clusters), len(plan.seeds), assumed(clusters), claims=claims), label="power")
    console.say(f"{plan.folder}{' (continued)' if plan.continued else ''}", label="folder")


def passes_text(plan: ComparisonPlan, place: int) -> str:
    """Say how often each run takes the images of a label budget."""
    passes = [plan.passes(cell) for cell in plan.trained if cell[0] == place] or [1.0]
    if plan.request.minutes is None:
        return f"x {pluralise(plan.epochs[place][0], 'epoch')}"
    low, high = min(passes), max(passes)
    numbers = f"{low:.3g} to {high:.3g} passes" if low < high else pluralise(float(f"{low:.3g}"), "pass")
    return f"x about {numbers} in equal time"


def protocol(plan: ComparisonPlan) -> Iterator[str]:
    """Yield how the models were treated, one sentence each."""
    request, split = plan.request, plan.split
    yield f"All runs use one split, saved as {plan.split_file.name}: {sizes(plan)} images."
    if split.halved:
        yield "The set has no test split: half of its validation images, drawn per class, were held out as test images."
    if request.minutes is not None:
        yield (
            f"All runs together had {request.minutes:g} minutes. Runs that train had equal time; the images that they"
            " saw are in the table."
        )
    for labels, images, (epochs, *_) in zip(request.labels, plan.train_images, plan.epochs, strict=True):
        if request.minutes is None:
            yield (
                f"With {labels_text(labels, every='all training labels')} every run takes"
                f" {pluralise(epochs, 'epoch')}: {round(images * epochs):,} images seen, the same for all models."
            )
    if plan.grid:
        yield (
            f"Every model tried the peak learning rates {_rates(plan)} at seed {plan.seeds[0]}; the one with "
            f"the best validation {metric_of(plan.select)} (ties: lower loss) served its other seeds too."
        )
    else:
        yield f"Learning rates are the defaults or as given, not tuned ({plan.why_not_tuned})."
    given = [arm.name for arm in plan.arms if arm.config.train.lr is not None]
    if given:
        yield f"The learning rate of {', '.join(given)} was given, not tuned."
    last = "The last epoch is kept"
    kept = last if plan.select == "last" else f"The epoch is chosen by validation {plan.select} alone"
    yield f"{kept}; its weights are scored on the test images once, by the evaluator that training uses."


def known_problems(plan: ComparisonPlan) -> Iterator[str]:
    """Yield what a reader of the result must know about the data."""
    data = plan.request.base.data
    learnt = {have_learnt(arm.resolved.model.weights, data.source) for arm in plan.arms} - {""}
    yield from (f"{how}: a pretrained model may have been trained on the test images" for how in learnt)
    yield from plan.seen
    if not plan.grid:
        more = "--tune-lr on tries" if plan.request.minutes is None else "more minutes try"
        yield f"learning rates were not tuned; {more} several"
    copies = copies_of_training_images(plan.split.samples, data.root)
    if copies is None:
        yield f"too many images to search train and test for duplicates; {command('check', *named_set(data))} does"
    elif copies:
        images = plan.split.size("test")
        yield f"{len(copies)} of {images} test images are near-duplicates of training images, first {copies[0]!r}"


def sizes(plan: ComparisonPlan) -> str:
    return ", ".join(f"{plan.split.size(name):,} {name}" for name in ("train", "val", "test"))


def _rates(plan: ComparisonPlan) -> str:
    return ", ".join(np.format_float_positional(rate, trim="-") for rate in plan.grid)


def assumed(clusters: Clusters) -> Spread:
    """Return `ASSUMED` for groups (N,), whose images are all right or all wrong."""
    counts = numbered(clusters, len(clusters))[1]
    most, groups = float((counts**2).sum()) / len(clusters), len(counts) / len(clusters)
    return Spread(most * ASSUMED.images, most * ASSUMED.runs, ASSUMED.seeds, groups)


def power_line(images: int, seeds: int, spread: Spread = ASSUMED, *, claims: int = 1) -> str:
    """Say what difference is found with a power of 80 %, if there is one."""
    points = 100 * spread.smallest_difference(seeds, images, claims=claims)
    found = f"80% power for {points:.1f} points" if points <= 100 else "too few to find any difference"
    sizes = [images_text(images, spread.groups * images, "test"), pluralise(seeds, "seed")]
    return f"{found}: {', '.join([*sizes, *([f'{claims} comparisons'] if claims > 1 else [])])}"
