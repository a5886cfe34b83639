"""All sentences of a comparison: the plan, the protocol, the warnings, who wins, and how sure that is."""

import math
import re
from collections.abc import Iterator, Sequence
from itertools import combinations, groupby

import numpy as np

from common.shell import command
from common.text import pluralise, printable
from comparison.plan import ComparisonPlan
from comparison.results import CONVERGENCE, ArmResult, ConditionResult, Pair, images_seen
from comparison.runs import Comparison, labels_text
from datasets.config import named_set
from datasets.copies import units_of
from datasets.shared_split import PRETRAINED_ON, copies_of_training_images, have_seen
from trainers.config import metric_of
from trainers.reporting import console
from trainers.statistics import LEVEL, Clusters, Spread, numbered

ASSUMED = Spread(images=0.05, runs=0.05, seeds=0.01**2)
"""Assumption before the first run: two runs disagree on a tenth of the images, and seeds spread by a point."""


def announce_plan(plan: ComparisonPlan) -> None:
    """Print one screen before the first run."""
    request, split = plan.request, plan.split
    held_out = "; half of val was held out as test" if split.halved else ""
    console.say(f"{request.base.data.source}: {sizes(plan)} images{held_out}", label="data")
    for parameters, arms in groupby(plan.arms, key=lambda arm: arm.parameters):
        console.say(f"{', '.join(arm.name for arm in arms)}: {parameters:,} parameters", label="arms")
    budgets = [
        f"{'all' if labels is None else f'{labels} a class'}: {images:,} images x {pluralise(epochs, 'epoch')}"
        for labels, images, epochs in zip(request.labels, plan.train_images, plan.epochs, strict=True)
    ]
    console.say("; ".join(budgets), label="budget")
    together = "one at a time" if plan.sharing.jobs == 1 else f"{plan.sharing.jobs} at a time"
    threads = "" if plan.sharing.threads is None else f", {pluralise(plan.sharing.threads, 'thread')} each"
    tuned = f"; of the learning rates {_rates(plan)} each arm takes the best on val" if plan.grid else ""
    seconds = plan.all_seconds / plan.sharing.jobs
    time = f" in about {console.duration(seconds)}" if seconds else ", not measured"
    console.say(f"{plan.number_of_runs}{time}, {together} {plan.where}{threads}{tuned}", label="runs")
    clusters = units_of(split.samples, split.samples.indices("test"))
    claims = math.comb(len(plan.arms), 2) * len(request.labels)
    console.say(power_line(len(clusters), request.seeds, assumed(clusters), claims=claims), label="power")
    console.say(f"{plan.folder}{' (continued)' if plan.continued else ''}", label="folder")


def protocol(plan: ComparisonPlan) -> Iterator[str]:
    """Yield how the arms were treated, one sentence each."""
    request, split = plan.request, plan.split
    yield f"All runs use one split, saved as {plan.split_file.name}: {sizes(plan)} images."
    if split.halved:
        yield "The set has no test split: half of its validation images, drawn per class, were held out as test images."
    for labels, images, epochs in zip(request.labels, plan.train_images, plan.epochs, strict=True):
        yield (
            f"With {labels_text(labels, every='all training labels')} every run takes {pluralise(epochs, 'epoch')}: "
            f"{round(images * epochs):,} images seen, the same for all arms."
        )
    if plan.grid:
        yield (
            f"Every arm tried the peak learning rates {_rates(plan)} at seed {plan.seeds[0]}; the one with "
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
    if any(have_seen(arm.resolved.model.weights, data.source) for arm in plan.arms):
        yield f"{PRETRAINED_ON[data.source]}: a pretrained arm may have been trained on the test images"
    yield from plan.seen
    if not plan.grid:
        yield "learning rates were not tuned; --tune-lr on tries several"
    copies = copies_of_training_images(plan.split.samples, data.root)
    if copies is None:
        yield f"too many images to look for copies between train and test; {command('check', *named_set(data))} does"
    elif copies:
        images = plan.split.size("test")
        yield f"{len(copies)} of {images} test images are near-duplicates of training images, first {copies[0]!r}"


def sizes(plan: ComparisonPlan) -> str:
    return ", ".join(f"{plan.split.size(name):,} {name}" for name in ("train", "val", "test"))


def _rate(rate: float) -> str:
    return np.format_float_positional(rate, trim="-")


def _rates(plan: ComparisonPlan) -> str:
    return ", ".join(map(_rate, plan.grid))


def headline(comparison: Comparison, result: ConditionResult) -> str:
    """Return the verdict on all arms in one sentence: who wins, or which model to use."""
    if len(result.arms) == 2:
        return pair_sentence(result.pairs[0], scored=comparison.scored)
    return which_to_use(result, scored=comparison.scored)


def pair_sentence(pair: Pair, *, scored: str = "test") -> str:
    """Return the verdict on two arms: a winner and by how much, or what would decide. `scored` names the images."""
    difference, sign = pair.difference, 1 if pair.difference.mean >= 0 else -1
    better, worse = (pair.second, pair.first)[::sign]
    shares = [f"{arm.accuracies.mean():.1%}" for arm in (better, worse)]
    low, mean, high = sorted(100 * sign * value for value in pair.interval)
    images = images_text(difference.found.images, difference.found.groups, scored)
    found = f"{mean:+.1f} points, 95% interval {low:.1f} to {high:.1f}"
    found += f"; {images}, {pluralise(difference.found.seeds, 'seed')}"
    if difference.identical:
        sentence = f"No difference: {pair.first.name} and {pair.second.name} are right on the same of {images}"
    elif pair.mark == "unclear":
        sentence = f"No clear winner: {better.name} {shares[0]}, {worse.name} {shares[1]} ({found})"
    else:
        sentence = f"{better.name} wins: {shares[0]} against {shares[1]} for {worse.name} ({found})"
    if pair.mark == "unclear" and pair.adjusted_p is not None and difference.p <= LEVEL:
        sentence += f", as the {pair.claims} comparisons are judged together (Holm's p = {pair.adjusted_p:.2g})"
    if needed := seeds_or_images_needed(pair):
        sentence += f"; {needed}"
    if pair.mark in ("better", "worse") and difference.found.seeds == 1:
        sentence += "; one seed says nothing about training noise"
    first, second = images_seen(pair.first), images_seen(pair.second)
    if first != second:
        sentence += f"; but {pair.second.name} saw {second:,} training images, {pair.first.name} {first:,}"
    return f"{sentence}."


def which_to_use(result: ConditionResult, *, scored: str) -> str:
    """Name the arm with the highest accuracy, and the arms that are, or may be, as good."""
    arms = result.arms
    best, second, *_ = sorted(range(len(arms)), key=lambda place: -arms[place].scores["accuracy"])
    others: dict[str, list[ArmResult]] = {"same": [], "unclear": []}
    for places, pair in zip(combinations(range(len(arms)), 2), result.pairs, strict=True):
        if best in places and pair.mark in others:
            others[pair.mark].append(arms[sum(places) - best])
    images = pluralise(arms[best].scores["images"], f"{scored} image")
    text = f"Use {arms[best].arm.name} ({arms[best].scores['accuracy']:.1%} of {images} right)"
    if others["same"]:
        text += f" or {_listed(others['same'])}, which {'is' if len(others['same']) == 1 else 'are'} as good"
    if others["unclear"]:
        text += f", {'and' if others['same'] else 'which'} may be no better than {_listed(others['unclear'])}"
    if not any(others.values()):
        more = 100 * (arms[best].scores["accuracy"] - arms[second].scores["accuracy"])
        text += f": {more:.1f} points more than {'the next, ' * (len(arms) > 2)}{arms[second].arm.name}"
    return f"{text}."


def _listed(rows: list[ArmResult]) -> str:
    *others, last = [f"{row.arm.name} ({row.scores['accuracy']:.1%})" for row in rows]
    return f"{', '.join(others)} or {last}" if others else last


def images_text(images: int, groups: float, scored: str) -> str:
    """Describe the images, such as `300 test images`, or `300 test images in 60 groups`."""
    text = pluralise(images, f"{scored} image")
    return text if groups == images else f"{text} in {pluralise(round(groups), 'group')}"


def seeds_or_images_needed(pair: Pair) -> str:
    """Say how many seeds, or images, would decide a difference like this one; empty for one seed."""
    found = pair.difference.found
    if pair.mark != "unclear" or not pair.difference.mean or found.seeds == 1:
        return ""

    def decides(seeds: int, images: int) -> bool:
        return abs(found.centre) > found.spread.half_width(seeds, images, claims=pair.claims)

    numbers = (int(found.images * 1.25**n) for n in range(100))
    seeds = next((k for k in range(found.seeds, 101) if decides(k, found.images)), None)
    images = next((size for size in numbers if size <= 1_000_000 and decides(found.seeds, size)), None)
    rounded = f"{float(f'{images or 0:.2g}'):,.0f} images{' in such groups' * (found.groups != found.images)}"
    ways = [f"{seeds} seeds"] * (seeds is not None) + [rounded] * (images is not None)
    return f"it would take about {' or '.join(ways)}" if ways else "100 seeds or a million images would not do either"


def not_converged(results: Sequence[ConditionResult]) -> Iterator[str]:
    """Yield for each condition the arms that took less than a pass, or still improved at the end, and what helps."""
    for result in results:
        short = [row.arm.name for row in result.arms if (row.arm.runs[0].config["train"]["epochs"] or 1) < 1]
        if short:
            yield (
                f"less than a pass over the images with {result.condition.title}: {', '.join(short)}; the verdict"
                " says little: more time, fewer arms, seeds or rates"
            )
        rising = [row for row in result.arms if row.scores["improvement"] is not None]
        if rising:
            where = f" with {result.condition.title}" * (len(results) > 1)
            arms = ", ".join(f"{row.arm.name} (+{100 * row.scores['improvement']:.1f} points)" for row in rising)
            twice = 2 * max(row.costs["images_seen"] for row in rising)
            longer = f"longer training may tell: compare --images-seen {twice}, or train --epochs"
            yield f"not converged{where}: {arms} at the end; {longer}"


def assumed(clusters: Clusters) -> Spread:
    """Return `ASSUMED` for images in these groups (N,), whose images are all right or all wrong."""
    counts = numbered(clusters, len(clusters))[1]
    most, groups = float((counts**2).sum()) / len(clusters), len(counts) / len(clusters)
    return Spread(most * ASSUMED.images, most * ASSUMED.runs, ASSUMED.seeds, groups)


def power_line(images: int, seeds: int, spread: Spread = ASSUMED, *, claims: int = 1) -> str:
    """Say what difference is found with a power of 80 %, if there is one."""
    points = 100 * spread.smallest_difference(seeds, images, claims=claims)
    found = f"80% power for {points:.1f} points" if points <= 100 else "too few to find any difference"
    sizes = [images_text(images, spread.groups * images, "test"), pluralise(seeds, "seed")]
    return f"{found}: {', '.join([*sizes, *([f'{claims} comparisons'] if claims > 1 else [])])}"


def notes(comparison: Comparison, results: Sequence[ConditionResult]) -> Iterator[str]:
    """Yield what was scored, what the columns of the report mean, and what is judged together."""
    condition, claims = comparison.conditions[0], sum(len(result.pairs) for result in results)
    design, seeds = condition.design, results[0].arms[0].scores["seeds"]
    yield (
        f"scored: {design.images:,} {comparison.scored} images with the weights of the best validation epoch; "
        f"± standard deviation over {pluralise(seeds, 'seed')}"
    )
    yield "95% interval: range in which one run's true accuracy lies (Wilson), the lowest and highest end of all runs"
    yield "95% right on: share of the images, each run's surest ones, on which 95% of its answers are right"
    yield "time and memory: medians over the seeds; memory: the peak of the process, or of the device"
    if not design.alone:
        where = f", with {condition.title}" * (len(results) > 1)
        yield (
            f"groups: the {design.images:,} scored images come {design} that stand alone{where}; intervals and tests "
            "draw whole groups"
        )
    if any(row.scores["improvement"] is not None for result in results for row in result.arms):
        yield f"^ not converged: validation accuracy still rose {CONVERGENCE}"
    if len(condition.arms) > 2:
        yield f"better, worse: than the first arm, {condition.arms[0].name}"
    if claims > 1:
        yield (
            f"verdicts: the {claims} comparisons are judged together (Holm's correction): of reports on equal arms at "
            "most 5% name a winner; the intervals are not corrected, so one may leave out 0 without a winner"
        )


def card(comparison: Comparison, results: Sequence[ConditionResult]) -> str:
    """Return the verdict as Markdown: sentences, the warnings, and where the rest is."""
    lines = []
    for result in results:
        where = f"{result.condition.title}: " * (len(results) > 1)
        lines.append(f"**{escaped(where + headline(comparison, result))}**")
    lines += [f"Warning: {escaped(line)}" for line in (*comparison.warnings, *not_converged(results))]
    lines.append("The curves are each arm's mean validation accuracy over the training images seen.")
    return "\n\n".join([*lines, "All columns and the protocol are in report.html, in the folder of the comparison."])


def escaped(text: str) -> str:
    """Return text that Markdown, and HTML within it, shows as it is."""
    text = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#])", r"\\\1", text)
