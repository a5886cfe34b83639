"""Say who wins a comparison, how sure that is, and what would decide."""

import re
import textwrap
from collections.abc import Iterator, Sequence
from string import ascii_uppercase
from typing import Any

import pandas as pd

from common.text import format_table, pluralise, printable
from comparison.results import CONVERGENCE, FEWEST, Comparison, by_arm, design, first_of, of_runs, rows_of
from comparison.runs import short_names
from trainers.statistics import LEVEL

WIDTH = 80
CLAIMS = ("better", "worse")
UNEQUAL = 1.1
"""Ratio of the images that two models saw from which a sentence says so: in equal time they differ a little."""
MOST_ROWS = 12
"""Rows of a table that the last screen shows."""
MOST_LINES = 20
"""Lines of the last screen; four of the terminal's 24 say where the rest is."""


def headline(condition: Comparison, *, brief: bool = False) -> str:
    """Say in a sentence who wins under one label budget, or which model to use.

    `brief`: without the number of images."""
    if len(condition.arms) == 2:
        return pair_sentence(first_of(condition.pairs))
    if (condition.pairs["verdict"] == "untrained").any():
        rows = rows_of(condition.table)
        shares = _listed([f"{row.arm} ({row.accuracy:.1%})" for row in rows], by="and")
        return f"{after_passes(min(row.passes for row in rows))}, too few to name a model to use: {shares}."
    return which_to_use(condition, brief=brief)


def pair_sentence(pair: Any) -> str:
    """Say of a row of `pairs` who wins, or what would decide."""
    found, sign = pair.estimate, 1 if pair.difference >= 0 else -1
    arms = [(pair.second, pair.accuracy_second), (pair.first, pair.accuracy_first)]
    (better, higher), (worse, lower) = arms[::sign]
    low, mean, high = sorted(100 * sign * value for value in (pair.low, pair.difference, pair.high))
    images = images_text(found.images, found.groups, pair.scored)
    points = f"{mean:+.1f} points, 95% interval {low:.1f} to {high:.1f}; {images}, {pluralise(found.seeds, 'seed')}"
    if pair.verdict == "untrained":
        shares = f"{better} {higher:.1%}, {worse} {lower:.1%}"
        return f"{after_passes(pair.passes)}, too few to name a winner: {shares} of {images}."
    if pair.verdict == "same":
        sentence = f"No difference: {pair.first} and {pair.second} are right on the same of {images}"
    elif pair.verdict == "unclear":
        sentence = f"No clear winner: {better} {higher:.1%}, {worse} {lower:.1%} ({points})"
    else:
        wins = "wins"
        if pd.notna(pair.so_far):
            wins = f"wins after {'a pass' if pair.so_far == 1 else f'{pair.so_far:.3g} passes'}"
        sentence = f"{better} {wins}: {higher:.1%} against {lower:.1%} for {worse} ({points})"
    if pair.verdict == "unclear" and pair.together > 1 and pair.p <= LEVEL:
        sentence += f", as the {pair.together} comparisons are corrected together (Holm's p = {pair.p_holm:.2g})"
    if needed := seeds_or_images_needed(pair):
        sentence += f"; {needed}"
    if pair.verdict in CLAIMS and found.seeds == 1:
        sentence += "; one seed says nothing about training noise"
    first, second = pair.images_seen_first, pair.images_seen_second
    if max(first, second) > UNEQUAL * min(first, second):
        sentence += f"; but {pair.second} saw {second:,} training images, {pair.first} {first:,}"
    return f"{sentence}."


def which_to_use(condition: Comparison, *, brief: bool = False) -> str:
    """Name the most accurate model, and those that are, or may be, as good."""
    arms = {row.arm: row for row in rows_of(condition.table)}
    best, second, *_ = sorted(arms.values(), key=lambda row: -row.accuracy)
    others: dict[str, list[str]] = {"same": [], "unclear": []}
    for pair in rows_of(condition.pairs):
        if best.arm in (pair.first, pair.second) and pair.verdict in others:
            other = arms[pair.second if pair.first == best.arm else pair.first]
            others[pair.verdict].append(f"{other.arm} ({other.accuracy:.1%})")
    images = "" if brief else f" of {pluralise(best.images, f'{best.scored} image')} right"
    text = f"Use {best.arm} ({best.accuracy:.1%}{images})"
    if others["same"]:
        text += f" or {_listed(others['same'])}, which {'is' if len(others['same']) == 1 else 'are'} as good"
    if others["unclear"]:
        text += f", {'and' if others['same'] else 'which'} may be no better than {_listed(others['unclear'])}"
    if not any(others.values()):
        more = 100 * (best.accuracy - second.accuracy)
        text += f": {more:.1f} points more than {'the next, ' * (len(arms) > 2)}{second.arm}"
    return f"{text}."


def after_passes(passes: float) -> str:
    return f"After {passes:.2g} passes over the training images"


def _listed(names: list[str], *, by: str = "or") -> str:
    *others, last = names
    return f"{', '.join(others)} {by} {last}" if others else last


def images_text(images: int, groups: float, scored: str) -> str:
    """Describe the images, such as `300 test images`, or `300 test images in 60 groups`."""
    text = pluralise(images, f"{scored} image")
    return text if groups == images else f"{text} in {pluralise(round(groups), 'group')}"


def seeds_or_images_needed(pair: Any) -> str:
    """Say how many seeds, or images, would decide such a difference.

    Empty for one seed."""
    found = pair.estimate
    if pair.verdict != "unclear" or not pair.difference or found.seeds == 1:
        return ""

    def decides(seeds: int, images: int) -> bool:
        return abs(found.centre) > found.spread.half_width(seeds, images, claims=pair.together)

    numbers = (int(found.images * 1.25**n) for n in range(100))
    seeds = next((k for k in range(found.seeds, 101) if decides(k, found.images)), None)
    images = next((size for size in numbers if size <= 1_000_000 and decides(found.seeds, size)), None)
    rounded = f"{float(f'{images or 0:.2g}'):,.0f} images{' in such groups' * (found.groups != found.images)}"
    ways = [f"{seeds} seeds"] * (seeds is not None) + [rounded] * (images is not None)
    return f"it would take about {' or '.join(ways)}" if ways else "100 seeds or a million images would not do either"


def not_converged(comparison: Comparison) -> Iterator[str]:
    """Yield which models took too few passes or still improved, and what helps.

    There are lines for each label budget."""
    conditions = comparison.conditions
    for condition in conditions:
        rows = rows_of(condition.table)
        where = f" with {condition.title}" * (len(conditions) > 1)
        steps = [first_of(runs).config["train"]["start_head"] != "fit" for runs in by_arm(condition.runs)]
        short = [
            f"{row.arm} ({row.passes:.2g})"
            for row, trains in zip(rows, steps, strict=True)
            if trains and row.passes < FEWEST
        ]
        if short:
            yield f"too few passes to say whether more would help{where}: {', '.join(short)}"
        spoilt = [row.arm for row in rows if row.best_epoch == "0"]
        if spoilt:
            yield f"training did not improve the fitted head it began with{where}: {', '.join(spoilt)}"
        rising = [row for row in rows if pd.notna(row.improvement)]
        if rising:
            arms = ", ".join(f"{row.arm} (+{100 * row.improvement:.1f} points)" for row in rising)
            twice = 2 * max(row.images_seen for row in rising)
            longer = f"longer training may tell: compare --images-seen {twice}, or train --epochs"
            yield f"not converged{where}: {arms} at the end; {longer}"


def mean_text(row: Any) -> str:
    spread = "" if pd.isna(row.accuracy_sd) else f" ± {row.accuracy_sd * 100:.1f}"
    return f"{row.accuracy * 100:.1f}{spread}"


def points_text(row: Any) -> str:
    """Write the difference to the first model with its interval; empty for the first model."""
    points = (100 * value for value in (row.difference, row.difference_low, row.difference_high))
    return "" if pd.isna(row.difference) else "{:+.1f} ({:+.1f} to {:+.1f})".format(*points)


def verdict_text(row: Any) -> str:
    """Say what the second model of a pair is, next to the first."""
    if row.verdict == "untrained":
        return f"after {row.after_passes:.2g} passes"
    words = {None: "", "same": "the same"}.get(row.verdict, row.verdict)
    return f"{words} so far" if row.verdict in CLAIMS and pd.notna(row.so_far) else words


VERDICTS = {
    "model": lambda row: row.arm,
    "accuracy %": mean_text,
    "difference, points": points_text,
    "verdict": verdict_text,
}
"""Columns of the table of results, few enough for a phone: heading -> text for a row of the table."""


def last_screen(comparison: Comparison) -> Iterator[str]:
    """Yield the answer and its cautions, at most 80 letters wide.

    Cautions that would lead beyond MOST_LINES are counted in one line; the report has them all."""
    names = [printable(name) for name in short_names(comparison.arms)]
    key: list[str] = []
    if max(map(len, result_table(comparison.conditions, names)), default=0) > WIDTH:
        letters = [*map(letter_of, range(len(names)))]
        for letter, name in zip(letters, names, strict=True):
            key += textwrap.wrap(f"{letter}  {name}", WIDTH, subsequent_indent="   ")
        comparison, names = comparison.with_names(letters), letters
    lines, cautions = [*key, *answer(comparison, names)], [*map(printable, not_converged(comparison))]
    wrapped = [line for text in cautions for line in textwrap.wrap(text, WIDTH, subsequent_indent="  ")]
    if len(lines) + len(wrapped) > MOST_LINES:
        wrapped = [f"{pluralise(len(cautions), 'caution')} about the training: see the report"]
    yield from lines
    yield from wrapped


def answer(comparison: Comparison, names: Sequence[str]) -> Iterator[str]:
    """Yield which model to use, the table of results, and how to read it."""
    conditions = comparison.conditions
    if len(names) > 2:
        for condition in conditions:
            brief = len(conditions) > 1
            text = f"{condition.title}: " * brief + headline(condition, brief=brief)
            yield from textwrap.wrap(printable(text), WIDTH, subsequent_indent="  ")
        yield ""
    yield from result_table(conditions, names)
    row = first_of(comparison.table)
    images = images_text(row.images, row.groups, comparison.scored)
    scored = f"accuracy in % of {images}, {pluralise(row.seeds, 'seed')}; 95% intervals"
    yield from textwrap.wrap(scored + f"; differences from {names[0]}" * (len(names) > 2), WIDTH)
    table = comparison.table
    if ((table["verdict"] == "unclear") & (table["difference_low"] * table["difference_high"] > 0)).any():
        together = len(comparison.pairs)
        line = f"an interval that leaves out 0 names no winner: {together} comparisons are tested together"
        yield from textwrap.wrap(line, WIDTH)
    if len(names) == 2:
        for condition in conditions:
            if needed := seeds_or_images_needed(first_of(condition.pairs)):
                yield f"{condition.title}: to name a winner {needed}"


def result_table(conditions: Sequence[Comparison], names: Sequence[str]) -> list[str]:
    """Return the lines of the table of results; none if there are more than MOST_ROWS."""
    if len(names) == 2:
        header, rows = ["labels", *names, "difference, points", ""], []
        for condition in conditions:
            first, second = rows_of(condition.table)
            verdict = verdict_text(second) if second.verdict == "untrained" else "no clear winner"
            if second.verdict in CLAIMS:
                verdict = f"{names[second.difference > 0]} wins{' so far' * pd.notna(second.so_far)}"
            rows.append([condition.labels, mean_text(first), mean_text(second), points_text(second), verdict])
    else:
        header = ["labels", "model", "accuracy", "difference, points", ""]
        rows = [
            [condition.labels, name, *(text(row) for text in [*VERDICTS.values()][1:])]
            for condition in conditions
            for name, row in zip(names, rows_of(condition.table), strict=True)
        ]
    if len(rows) > MOST_ROWS:
        return []
    cells = [row[len(conditions) == 1 :] for row in (header, *rows)]  # one condition needs no labels
    return [*format_table(cells, left=[place for place, name in enumerate(cells[0]) if name in ("model", "")])]


def letter_of(number: int) -> str:
    """Return A to Z for the first numbers from 0 on, then A1 to Z1."""
    again, place = divmod(number, len(ascii_uppercase))
    return ascii_uppercase[place] + (str(again) if again else "")


def notes(comparison: Comparison) -> Iterator[str]:
    """Yield what was scored, what the columns mean, and which tests share one level."""
    first, claims = comparison.conditions[0], len(comparison.pairs)
    of_all, seeds = design(of_runs(comparison.predictions, first.runs)), first_of(first.table).seeds
    yield (
        f"scored: {of_all.images:,} {comparison.scored} images with the weights of the best validation epoch; "
        f"± standard deviation over {pluralise(seeds, 'seed')}"
    )
    yield "95% interval: range in which one run's true accuracy lies (Wilson), the lowest and highest end of all runs"
    yield "95% right on: share of the images, each run's most confident ones, on which 95% of its answers are right"
    yield "time and memory: medians over the seeds; memory: the peak of the process, or of the device"
    if not of_all.alone:
        where = f", with {first.title}" * (len(comparison.conditions) > 1)
        yield (
            f"groups: the {of_all.images:,} scored images come {of_all} that stand alone{where}; intervals and tests "
            "draw whole groups"
        )
    if comparison.table["improvement"].notna().any():
        yield f"^ not converged: validation accuracy still rose {CONVERGENCE}"
    if len(comparison.arms) > 2:
        yield f"better, worse: than the first model, {comparison.arms[0]}"
    if claims > 1:
        yield (
            f"verdicts: the {claims} comparisons share one level of 5% (Holm's correction): of reports on equal models "
            "at most 5% name a winner; the intervals are not corrected, so one may leave out 0 without a winner"
        )


def card(comparison: Comparison) -> str:
    """Return the verdict as Markdown: sentences, the warnings, and where the rest is."""
    lines, conditions = [], comparison.conditions
    for condition in conditions:
        where = f"{condition.title}: " * (len(conditions) > 1)
        lines.append(f"**{escaped(where + headline(condition))}**")
    lines += [f"Warning: {escaped(line)}" for line in (*comparison.warnings, *not_converged(comparison))]
    lines.append("The curves are each model's mean validation accuracy over the training images seen.")
    return "\n\n".join([*lines, "All columns and the protocol are in report.html, in the folder of the comparison."])


def escaped(text: str) -> str:
    """Return text that Markdown, and HTML within it, shows as it is."""
    text = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#])", r"\\\1", text)
