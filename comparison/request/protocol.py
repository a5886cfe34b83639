"""Description of a plan in words: one screen before the first run, and the protocol and the warnings of the report."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from common.shell import command, typed
from common.text import pluralise
from comparison.analysis.runs import labels_text
from comparison.request.plan import ComparisonPlan
from datasets.config import named_set
from datasets.copies import units_of
from datasets.shared_split import PRETRAINED_ON, copies_of_training_images, have_seen
from trainers.engine.handlers import metric_of
from trainers.reporting import console


def announce_plan(plan: ComparisonPlan) -> None:
    """Print one screen before the first run."""
    from comparison.analysis.power import (  # scipy takes a second, which no import of this file shall
        assumed,
        power_line,
    )

    request, split = plan.request, plan.split
    held_out = "; the set has no test images: half of val was held out" if split.halved else ""
    rows = [("data", f"{request.base.data.source}: {sizes(plan)}{held_out}")]
    for arm in plan.arms:
        size = f"{arm.parameters:,} parameters, {arm.trainable:,} trainable, {arm.flops / 1e9:.2g} GFLOPs per image"
        rows.append(("arm", f"{arm.name}: {size}, lr {rates_text(plan.rates(arm))}"))
    for labels, images, epochs in zip(request.labels, plan.train_images, plan.epochs, strict=True):
        budget = f"{images:,} images x {epochs:g} epochs = {round(images * epochs):,} images per run"
        rows.append(("budget", f"{labels_text(labels)}: {budget}"))
    tuned = "each arm tries every rate at its first seed" if plan.tuned else "not tuned"
    claims = math.comb(len(plan.arms), 2) * len(request.labels)
    clusters = units_of(split.samples, split.samples.indices("test"))
    seen = power_line(len(clusters), request.seeds, assumed(clusters), claims=claims)
    agree = "" if len(np.unique(clusters)) == len(clusters) else ", those of a group together,"
    beside = "one at a time" if plan.sharing.jobs == 1 else f"{plan.sharing.jobs} at a time"
    threads = plan.sharing.threads
    shared = f"{beside} on {plan.device}" + ("" if threads is None else f", {pluralise(threads, 'thread')} each")
    rows += [
        ("rates", f"{tuned} ({plan.why_tuned})"),
        ("runs", f"{plan.number_of_runs} (seeds {', '.join(map(str, plan.seeds))}), {shared}"),
        ("power", f"{seen}; assumed: runs disagree on a tenth of the images{agree} and seeds spread by a point"),
        ("folder", f"{plan.folder}{' (continued)' if plan.continued else ''}"),
        ("watch", typed("tensorboard", "--logdir", plan.folder)),
    ]
    for label, text in rows:
        console.say(text, label=label)
    console.say()


def protocol(plan: ComparisonPlan) -> Iterator[str]:
    """Yield how the arms were treated, one sentence each."""
    request, split = plan.request, plan.split
    yield f"All runs use one split, saved as {plan.split_file.name}: {sizes(plan)} images."
    if split.halved:
        yield "The set has no test split: half of its validation images, drawn per class, were held out as test images."
    for labels, images, epochs in zip(request.labels, plan.train_images, plan.epochs, strict=True):
        yield (
            f"With {labels_text(labels, every='all training labels')} ({images:,} images) every run takes {epochs:g} "
            f"epochs: {round(images * epochs):,} images seen, the same for all arms. Choices used "
            f"{split.size('val'):,} validation labels as well."
        )
    if plan.tuned:
        yield (
            f"Every arm tried the peak learning rates {rates_text(plan.grid)} at seed {plan.seeds[0]}; the one with "
            f"the best validation {metric_of(plan.select)} (ties: lower loss) served its other seeds too."
        )
    else:
        yield f"Learning rates are the defaults or as given, not tuned ({plan.why_tuned})."
    given = [arm.name for arm in plan.arms if arm.config.train.lr is not None]
    if given:
        yield f"The learning rate of {', '.join(given)} was given, not tuned."
    kept = (
        "The last epoch is kept" if plan.select == "last" else f"The epoch is chosen by validation {plan.select} alone"
    )
    yield (f"{kept}; its weights are scored on the test images once, by the evaluator that training uses.")


def known_problems(plan: ComparisonPlan) -> Iterator[str]:
    """Yield what a reader of the result must know about the data."""
    data = plan.request.base.data
    source = data.source
    if any(have_seen(arm.resolved.model.weights, source) for arm in plan.arms):
        yield f"{PRETRAINED_ON[source]}: a pretrained arm may have seen the test images"
    yield from plan.seen
    if not plan.tuned:
        yield "learning rates were not tuned, so the result may depend on them; --tune-lr on tries others"
    copies = copies_of_training_images(plan.split.samples, plan.request.base.data.root)
    if copies is None:
        yield f"too many images to look for copies between train and test; {command('check', *named_set(data))} does"
    elif copies:
        images = plan.split.size("test")
        yield f"{len(copies)} of {images} test images are near-duplicates of training images, first {copies[0]!r}"


def sizes(plan: ComparisonPlan) -> str:
    return ", ".join(f"{plan.split.size(name):,} {name}" for name in ("train", "val", "test"))


def rates_text(rates: Sequence[float | None]) -> str:
    return ", ".join("default" if rate is None else f"{rate:g}" for rate in rates)
