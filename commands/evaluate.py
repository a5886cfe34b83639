"""`evaluate RUN`: score a run's best weights again, or any model on any labelled images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from commands.arguments import ModelOptions, UsageError
from commands.json_output import JsonOption, json_document
from commands.train import score_lines
from common.text import pluralise, wrapped
from datasets.config import DataConfig, Group, Name

if TYPE_CHECKING:
    from inference.evaluation_report import Evaluation


OF_OTHERS = ("model", "class_names", "device", "trust", "path_column", "label_column", "group", "output")
"""Options that have an effect with --data alone."""


@dataclass(frozen=True)
class Options(JsonOption, ModelOptions):
    """Score a run's best weights on one of its splits, and compare the scores with what training logged; or with
    --data a run, an export or a weights file on any labelled images. Tables and figures are written to the run's eval/.

    A run's own splits are scored as it trained: on its device, with its classes.
    """

    split: Literal["train", "val", "test"] | None = None
    """Split to score. Default: val of the run's own data; every image of --data."""
    data: Annotated[str | None, tyro.conf.arg(metavar="NAME|PATH")] = None
    """Other labelled images to score: a built-in set, folder, table or zip. Classes are matched by name."""
    path_column: Name = None
    """Column of a table that names the image files, as for train."""
    label_column: Name = None
    """Column of a table that names the classes, as for train."""
    group: Group = None
    """Images of --data that belong together, as for train; the confidence interval is then one of groups."""
    data_root: Path | None = None
    """Folder where built-in sets are found. Default: where the run found them; else data."""
    output: Path | None = None
    """Folder for the files about --data. Default: eval/ of the run."""
    csv: bool = False
    """Also write a CSV when the predictions are large enough to be stored as .npz."""

    def __post_init__(self) -> None:
        if self.data is None and self.split == "train":
            raise UsageError("split=train of a run's own data is augmented; name its images with --data to score them")
        idle = [f.name for f in fields(self) if f.name in OF_OTHERS and getattr(self, f.name) != f.default]
        if self.data is None and idle:
            given = ", ".join(f"--{name.replace('_', '-')}" for name in idle)
            raise UsageError(f"{given}: for other images, which --data names; a run's own are scored as it trained")


def main(options: Options) -> int:
    from inference.classifier import is_run_name

    if options.data is None and not is_run_name(options.run):
        raise UsageError(f"{options.run} brings no images; name labelled ones with --data")
    with json_document(options) as document:
        if options.data is not None:
            document.update(other_images(options, options.data))
        else:
            document.update(own_images(options))
    return 0


def own_images(options: Options) -> dict[str, Any]:
    from inference.evaluate import evaluate_run
    from trainers.storage.finished_run import find_run

    run_dir, split = find_run(options.run, options.output_dir), options.split or "val"
    evaluation = evaluate_run(run_dir, split=split, data_root=options.data_root)
    print(f"{run_dir}: best weights (epoch {evaluation.epoch}) on {evaluation.images:,} {split} images")
    show(options, {"scored": (evaluation, "")})
    return as_json(run_dir, evaluation, None, {})


def other_images(options: Options, source: str) -> dict[str, Any]:
    from inference.evaluate import evaluate_on
    from trainers.seen.hashes import SELECTED, TRAINED

    classifier = options.open()
    columns = (options.path_column, options.label_column, options.group)
    data = DataConfig(source, options.data_root or Path("data"), *columns)
    unseen, seen, uses = evaluate_on(classifier, data, split=options.split, folder=options.output)
    images, parts = f"{options.split or 'labelled'} images of {source}", {}
    if unseen is None and seen is not None:
        print(f"{classifier.source} has seen all {seen.images:,} {images}: this is what it remembers, no test score")
    elif unseen is not None:
        of = f"{unseen.images:,} {images}" + " that it has not seen" * (seen is not None)
        print(f"{classifier.source} on {of}")
        parts["scored" if seen is None else "unseen"] = (unseen, "")
    if seen is not None:
        used = f": {uses[TRAINED]:,} trained on, {uses[SELECTED]:,} used to choose its epoch; no test score"
        parts["seen"] = (seen, used)
    show(options, parts)
    return as_json(classifier.source, unseen, seen, uses)


def show(options: Options, parts: Mapping[str, tuple[Evaluation, str]]) -> None:
    """A row for each evaluation with its remark, then all about the first."""
    from inference.evaluation_report import as_table, lines

    for evaluation, _ in parts.values():
        if options.csv and evaluation.files[0].suffix == ".npz":
            evaluation.files.append(as_table(evaluation.files[0]))
    rows = [  # an interval would say how good it is on others, of which those that it has seen say nothing
        (name, found.metrics, f"{pluralise(found.images, 'image')}{remark}", None if name == "seen" else found.design)
        for name, (found, remark) in parts.items()
    ]
    first, _ = next(iter(parts.values()))
    print("\n".join(map(fitted_to_terminal, [*score_lines(rows), "", *lines(first)])))


def fitted_to_terminal(line: str) -> str:
    """The line, broken where the terminal is narrower: below its text, where a name stands before that."""
    named = line[NAMES - 1 : NAMES].strip() and line[NAMES : NAMES + 2] == "  "
    return wrapped(line, indent=NAMES + 2 if named else 0)


NAMES = 17
"""Columns of the names before the lines of `inference.evaluation_report`."""


def as_json(
    model: Path | str, scored: Evaluation | None, seen: Evaluation | None, uses: Mapping[str, int]
) -> dict[str, Any]:
    """Build what `--json` prints: docs/use-the-result.md lists the fields."""
    return {"model": model, "scored": scored, "seen": seen, "seen_as": uses}
