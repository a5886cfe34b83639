"""All sentences of a comparison: the plan, the protocol, the warnings, who wins, and how sure that is."""

import math
import re
from collections.abc import Iterator, Sequence
from itertools import combinations

from common.shell import command, typed
from common.text import pluralise, printable
from comparison.plan import ComparisonPlan
from comparison.results import CONVERGENCE, ArmResult, ConditionResult, Pair, images_seen
from comparison.runs import Comparison, labels_text
from datasets.config import named_set
from datasets.copies import units_of
from datasets.shared_split import PRETRAINED_ON, copies_of_training_images, have_seen
from trainers.engine.handlers import metric_of
from trainers.reporting import console
from trainers.statistics import LEVEL, Clusters, Spread, numbered
from vit.config import WHAT_THEY_ARE

ASSUMED = Spread(images=0.05, runs=0.05, seeds=0.01**2)
"""Assumption before the first run: two runs disagree on a tenth of the images, and seeds spread by a point."""


def announce_plan(plan: ComparisonPlan) -> None:
    """Print one screen before the first run."""
    request, split = plan.request, plan.split
    held_out = "; half of val was held out as test" if split.halved else ""
    rows = [("data", f"{request.base.data.source}: {sizes(plan)} images{held_out}")]
    for arm in plan.arms:
        size = f"{arm.parameters:,} parameters, {arm.trainable:,} trainable, {arm.flops / 1e9:.2g} GFLOPs"
        rows.append(("arm", f"{arm.name}: {size}, lr {rates_text(plan.rates(arm))}"))
    for labels, images, epochs in zip(request.labels, plan.train_images, plan.epochs, strict=True):
        rows.append(("budget", f"{labels_text(labels)}: {images:,} images x {pluralise(epochs, 'epoch')}"))
    claims = math.comb(len(plan.arms), 2) * len(request.labels)
    clusters = units_of(split.samples, split.samples.indices("test"))
    beside = "one at a time" if plan.sharing.jobs == 1 else f"{plan.sharing.jobs} at a time"
    threads = "" if plan.sharing.threads is None else f", {pluralise(plan.sharing.threads, 'thread')} each"
    rows += [
        (
            "runs",
            f"{plan.number_of_runs} (seeds {', '.join(map(str, plan.seeds))}), {beside} on {plan.device}{threads}",
        ),
        ("power", power_line(len(clusters), request.seeds, assumed(clusters), claims=claims)),
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
    last = "The last epoch is kept"
    kept = last if plan.select == "last" else f"The epoch is chosen by validation {plan.select} alone"
    yield f"{kept}; its weights are scored on the test images once, by the evaluator that training uses."


def known_problems(plan: ComparisonPlan) -> Iterator[str]:
    """Yield what a reader of the result must know about the data."""
    data = plan.request.base.data
    if any(have_seen(arm.resolved.model.weights, data.source) for arm in plan.arms):
        yield f"{PRETRAINED_ON[data.source]}: a pretrained arm may have seen the test images"
    yield from plan.seen
    if not plan.tuned:
        yield "learning rates were not tuned, so the result may depend on them; --tune-lr on tries others"
    copies = copies_of_training_images(plan.split.samples, data.root)
    if copies is None:
        yield f"too many images to look for copies between train and test; {command('check', *named_set(data))} does"
    elif copies:
        images = plan.split.size("test")
        yield f"{len(copies)} of {images} test images are near-duplicates of training images, first {copies[0]!r}"


def sizes(plan: ComparisonPlan) -> str:
    return ", ".join(f"{plan.split.size(name):,} {name}" for name in ("train", "val", "test"))


def rates_text(rates: Sequence[float | None]) -> str:
    return ", ".join("default" if rate is None else f"{rate:g}" for rate in rates)


def headline(comparison: Comparison, result: ConditionResult) -> str:
    """Return the verdict on all arms in one sentence: who wins, or which model to use."""
    if len(result.arms) == 2:
        return pair_sentence(result.pairs[0], scored=comparison.scored)
    return which_to_use(result, scored=comparison.scored)


def pair_sentence(pair: Pair, *, scored: str = "test") -> str:
    """Return the verdict on two arms: a winner and by how much, or what would decide. `scored` names the images."""
    difference, sign = pair.difference, 1 if pair.difference.mean >= 0 else -1
    better, worse = (pair.second, pair.first)[::sign]
    shares = [f"{100 * arm.accuracies.mean():.1f} %" for arm in (better, worse)]
    low, mean, high = sorted(100 * sign * value for value in pair.interval)
    images = images_text(difference.images, difference.groups, scored)
    found = f"{mean:+.1f} points, 95 % interval {low:.1f} to {high:.1f}"
    found += f"; {images}, {pluralise(difference.seeds, 'seed')}"
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
    if pair.mark in ("better", "worse") and difference.seeds == 1:
        sentence += "; one seed says nothing about training noise"
    first, second = images_seen(pair.first), images_seen(pair.second)
    if first != second:
        sentence += f"; but {pair.second.name} saw {second:,} training images, {pair.first.name} {first:,}"
    return f"{sentence}."


def which_to_use(result: ConditionResult, *, scored: str) -> str:
    """Name the arm with the highest accuracy, and the arms that are, or may be, as good."""
    arms = result.arms
    best, second, *_ = sorted(range(len(arms)), key=lambda place: -arms[place].scores["accuracy"])
    beside: dict[str, list[ArmResult]] = {"same": [], "unclear": []}
    for places, pair in zip(combinations(range(len(arms)), 2), result.pairs, strict=True):
        if best in places and pair.mark in beside:
            beside[pair.mark].append(arms[sum(places) - best])
    images = pluralise(arms[best].scores["images"], f"{scored} image")
    text = f"Use {arms[best].arm.name} ({_share(arms[best])} of {images} right)"
    if beside["same"]:
        text += f" or {_listed(beside['same'])}, which {'is' if len(beside['same']) == 1 else 'are'} as good"
    if beside["unclear"]:
        text += f", {'and' if beside['same'] else 'which'} may be no better than {_listed(beside['unclear'])}"
    if not any(beside.values()):
        more = 100 * (arms[best].scores["accuracy"] - arms[second].scores["accuracy"])
        text += f": {more:.1f} points more than {'the next, ' * (len(arms) > 2)}{arms[second].arm.name}"
    return f"{text}."


def _share(row: ArmResult) -> str:
    return f"{100 * row.scores['accuracy']:.1f} %"


def _listed(rows: list[ArmResult]) -> str:
    *others, last = [f"{row.arm.name} ({_share(row)})" for row in rows]
    return f"{', '.join(others)} or {last}" if others else last


def images_text(images: int, groups: float, scored: str) -> str:
    """Describe the images, such as `300 test images`, or `300 test images in 60 groups`."""
    text = pluralise(images, f"{scored} image")
    return text if groups == images else f"{text} in {pluralise(round(groups), 'group')}"


def seeds_or_images_needed(pair: Pair) -> str:
    """Say how many seeds, or images, would decide a difference like this one; empty for one seed."""
    found = pair.found
    if pair.mark != "unclear" or not pair.difference.mean or found.seeds == 1:
        return ""

    def decides(seeds: int, images: int) -> bool:
        return abs(found.centre) > found.spread.half_width(seeds, images, claims=pair.claims)

    sizes = (int(found.images * 1.25**n) for n in range(100))
    seeds = next((k for k in range(found.seeds, 101) if decides(k, found.images)), None)
    images = next((size for size in sizes if size <= 1_000_000 and decides(found.seeds, size)), None)
    rounded = f"{float(f'{images or 0:.2g}'):,.0f} images{' in such groups' * (found.groups != found.images)}"
    ways = [f"{seeds} seeds"] * (seeds is not None) + [rounded] * (images is not None)
    return f"it would take about {' or '.join(ways)}" if ways else "100 seeds or a million images would not do either"


def not_converged(results: Sequence[ConditionResult]) -> Iterator[str]:
    """Yield for each condition the arms that still improved at the end, and the option that trains them longer."""
    for result in results:
        rising = [row for row in result.arms if row.scores["improvement"] is not None]
        if rising:
            where = f" with {result.condition.title}" * (len(results) > 1)
            arms = ", ".join(f"{row.arm.name} (+{100 * row.scores['improvement']:.1f} points)" for row in rising)
            longer = f"--images-seen {2 * max(row.costs['images_seen'] for row in rising)} trains longer"
            yield f"not converged{where}, by the last fifth of the training: {arms}; {longer}"


def assumed(clusters: Clusters) -> Spread:
    """Return `ASSUMED` for images in these groups (N,), whose images are all right or all wrong."""
    sizes = numbered(clusters, len(clusters))[1]
    most, groups = float((sizes**2).sum()) / len(clusters), len(sizes) / len(clusters)
    return Spread(most * ASSUMED.images, most * ASSUMED.runs, ASSUMED.seeds, groups)


def power_line(images: int, seeds: int, spread: Spread = ASSUMED, *, scored: str = "test", claims: int = 1) -> str:
    """Say what difference is found with a power of 80 %, if there is one."""
    what = f"{images_text(images, spread.groups * images, scored)} and {pluralise(seeds, 'seed')}"
    points = 100 * spread.smallest_difference(seeds, images, claims=claims)
    together = f", as one of {claims} comparisons" * (claims > 1)
    if points > 100:
        return f"{what} are too few to detect any difference 80 % of the time{together}"
    return f"{what} detect a difference of {points:.1f} points or more 80 % of the time{together}"


def notes(comparison: Comparison, results: Sequence[ConditionResult]) -> Iterator[str]:
    """Yield what was scored, what the columns of the report mean, and what is judged together."""
    condition, several = comparison.conditions[0], len(results) > 1
    design, claims = condition.design, sum(len(result.pairs) for result in results)
    yield f"scored: {design.images:,} {comparison.scored} images, weights of the best validation epoch"
    yield "accuracy: mean ± standard deviation over n seeds"
    yield "95 % interval: range in which one run's true accuracy lies (Wilson), the lowest and highest end of all runs"
    yield "95 % right on: share of the scored images, each run's surest ones, on which 95 % of its answers are right"
    if not design.alone:
        yield (
            f"groups: the {design.images:,} scored images come {design} that stand alone"
            f"{f', with {condition.title}' * several}; intervals and tests draw whole groups, of which an image that "
            "stands alone is one"
        )
    if any(row.scores["improvement"] is not None for result in results for row in result.arms):
        yield f"^ not converged: validation accuracy still rose {CONVERGENCE}"
    for result in results:
        found = result.pairs[0].found
        seen = power_line(found.images, found.seeds, found.spread, scored=comparison.scored, claims=claims)
        yield f"measured power{f', {result.condition.title}' * several}: {seen}"
    models = {run.config["model"]["name"] for arm in condition.arms for run in arm.runs}
    yield from (f"{model}: {WHAT_THEY_ARE[model]}" for model in sorted(models & WHAT_THEY_ARE.keys()))
    if claims > 1:
        yield (
            f"the {claims} comparisons of this report are judged together (Holm's correction): where no arm is better "
            "than another, at most 5 % of such reports name a winner"
        )
        yield (
            "not corrected, each for one comparison alone: the 95 % intervals: an interval may leave out 0 where the "
            "verdict names no winner"
        )
    if several:
        yield "labels: training images per class"


def card(comparison: Comparison, results: Sequence[ConditionResult]) -> str:
    """Return the verdict as Markdown: sentences, the warnings, and where the rest is."""
    lines = []
    for result in results:
        where = f"{result.condition.title}: " * (len(results) > 1)
        lines.append(f"**{escaped(where + headline(comparison, result))}**")
        lines += [
            escaped(pair_sentence(pair, scored=comparison.scored)) for pair in result.pairs if len(result.arms) > 2
        ]
    lines += [f"Warning: {escaped(line)}" for line in (*comparison.warnings, *not_converged(results))]
    return "\n\n".join([*lines, "All columns and the protocol are in report.html, in the folder of the comparison."])


def escaped(text: str) -> str:
    """Return text that Markdown, and HTML within it, shows as it is."""
    text = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#])", r"\\\1", text)
