"""The table of a comparison: one DataFrame, its columns as text for the report, and the last screen."""

import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from common.tables import frame_of
from common.text import ellipsis, format_table, pluralise, printable
from comparison.names import short_names
from comparison.results import ArmResult, ConditionResult, Pair
from comparison.runs import Comparison
from comparison.verdict import headline, images_text, not_converged, seeds_or_images_needed
from trainers.reporting.console import duration

if TYPE_CHECKING:
    import pandas as pd

WIDTH = 80
LONGEST = 22
"""Letters of an arm's name in the last screen."""
MOST_ROWS = 12
"""Rows of a table that the last screen shows."""
Results = Sequence[ConditionResult]
Table = tuple[list[str], list[list[str]]]
"""Header and cells."""
Columns = dict[str, Callable[[ArmResult], str]]
"""Heading -> text of a cell for an arm."""


def rows(comparison: Comparison, results: Results) -> list[dict[str, Any]]:
    """Return a row per condition and arm; shares are fractions, missing values None; `difference` is to the first."""
    return [
        {
            "data": comparison.data,
            "labels_per_class": result.condition.labels_per_class,
            "arm": row.arm.name,
            "scored": comparison.scored,
            **row.scores,
            **_difference(row.against_first),
            **row.costs,
            "runs": " ".join(str(run.run_dir) for run in row.arm.runs),
        }
        for result in results
        for row in result.arms
    ]


def _difference(pair: Pair | None) -> dict[str, Any]:
    low, mean, high = pair.interval if pair else (None, None, None)
    return {
        "difference": mean,
        "difference_low": low,
        "difference_high": high,
        "p": pair and pair.difference.p,
        "p_holm": pair and pair.adjusted_p,
        "verdict": pair and pair.mark,
    }


def table_frame(comparison: Comparison, results: Results) -> "pd.DataFrame":
    """Return `rows` as a DataFrame, with missing numbers as NaN; table.csv holds it in full precision."""
    import pandas as pd

    table = rows(comparison, results)
    frame = frame_of(table[0], (row.values() for row in table))
    numbers = [name for name, cells in frame.items() if not any(isinstance(cell, str) for cell in cells)]
    frame = frame.assign(**frame[numbers].apply(pd.to_numeric))
    return frame.astype({"labels_per_class": "Int64"})


def table_of(results: Results, columns: Columns) -> Table:
    """Return a line per condition and arm as text; if there are several conditions, their labels come first."""
    lines = [
        [result.condition.labels, *(cell(row) for cell in columns.values())]
        for result in results
        for row in result.arms
    ]
    return (["labels", *columns], lines) if len(results) > 1 else ([*columns], [cells[1:] for cells in lines])


def _mean(row: ArmResult) -> str:
    spread = "" if row.scores["accuracy_sd"] is None else f" ± {row.scores['accuracy_sd'] * 100:.1f}"
    return f"{row.scores['accuracy'] * 100:.1f}{spread}"


def points_text(pair: Pair | None) -> str:
    """Write the difference to the first arm with its interval; empty for the first arm."""
    return "{1:+.1f} ({0:+.1f} to {2:+.1f})".format(*(100 * value for value in pair.interval)) if pair else ""


def _worst(row: ArmResult) -> str:
    low, high = row.scores["worst_low"] * 100, row.scores["worst_high"] * 100
    return f"{row.scores['worst_class']}: {row.scores['worst_recall'] * 100:.1f} ({low:.0f} to {high:.0f})"


def _optional(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


MARKS = {"better": "better", "worse": "worse", "unclear": "unclear", "same": "the same"}

VERDICTS: Columns = {
    "arm": lambda row: row.arm.name,
    "accuracy %": _mean,
    "difference, points": lambda row: points_text(row.against_first),
    "verdict": lambda row: MARKS[row.against_first.mark] if row.against_first else "",
}
"""Columns of the table of results, few enough for a phone."""

DETAILS: Columns = {
    "arm": lambda row: row.arm.name,
    "95% interval": lambda row: f"{row.scores['wilson_low'] * 100:.1f} to {row.scores['wilson_high'] * 100:.1f}",
    "worst class %": _worst,
    "macro F1": lambda row: f"{row.scores['macro_f1']:.3f}",
    "ECE": lambda row: f"{row.scores['ece']:.3f}",
    "95% right on": lambda row: _optional(row.scores["answered_95"], ".1%"),
    "parameters": lambda row: f"{row.costs['parameters']:,}",
    "trainable": lambda row: f"{row.costs['trainable']:,}",
    "images seen": lambda row: f"{row.costs['images_seen']:,}{' ^' * (row.scores['improvement'] is not None)}",
    "time": lambda row: duration(row.costs["seconds"]),
    "memory MB": lambda row: _optional(row.costs["memory_mb"], ",.0f"),
    "lr": lambda row: f"{row.costs['lr']:.3g}",
    "best epoch": lambda row: row.costs["best_epoch"],
}
"""Columns of further scores and of costs."""


def last_screen(comparison: Comparison, results: Results) -> Iterator[str]:
    """Yield the answer and its cautions in lines of at most 80 letters: a line per condition for two arms, else one per
    arm."""
    short = [printable(name) for name in short_names(results[0].condition.names)]
    if len(short) == 2:
        first, second = (ellipsis(name, 14) for name in short)
        header, lines = ["labels", first, second, "difference, points", ""], []
        for result in results:
            (pair,) = result.pairs
            winner = (first, second)[pair.difference.mean > 0]
            verdict = f"{winner} wins" if pair.mark in ("better", "worse") else "no clear winner"
            lines.append([result.condition.labels, *map(_mean, result.arms), points_text(pair), verdict])
    else:
        for result in results:
            where = f"{result.condition.title}: " * (len(results) > 1)
            yield from textwrap.wrap(printable(f"{where}{headline(comparison, result)}"), WIDTH, subsequent_indent="  ")
        yield ""
        header = ["labels", "arm", "accuracy", "difference, points", ""]
        lines = [
            [result.condition.labels, ellipsis(name, LONGEST), *(cell(row) for cell in [*VERDICTS.values()][1:])]
            for result in results
            for name, row in zip(short, result.arms, strict=True)
        ]
    if len(lines) <= MOST_ROWS:
        table = [line[len(results) == 1 :] for line in (header, *lines)]  # one condition needs no labels
        yield from format_table(table, left=[place for place, name in enumerate(table[0]) if name in ("arm", "")])
    scores, pairs = results[0].arms[0].scores, [row.against_first for result in results for row in result.arms[1:]]
    images = images_text(scores["images"], scores["groups"], comparison.scored)
    yield f"accuracy in % of {images}, {pluralise(scores['seeds'], 'seed')}; 95% intervals"
    if len(short) > 2:
        yield f"difference, better, worse: against the first arm, {ellipsis(short[0], LONGEST)}"
    if any(pair.mark == "unclear" and pair.difference.low * pair.difference.high > 0 for pair in pairs if pair):
        together = results[0].pairs[0].claims
        yield f"an interval that leaves out 0 names no winner: {together} comparisons are judged together"
    if len(short) == 2:
        for result in results:
            if needed := seeds_or_images_needed(result.pairs[0]):
                yield f"{result.condition.title}: to name a winner {needed}"
    for line in not_converged(results):
        yield from textwrap.wrap(printable(line), WIDTH, subsequent_indent="  ")
