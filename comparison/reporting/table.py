"""The table of a comparison: for a terminal, a spreadsheet and a document."""

import re
import shutil
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from common.tables import csv_text, frame_of
from common.text import ellipsis, format_table, printable
from comparison.analysis.advice import headline
from comparison.analysis.improving import RULE
from comparison.analysis.power import power_line
from comparison.analysis.results import ArmResult, ConditionResult, Pair
from comparison.analysis.runs import Comparison, Condition
from trainers.reporting.console import duration
from trainers.statistics import estimate, minus
from vit.config import WHAT_THEY_ARE

if TYPE_CHECKING:
    import pandas as pd

WIDTH = 120
MARKS = {"better": "+", "worse": "-", "unclear": "?", "same": "="}
MARKS_EXPLAINED = "+ better than the first arm, - worse, ? undecided, = the same"
SHORTEST = 24
"""Letters that the name of an arm has at least, so that arms can be told apart."""
FIRST_TO_GO = (
    "McNemar",
    "trainable",
    "ECE",
    "95 % right on",
    "memory MB",
    "macro F1",
    "best epoch",
    "95 % interval",
    "GFLOPs",
)
"""Columns that a narrow terminal leaves out, the first first."""
Results = Sequence[ConditionResult]
Table = tuple[list[str], list[list[str]]]
"""Header and cells."""
Columns = dict[str, Callable[[ArmResult], str]]
"""Heading -> what stands below it for an arm."""


def rows(comparison: Comparison, results: Results) -> list[dict[str, Any]]:
    """One row per condition and arm; shares as fractions, empty cells None; `difference` is to the first arm."""
    return [
        {
            "data": comparison.data,
            "labels_per_class": result.condition.labels_per_class,
            "arm": row.arm.name,
            "scored": comparison.scored_images,
            **row.scores,
            **_difference(row.against_first),
            **row.costs,
            "runs": " ".join(str(run.run_dir) for run in row.arm.runs),
        }
        for result in results
        for row in result.arms
    ]


def _difference(pair: Pair | None) -> dict[str, Any]:
    difference = pair.difference if pair else None
    return {
        "difference": difference and difference.mean,
        "difference_low": difference and difference.low,
        "difference_high": difference and difference.high,
        "p": difference and difference.p,
        "p_holm": pair and pair.adjusted_p,
        "mcnemar_significant_seeds": pair and pair.significant_seeds,
        "verdict": pair and pair.mark,
    }


def table_frame(comparison: Comparison, results: Results) -> "pd.DataFrame":
    """`rows` as a DataFrame, NaN where a number is missing."""
    import pandas as pd

    table = rows(comparison, results)
    frame = frame_of(table[0], (row.values() for row in table))
    numbers = [name for name, cells in frame.items() if not any(isinstance(cell, str) for cell in cells)]
    return frame.assign(**frame[numbers].apply(pd.to_numeric))


def table_csv(comparison: Comparison, results: Results) -> str:
    """Every number in full precision."""
    table = rows(comparison, results)
    return csv_text(table[0], (row.values() for row in table))


def table_of(results: Results, columns: Columns) -> Table:
    """One line per condition and arm; where there are several conditions, their labels stand first."""
    lines = [
        [result.condition.labels, *(cell(row) for cell in columns.values())]
        for result in results
        for row in result.arms
    ]
    return (["labels", *columns], lines) if len(results) > 1 else ([*columns], [cells[1:] for cells in lines])


def _accuracy(row: ArmResult) -> str:
    spread = "" if row.scores["accuracy_sd"] is None else f" ± {row.scores['accuracy_sd'] * 100:.1f}"
    return f"{row.scores['accuracy'] * 100:.1f}{spread} (n={row.scores['seeds']})"


def _points(row: ArmResult) -> str:
    if row.against_first is None:
        return "-"
    low, mean, high = row.against_first.interval
    return f"{100 * mean:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def _optional(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


RESULTS: Columns = {
    "arm": lambda row: row.arm.name,
    "accuracy %": _accuracy,
    "95 % interval": lambda row: f"{row.scores['wilson_low'] * 100:.1f} to {row.scores['wilson_high'] * 100:.1f}",
    "macro F1": lambda row: f"{row.scores['macro_f1']:.3f}",
    "ECE": lambda row: f"{row.scores['ece']:.3f}",
    "95 % right on": lambda row: _optional(row.scores["answered_95"], ".1%"),
    "vs first, points": _points,
    "McNemar": lambda row: f"{pair.significant_seeds} of {row.scores['seeds']}" if (pair := row.against_first) else "-",
    "": lambda row: MARKS[row.against_first.mark] if row.against_first else "",
}
"""Columns of the scores."""


def _worst(row: ArmResult) -> str:
    interval = f"{row.scores['worst_low'] * 100:.0f} to {row.scores['worst_high'] * 100:.0f}"
    return f"class {row.scores['worst_class']}: {row.scores['worst_recall'] * 100:.1f} ({interval})"


FIRST = ("arm", "accuracy %", "", "vs first, points")
CARD = ("arm", "accuracy %", "vs first, points")
WITH_WORST_CLASS: Columns = {**{name: RESULTS[name] for name in FIRST}, "worst class %": _worst, **RESULTS}
"""Columns where there is more room; the verdict stands where a telephone shows it."""

COSTS: Columns = {
    "arm": lambda row: row.arm.name,
    "parameters": lambda row: f"{row.costs['parameters']:,}",
    "trainable": lambda row: f"{row.costs['trainable']:,}",
    "GFLOPs": lambda row: _optional(row.costs["gflops_per_image"], ".3g"),
    "images seen": lambda row: f"{row.costs['images_seen']:,}{' ^' * (row.scores['improvement'] is not None)}",
    "time": lambda row: duration(row.costs["seconds"]),
    "memory MB": lambda row: _optional(row.costs["memory_mb"], ",.0f"),
    "lr": lambda row: f"{row.costs['lr']:.3g}",
    "best epoch": lambda row: row.costs["best_epoch"],
}
"""Columns of what the arms cost. Seconds and memory are medians over seeds."""


def notes(comparison: Comparison, results: Results, *, marks: bool = True) -> list[str]:
    """Explain what the columns mean, the `marks` of a table in letters too, and what was scored."""
    runs = comparison.conditions[0].arms[0].runs
    lines = [
        f"scored: {len(runs[0].labels):,} {comparison.scored_images} images, weights of the "
        + ("last epoch" if runs[0].scored == "val_last" else "best validation epoch"),
        "accuracy: mean ± standard deviation over n seeds",
        "95 % interval: range in which one run's true accuracy lies (Wilson), the lowest and highest end of all runs",
        "95 % right on: share of the scored images, each run's surest ones, on which 95 % of its answers are right",
        *in_groups(comparison.conditions),
        "McNemar: number of seeds at which the exact test finds a difference of the two runs (p <= 0.05)",
        *([MARKS_EXPLAINED] if marks else []),
    ]
    if any(row.scores["improvement"] is not None for result in results for row in result.arms):
        lines.append(f"^ not converged: validation accuracy still rose {RULE}")
    claims = sum(len(result.pairs) for result in results)
    for result in results:
        first, second = (arm.correct for arm in result.condition.arms[:2])
        spread = estimate(minus(second, first), result.condition.clusters).spread
        scored = comparison.scored_images
        seen = power_line(second.shape[1], len(second), spread, scored=scored, claims=claims)
        lines.append(f"measured power{f', {result.condition.title}' if len(results) > 1 else ''}: {seen}")
    models = {run.config["model"]["name"] for arm in comparison.conditions[0].arms for run in arm.runs}
    lines += [f"{model}: {WHAT_THEY_ARE[model]}" for model in sorted(models & WHAT_THEY_ARE.keys())]
    if runs[0].scored == "val":
        lines.append("the scored images also chose the epoch of every run: all accuracies are a little too high")
    if claims > 1:
        lines += judged_together(claims)
    if len(results) > 1:
        lines.append("labels: training images per class")
    return lines


def in_groups(conditions: Sequence[Condition]) -> Iterator[str]:
    """Say what groups of images take from the scored ones, where there are groups."""
    design, several = conditions[0].design, len(conditions) > 1
    if not design.alone:
        yield (
            f"groups: the {design.images:,} scored images come {design} that stand alone"
            f"{f', with {conditions[0].title}' * several}; intervals and tests draw whole groups, of which an image "
            "that stands alone is one, and McNemar's is the sign-flip test over groups"
        )


def judged_together(claims: int) -> list[str]:
    """Explain what it means that all verdicts of a report share one level, and which of its numbers do not."""
    return [
        f"the {claims} comparisons of this report are judged together (Holm's correction): where no arm is better than "
        "another, at most 5 % of such reports name a winner",
        "not corrected, each for one comparison alone: the 95 % intervals, McNemar's counts: an interval may leave out "
        "0 where the verdict names no winner",
    ]


def verdicts(comparison: Comparison, results: Results) -> tuple[list[str], list[str]]:
    """Say which arm to use, and the sentence on each pair of arms; with their condition in front where there are
    several."""
    several = len(results) > 1
    return (
        [
            headline(comparison, result, where=f" with {result.condition.title}" if several else "")
            for result in results
        ],
        [
            f"{result.condition.title}: {pair.sentence}" if several else pair.sentence
            for result in results
            for pair in result.pairs
        ],
    )


def terminal_table(comparison: Comparison, results: Results, *, width: int | None = None) -> str:
    """Verdict, results, costs and small print within `width`; None: the terminal's, at most 120 columns."""
    width = width or min(WIDTH, max(60, shutil.get_terminal_size((WIDTH, 24)).columns))
    use, pairs = verdicts(comparison, results)
    tables = [*fit_width(results, RESULTS, width), "", *fit_width(results, COSTS, width)]
    left_out = [name for name in FIRST_TO_GO if not any(name in line for line in tables)]
    small_print = [line for line in notes(comparison, results) if line.partition(":")[0] not in left_out]
    parts = [
        *(_wrapped(line, width) for line in use),
        "",
        *tables,
        "",
        *(_wrapped(line, width) for line in pairs),
        "",
        *(_wrapped(line, width) for line in small_print),
    ]
    return "\n".join(parts)


def _wrapped(text: str, width: int) -> str:
    return textwrap.fill(printable(text), width, subsequent_indent="  ", break_on_hyphens=False)


def fit_width(results: Results, columns: Columns, width: int) -> Iterator[str]:
    """A table of the arms within `width`: where it is too wide the least needed columns go first, before names of arms
    are cut below `SHORTEST` letters; the report has them all."""
    for gone in range(len(FIRST_TO_GO) + 1):
        kept = {name: cell for name, cell in columns.items() if name not in FIRST_TO_GO[:gone]}
        header, lines = table_of(results, kept)
        longest = max(len(printable(line[header.index("arm")])) for line in lines)
        if room_for_arms(header, lines, width) >= min(SHORTEST, longest):
            break
    return fit_lines(header, lines, width)


def fit_lines(header: list[str], lines: list[list[str]], width: int = WIDTH) -> Iterator[str]:
    """Columns side by side; names of arms are cut where the line would be wider than `width`."""
    arm, room = header.index("arm"), max(SHORTEST, room_for_arms(header, lines, width))
    table = [header, *([printable(cell) for cell in line] for line in lines)]
    return format_table([[*row[:arm], ellipsis(row[arm], room), *row[arm + 1 :]] for row in table], left=[arm])


def room_for_arms(header: list[str], lines: list[list[str]], width: int) -> int:
    """Letters that the other columns leave to the names of arms."""
    arm = header.index("arm")
    others = [[printable(cell) for cell in line[:arm] + line[arm + 1 :]] for line in (header, *lines)]
    return width - max(map(len, format_table(others, left=()))) - 2


def table_md(comparison: Comparison, results: Results) -> str:
    parts = [f"# {_md(comparison.data)}: {len(comparison.conditions[0].arms)} arms compared", ""]
    use, pairs = verdicts(comparison, results)
    parts += [*(f"**{_md(line)}**  " for line in use), "", *(f"{_md(line)}  " for line in pairs)]
    for columns in (WITH_WORST_CLASS, COSTS):
        parts += ["", *_md_table(results, columns)]
    parts += ["", *(f"- {_md(line)}" for line in notes(comparison, results))]
    for title, lines_ in (("Warnings", comparison.warnings), ("Protocol", comparison.protocol)):
        if lines_:
            parts += ["", f"## {title}", *(f"- {_md(line)}" for line in lines_)]
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", comparison.command)), default=0))
    parts += ["", "## Command", fence, printable(comparison.command), fence, ""]
    return "\n".join(parts)


def card_md(comparison: Comparison, results: Results) -> str:
    """The verdict for a narrow card: sentences, then a table that needs no sideways scrolling; where the rest is."""
    use, pairs = verdicts(comparison, results)
    lines = [
        *(f"**{_md(line)}**" for line in use),
        "\n".join(_md_table(results, {name: RESULTS[name] for name in CARD})),
    ]
    rest = "All columns, the protocol and the warnings stand in report.html, in the folder of the comparison."
    return "\n\n".join([*lines, *map(_md, pairs), rest, *(f"Warning: {_md(line)}" for line in comparison.warnings)])


def _md_table(results: Results, columns: Columns) -> list[str]:
    header, lines = table_of(results, columns)
    rule = _md_line(["---" if cell == "arm" else "---:" for cell in header], raw=True)
    return [_md_line(header), rule, *map(_md_line, lines)]


def _md_line(cells: Sequence[str], *, raw: bool = False) -> str:
    return "| " + " | ".join(cell if raw else _md(cell) for cell in cells) + " |"


def _md(text: str) -> str:
    """Text that Markdown, and HTML within it, shows as it is."""
    text = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#])", r"\\\1", text)
