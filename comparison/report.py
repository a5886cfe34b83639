"""The files of a comparison: table.csv, report.html, figures and TensorBoard's events."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from common.files import write_bytes, write_text
from common.shell import command_given
from common.tables import frame_text
from common.text import printable
from comparison.drawing import TITLES, ReportFigure, colour, draw
from comparison.images import disagreement
from comparison.names import settings_that_differ
from comparison.results import ConditionResult
from comparison.runs import Comparison
from comparison.table import DETAILS, VERDICTS, Table, table_frame, table_of
from comparison.tensorboard import write_events
from comparison.verdict import card, headline, not_converged, notes, pair_sentence
from trainers.reporting.figures.images import data_uri

FIGURES = ("differences", "accuracy_by_labels", "learning_curves")
"""Beginnings of the names of the files that `draw` makes."""
MISTAKES = 5
"""Mistakes that are listed of each arm."""


def write_report(comparison: Comparison, results: Sequence[ConditionResult], folder: Path) -> None:
    """Write the report, its figures and TensorBoard's `verdict/` in place of earlier ones.

    Pictures come from the runs' data set; the report says if it is gone.
    """
    pictures, figures, verdict = list(draw(results)), folder / "figures", folder / "verdict"
    for earlier in (
        *(path for name in FIGURES for path in figures.glob(f"{name}*.png")),
        *verdict.rglob("events.out.*"),
    ):
        earlier.unlink()
    figures.mkdir(parents=True, exist_ok=True)
    for picture in pictures:
        write_bytes(figures / picture.file, picture.png)
    write_events(verdict, card(comparison, results), pictures, results)
    write_text(folder / "table.csv", frame_text(table_frame(comparison, results)))
    write_text(folder / "report.html", page(comparison, results, pictures))


def page(comparison: Comparison, results: Sequence[ConditionResult], pictures: Sequence[ReportFigure]) -> str:
    """Return the document. The template escapes every name, path and line."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=lambda value: value if isinstance(value, Markup) else printable(str(value)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do"],
    )
    return environment.get_template("report.html.jinja").render(
        comparison=comparison,
        command=command_given(),
        results=results,
        headline=headline,
        pair_sentence=pair_sentence,
        warnings=[*comparison.warnings, *not_converged(results)],
        disagreements=[disagreement(result) for result in results],
        pictures={kind: [picture for picture in pictures if picture.kind == kind] for kind in TITLES},
        titles=TITLES,
        data_uri=data_uri,
        colours={name: colour(index) for index, name in enumerate(results[0].condition.names)},
        result_table=table_of(results, VERDICTS),
        pairs=[row.against_first for result in results for row in result.arms],
        notes=[*notes(comparison, results)],
        detail_table=table_of(results, DETAILS),
        mistakes_table=mistakes_table(results),
        settings_table=settings_table(results),
        versions_table=versions_table(results),
    )


def mistakes_table(results: Sequence[ConditionResult]) -> Table:
    """Return the most frequent mistakes of each arm, all seeds together."""
    names, lines = results[0].condition.class_names, []
    for condition, arm in ((result.condition, arm) for result in results for arm in result.condition.arms):
        matrix = np.sum([run.confusion for run in arm.runs], axis=0)
        np.fill_diagonal(matrix, 0)
        for cell in np.argsort(-matrix, axis=None, kind="stable")[:MISTAKES]:
            row, column = divmod(int(cell), len(names))
            if matrix[row, column]:
                lines.append([condition.labels, arm.name, names[row], names[column], str(matrix[row, column])])
    return ["labels", "arm", "true", "predicted", "times"], lines


def settings_table(results: Sequence[ConditionResult]) -> Table:
    """Return the options that differ between arms; lr may also differ between conditions."""
    arms = [(result.condition, arm) for result in results for arm in result.condition.arms]
    header = [f"{arm.name}, {condition.title}" if len(results) > 1 else arm.name for condition, arm in arms]
    differing = settings_that_differ([arm.runs[0].config for _, arm in arms])
    return ["setting", *header], [[option, *values] for option, values in differing]


def versions_table(results: Sequence[ConditionResult]) -> Table:
    """Return versions and hardware of the runs; one line per fact, with all values on which runs disagree."""
    metas = [run.meta for result in results for arm in result.condition.arms for run in arm.runs]
    facts: dict[str, list[Any]] = {
        "versions": [", ".join(f"{name} {version}" for name, version in (meta.get("versions") or {}).items())
                     for meta in metas],
        **{name: [meta.get(name) for meta in metas] for name in ("processor", "device", "threads", "platform")},
        "code": [f"{git.get('commit')!s:.10}{' with changes' * bool(git.get('dirty'))}"
                 if (git := meta.get("git")) else "unknown" for meta in metas],
    }  # fmt: skip
    return ["setting", "value"], [[name, "; ".join(dict.fromkeys(map(str, values)))] for name, values in facts.items()]
