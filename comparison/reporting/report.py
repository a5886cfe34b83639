"""Everything a comparison leaves behind: table.csv, table.md, report.html, figures and TensorBoard's events."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from common.errors import exit_code
from common.files import folder_aside, write_bytes, write_text
from common.text import printable
from comparison.analysis.advice import headline
from comparison.analysis.results import ConditionResult
from comparison.analysis.runs import Comparison
from comparison.names import settings_that_differ
from comparison.reporting.drawing import MOST_CLASSES, TITLES, ReportFigure, colour, confusion, draw
from comparison.reporting.events import write_events
from comparison.reporting.images import disagreement
from comparison.reporting.table import COSTS, WITH_WORST_CLASS, Table, card_md, notes, table_csv, table_md, table_of
from inference.classifier import open_classifier
from inference.page.document import page_of, validation_pictures
from trainers.reporting.console import say
from trainers.reporting.figures.thumbnails import data_uri
from trainers.storage.run_folder import SNAPSHOTS

LISTED_PAIRS = 10  # of classes that an arm confuses
INSIDE = "page.html"
"""The page of two arms as they learned, beside the report."""


def write_report(comparison: Comparison, results: Sequence[ConditionResult], folder: Path) -> list[Path]:
    """Write the report, its figures and TensorBoard's `verdict/`; files appear whole or not at all, and replace those
    of an earlier one.

    Images come from the runs' data set; where they are gone, the report says so.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pictures = list(draw(results))
    inside = write_inside(results[-1], folder / INSIDE)
    texts = {
        "table.csv": table_csv(comparison, results),
        "table.md": table_md(comparison, results),
        "report.html": page(comparison, results, pictures, inside),
    }
    for name, text in texts.items():
        write_text(folder / name, text)
    with replacing_folder(folder / "figures") as aside:
        for picture in pictures:
            write_bytes(aside / picture.file, picture.png)
    with replacing_folder(folder / "verdict") as aside:
        write_events(aside, card_md(comparison, results), pictures, results)
    return [folder / name for name in texts] + [folder / "figures" / picture.file for picture in pictures]


def write_inside(result: ConditionResult, path: Path) -> str:
    """Write the page of the best two arms whose runs kept snapshots, as those of small ViTs do: the first seed of each,
    on four pictures. Returns the text of a link to the page; empty where there are no such runs, or where their images
    are gone or a file is damaged, of which a note is printed."""
    arms = [row.arm for row in sorted(result.arms, key=lambda row: row.scores["accuracy"], reverse=True)]
    shown = [arm for arm in arms if (arm.runs[0].run_dir / SNAPSHOTS).is_dir()][:2]
    if not shown:
        return ""
    try:
        opened = [(arm.name, open_classifier(str(arm.runs[0].run_dir), device="cpu")) for arm in shown]
        classifiers = [replace(classifier, source=name) for name, classifier in opened]
        text = page_of(classifiers, validation_pictures(classifiers[0])[::2])
    except Exception as error:
        if exit_code(error) == 1:  # a bug
            raise
        say(f"note: the report has no page of the models as they learned: {error}")
        return ""
    write_text(path, text)
    if len(shown) == 1:
        return f"What a ViT looks at, as it learned: {shown[0].name}"
    which = "the two leading models" if shown == arms[:2] else "two ViTs"
    return f"What {which} look at, as they learned: {shown[0].name} and {shown[1].name}"


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which takes the place of `folder` when it is whole."""
    with folder_aside(folder) as aside:
        yield aside
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(aside, folder)


def page(
    comparison: Comparison, results: Sequence[ConditionResult], pictures: Sequence[ReportFigure], inside: str
) -> str:
    """The whole document. The template escapes every name, path and line from outside. `inside`: what the link to the
    page about the models says; empty where there is none."""
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
        results=results,
        headline=headline,
        disagreements=[disagreement(result) for result in results],
        inside=inside,
        inside_page=INSIDE,
        pictures={kind: [picture for picture in pictures if picture.kind == kind] for kind in TITLES},
        titles=TITLES,
        data_uri=data_uri,
        colours={name: colour(index) for index, name in enumerate(results[0].condition.names)},
        result_table=table_of(results, WITH_WORST_CLASS),
        pairs=[row.against_first for result in results for row in result.arms],
        notes=notes(comparison, results, marks=False),
        cost_table=table_of(results, COSTS),
        confused=confused_classes(results),
        listed_pairs=LISTED_PAIRS,
        settings_table=settings_table(results),
        versions_table=versions_table(results),
    )


def confused_classes(results: Sequence[ConditionResult]) -> list[tuple[str, Table]]:
    """Yield, where a matrix would be too large to read, title and table of the mistakes that each arm makes most
    often."""
    names = results[-1].condition.class_names
    if len(names) <= MOST_CLASSES:
        return []
    tables = []
    for condition, arm in ((result.condition, arm) for result in results for arm in result.condition.arms):
        matrix = confusion(arm)
        np.fill_diagonal(matrix, 0)
        worst = np.argsort(-matrix, axis=None, kind="stable")[:LISTED_PAIRS]
        cells = [divmod(int(cell), len(names)) for cell in worst]
        lines = [[names[row], names[column], str(matrix[row, column])] for row, column in cells if matrix[row, column]]
        where = f" ({condition.title})" if len(results) > 1 else ""
        tables.append((f"{arm.name}{where}", (["true", "predicted", "times"], lines)))
    return tables


def settings_table(results: Sequence[ConditionResult]) -> Table:
    """Options that are not the same in all arms; lr may also differ between conditions."""
    arms = [(result.condition, arm) for result in results for arm in result.condition.arms]
    header = [f"{arm.name}, {condition.title}" if len(results) > 1 else arm.name for condition, arm in arms]
    differing = settings_that_differ([arm.runs[0].config for _, arm in arms])
    return ["setting", *header], [[option, *values] for option, values in differing]


def versions_table(results: Sequence[ConditionResult]) -> Table:
    """List what the runs ran on; one line per fact, with all its values where runs disagree."""
    metas = [run.meta for result in results for arm in result.condition.arms for run in arm.runs]
    facts: dict[str, list[Any]] = {
        "versions": [", ".join(f"{name} {version}" for name, version in (meta.get("versions") or {}).items())
                     for meta in metas],
        **{name: [meta.get(name) for meta in metas] for name in ("processor", "device", "threads", "platform")},
        "code": [f"{git.get('commit')!s:.10}{' with changes' * bool(git.get('dirty'))}"
                 if (git := meta.get("git")) else "unknown" for meta in metas],
    }  # fmt: skip
    return ["setting", "value"], [[name, "; ".join(dict.fromkeys(map(str, values)))] for name, values in facts.items()]
