"""The files of a comparison: table.csv, report.html, figures and TensorBoard's events."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from common.errors import DataError
from common.files import write_bytes, write_text
from common.shell import command_given
from common.tables import frame_text
from common.text import printable
from comparison.drawing import TITLES, ReportFigure, colour, draw, write_events
from comparison.results import COSTS, SCORES, Comparison, by_arm, first_of, of_runs, right_of, rows_of
from comparison.runs import settings_that_differ
from comparison.verdict import VERDICTS, card, headline, not_converged, notes, pair_sentence
from datasets.images import picture_of
from datasets.open import read_samples
from trainers.reporting.figures.images import data_uri, thumbnail
from trainers.storage.run_folder import RunFolder, untrusted_run

MISTAKES = 5
"""Mistakes that are listed of each model."""
EXAMPLES = 8
"""Images shown per model."""
THUMBNAIL = 160
"""Longer side in pixels."""
DETAILS: dict[str, Callable[[Any], str]] = {
    "model": VERDICTS["model"],
    **{each.heading: each.cell for each in (*SCORES, *COSTS) if each.heading},
}
"""Columns of further scores and of costs: heading -> text for a row of the table."""
Table = tuple[list[str], list[list[str]]]
"""Header and cells."""


def write_report(comparison: Comparison) -> None:
    """Write the report, its figures and TensorBoard's `verdict/` in place of earlier ones.

    Pictures come from the runs' data set; the report says if it is gone.
    """
    folder = comparison.folder
    pictures, figures, verdict = list(draw(comparison)), folder / "figures", folder / "verdict"
    for earlier in (
        *(path for name in TITLES for path in figures.glob(f"{name}*.png")),
        *verdict.rglob("events.out.*"),
    ):
        earlier.unlink()
    figures.mkdir(parents=True, exist_ok=True)
    for picture in pictures:
        write_bytes(figures / picture.file, picture.png)
    write_events(verdict, card(comparison), pictures, comparison)
    write_text(folder / "table.csv", frame_text(comparison.table))
    write_text(folder / "report.html", page(comparison, pictures))


def page(comparison: Comparison, pictures: Sequence[ReportFigure]) -> str:
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
    conditions = comparison.conditions
    return environment.get_template("report.html.jinja").render(
        comparison=comparison,
        command=command_given(),
        conditions=conditions,
        headline=headline,
        pair_sentence=pair_sentence,
        rows_of=rows_of,
        warnings=[*comparison.warnings, *not_converged(comparison)],
        disagreements=[disagreement(condition) for condition in conditions],
        pictures={kind: [picture for picture in pictures if picture.kind == kind] for kind in TITLES},
        titles=TITLES,
        data_uri=data_uri,
        colours={name: colour(index) for index, name in enumerate(comparison.arms)},
        result_table=text_table(comparison, VERDICTS),
        verdicts=comparison.table["verdict"].tolist(),
        notes=[*notes(comparison)],
        detail_table=text_table(comparison, DETAILS),
        mistakes_table=mistakes_table(comparison),
        settings_table=settings_table(comparison),
        versions_table=versions_table(comparison),
    )


def text_table(comparison: Comparison, columns: Mapping[str, Callable[[Any], str]]) -> Table:
    """Return a line per label budget and model; of several label budgets with their labels."""
    several = len(comparison.conditions) > 1
    lines = [
        [condition.labels] * several + [text(row) for text in columns.values()]
        for condition in comparison.conditions
        for row in rows_of(condition.table)
    ]
    return ["labels"] * several + [*columns], lines


def mistakes_table(comparison: Comparison) -> Table:
    """Return the most frequent mistakes of each model, all seeds together."""
    names, lines = first_of(comparison.runs).class_names, []
    for condition in comparison.conditions:
        for runs in by_arm(condition.runs):
            scored = of_runs(comparison.predictions, runs)
            times = scored[~scored["right"]].groupby(["label", "predicted"]).size().reset_index(name="times")
            for row in rows_of(times.sort_values("times", ascending=False, kind="stable")[:MISTAKES]):
                true, predicted = names[row.label], names[row.predicted]
                lines.append([condition.labels, first_of(runs).arm, true, predicted, str(row.times)])
    return ["labels", "model", "true", "predicted", "times"], lines


def settings_table(comparison: Comparison) -> Table:
    """Return the options that differ between models; lr may also differ between label budgets."""
    conditions = comparison.conditions
    arms = [(condition.title, first_of(runs)) for condition in conditions for runs in by_arm(condition.runs)]
    header = [f"{run.arm}, {title}" if len(conditions) > 1 else run.arm for title, run in arms]
    differing = settings_that_differ([run.config for _, run in arms])
    return ["setting", *header], [[option, *values] for option, values in differing]


def versions_table(comparison: Comparison) -> Table:
    """Return a line per version or hardware fact, with all values that the runs have."""
    metas = comparison.runs["meta"].tolist()
    facts: dict[str, list[Any]] = {
        "versions": [", ".join(f"{name} {version}" for name, version in (meta.get("versions") or {}).items())
                     for meta in metas],
        **{name: [meta.get(name) for meta in metas] for name in ("processor", "device", "threads", "platform")},
        "code": [f"{git.get('commit')!s:.10}{' with changes' * bool(git.get('dirty'))}"
                 if (git := meta.get("git")) else "unknown" for meta in metas],
    }  # fmt: skip
    return ["setting", "value"], [[name, "; ".join(dict.fromkeys(map(str, values)))] for name, values in facts.items()]


# Images that only one of two arms gets right


def disagreement(condition: Comparison) -> dict[str, Any]:
    """Return images that only the first model, or only the best other, gets right.

    `only`: for each of the two the winner, the loser and examples; `problem`: why there are no pictures."""
    others = condition.table[1:]
    names = [condition.arms[0], others["arm"].iloc[int(others["accuracy"].argmax())]]
    arms = [of_runs(condition.predictions, condition.runs[condition.runs["arm"] == name]) for name in names]
    of_both = only_one_right(*arms)
    run, pictures, problem = first_of(condition.runs), dict[str, Image.Image](), ""
    try:
        if paths := arms[0]["path"].iloc[[*of_both[0], *of_both[1]]].tolist():
            pictures = open_images(run.folder, paths)
    except (DataError, OSError, ValueError) as error:
        problem = f"The images are not shown: {error}"

    def example(row: int) -> dict[str, Any]:
        path, label = arms[0]["path"].iloc[row], arms[0]["label"].iloc[row]
        said = [(name, *usual_prediction(arm, row)) for name, arm in zip(names, arms, strict=True)]
        return {
            "path": path,
            "label": run.class_names[label],
            "said": [(name, run.class_names[usual], votes) for name, usual, votes in said],
            "thumbnail": thumbnail(pictures[path], THUMBNAIL) if pictures else None,
        }

    examples = [[example(row) for row in rows] for rows in of_both]
    return {"problem": problem, "only": [*zip(names, reversed(names), examples, strict=True)]}


def only_one_right(first: pd.DataFrame, second: pd.DataFrame) -> tuple[list[int], list[int]]:
    """Return rows of images that one model gets right and the other wrong, clearest first.

    Most of a model's runs decide."""
    right, other = (right_of(arm).mean(axis=0) for arm in (first, second))  # (N,)
    ours, theirs = (arm["of_label"].to_numpy().reshape(-1, len(right)).mean(axis=0) for arm in (first, second))
    order = np.lexsort((theirs - ours, other - right)).tolist()
    only_first = [row for row in order if right[row] > 0.5 > other[row]]
    only_second = [row for row in reversed(order) if other[row] > 0.5 > right[row]]
    return only_first[:EXAMPLES], only_second[:EXAMPLES]


def usual_prediction(arm: pd.DataFrame, row: int) -> tuple[int, int]:
    """Return the most frequent prediction for an image, and how many runs make it."""
    votes = np.bincount(arm["predicted"].to_numpy().reshape(arm["run"].nunique(), -1)[:, row])
    return int(votes.argmax()), int(votes.max())


def open_images(run: RunFolder, paths: Sequence[str]) -> dict[str, Image.Image]:
    """Open scored images of a run. Raises DataError: its data set no longer has them."""
    config = run.config.data
    with untrusted_run():
        samples = read_samples(config)
    place = {path: index for index, path in enumerate(samples.paths)}
    missing = [path for path in paths if path not in place]
    if missing:
        raise DataError(f"{config.source} no longer has {missing[0]!r}")
    return {path: picture_of(samples, place[path]) for path in paths}
