"""Run `evaluate RUN`: score a run again, or any model on any labelled images."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from commands.arguments import ModelOptions
from commands.output import JsonOption, json_document, score_lines
from commands.parser import UsageError
from common.options import Arg, OutputFolder
from common.text import pluralise, wrapped
from datasets.config import DataConfig, Group, Name

if TYPE_CHECKING:
    from inference.evaluation_report import Evaluation


OF_OTHERS = ("model", "class_names", "path_column", "label_column", "group", "exclude", "on_bad_image", "output")
"""Options that have an effect only with --data."""


@dataclass(frozen=True)
class Options(JsonOption, ModelOptions):
    """Score a run's best weights on one of its splits, or any model on labelled images. The scores of a split are
    compared with what training logged. Tables and figures are written to the run's eval/.

    A run's own splits are scored as it trained, with its classes; with --device auto on a device of the kind that it
    trained on, where there is one.
    """

    split: Literal["train", "val", "test"] | None = None
    """Score this split. Default: val of the run's own data; every image of --data."""
    data: Annotated[str | None, Arg(metavar="NAME|PATH")] = None
    """Score these labelled images instead. A built-in set, folder, table or zip; classes are matched by name."""
    path_column: Name = None
    """Name the table's column of image files, as for train."""
    label_column: Name = None
    """Name the table's column of classes, as for train."""
    group: Group = None
    """Keep images of --data together, as for train. The confidence interval is then one of groups."""
    exclude: Path | None = None
    """Leave out images of --data listed in this CSV. As for train; `check` writes one."""
    on_bad_image: Annotated[Literal["fail", "skip"], Arg(metavar="skip")] = "fail"
    """Leave out unreadable images of --data. Default (fail): stop at the first."""
    data_root: Path | None = None
    """Find built-in sets in this folder. Default: where the run found them; else data."""
    output: Annotated[Path | None, OutputFolder] = None
    """Write the files about --data to this folder. Default: eval/ of the run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data is None and self.split == "train":
            raise UsageError("--split train is augmented in a run's own data: leave it out, and name images by --data")
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
    from trainers.storage.run_folder import RunFolder

    run, split = RunFolder.find(options.run, options.output_dir), options.split or "val"
    evaluation = evaluate_run(
        run,
        split=split,
        data_root=options.data_root,
        device=None if options.device == "auto" else options.device,
    )
    print(f"{run}: best weights (epoch {evaluation.epoch}) on {evaluation.images:,} {split} images")
    show(evaluation)
    return {"model": run.path, "scored": evaluation}


def other_images(options: Options, source: str) -> dict[str, Any]:
    from inference.evaluate import evaluate_on

    classifier = options.open()
    columns = (options.path_column, options.label_column, options.group)
    place = (source, options.data_root or Path("data"))
    data = DataConfig(*place, *columns, exclude=options.exclude, on_bad_image=options.on_bad_image)
    evaluation = evaluate_on(classifier, data, split=options.split, folder=options.output)
    print(f"{classifier.source} on {evaluation.images:,} {options.split or 'labelled'} images of {source}")
    show(evaluation)
    return {"model": classifier.source, "scored": evaluation}


def show(evaluation: Evaluation) -> None:
    from inference.evaluation_report import report_lines

    row = ("scored", evaluation.metrics, pluralise(evaluation.images, "image"), evaluation.design)
    print("\n".join(map(fitted_to_terminal, [*score_lines([row]), "", *report_lines(evaluation)])))


def fitted_to_terminal(line: str) -> str:
    """Wrap a line for the terminal, its text in a column right of its name."""
    named = line[NAMES - 1 : NAMES].strip() and line[NAMES : NAMES + 2] == "  "
    return wrapped(line, indent=NAMES + 2 if named else 0)


NAMES = 17
"""Width of the name column in the lines of `inference.evaluation_report`."""
