"""Run `check DATA`: find what is wrong with a set before a model learns it."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from commands import arguments
from commands.output import JsonOption, json_document
from commands.parser import UsageError
from common.options import Output, operand
from common.shell import command
from common.tables import csv_text
from common.text import format_table, pluralise, printable, wrapped
from datasets.config import Columns, data_place, words
from trainers.config import OutputConfig
from trainers.storage.data_folder import claimed_folder, data_folder

if TYPE_CHECKING:
    from datasets.checking.check import CheckReport
    from datasets.sources.problems import Problem

CSV_COLUMNS = ("kind", "severity", "path", "split", "label", "other", "detail", "data")


@dataclass(frozen=True)
class Options(JsonOption, arguments.ImagesOptions):
    """Look for faults in a set of images: damaged files, duplicates across splits, shortcuts, and 30 more.

    Exit code 0: clean, or warnings only; 3: training would be wrong.
    """

    output: Annotated[Path | None, Output] = None
    """Write all findings to this CSV file. `train --exclude FILE` takes it. Default: runs/<data>/check.csv."""
    workers: int | None = None
    """Read with this many processes. Default: one per processor core."""
    sample: int | None = None
    """Read only this many images, spread over the set. For a first look at a large one."""
    no_near: bool = False
    """Skip the search for near-duplicates. Saves minutes on a million images."""

    def __post_init__(self) -> None:
        if self.sample is not None and self.sample < 1:
            raise UsageError(f"sample={self.sample} must be 1 or more")
        if self.workers is not None and self.workers < 0:
            raise UsageError(f"workers={self.workers} must be 0 or more")

    @property
    def csv_path(self) -> Path:
        return self.output or data_folder(OutputConfig(), self.data) / "check.csv"


def main(config: Options) -> int:
    """Check, write the full list, and print the short one.

    Returns 0, or 3 when training would be wrong."""
    from datasets.checking.check import check_source

    workers = config.workers if config.workers is not None else os.cpu_count() or 1
    columns = Columns(config.path_column, config.label_column, config.group)
    with json_document(config) as document:
        csv_path = config.csv_path  # refuse it before minutes of reading
        report = check_source(
            config.data,
            data_root=config.data_root,
            columns=columns,
            workers=workers,
            sample=config.sample,
            near=not config.no_near,
        )
        if report.findings or config.output or csv_path.exists():  # replace that of an earlier check
            if config.output is None:
                claimed_folder(OutputConfig(), config.data)
            place = data_place(config.data)
            rows = ((finding.kind, finding.severity, *finding[1:], place) for finding in report.findings)
            with arguments.output_file(csv_path) as file:
                file.write(csv_text(CSV_COLUMNS, rows))
        print(wrapped("\n".join(_table(config, report))))
        document.update(as_json(config, report))
    return report.exit_code


def as_json(config: Options, report: CheckReport) -> dict[str, Any]:
    """Build the document of `--json`; docs/use-the-result.md lists its fields."""
    reading = report.reading
    return {
        "data": config.data,
        "form": reading.form,
        "splits": {split or "all": reading.counts(split) for split in reading.splits},
        "errors": report.errors,
        "warnings": len(report.findings) - report.errors,
        "kinds": {first.kind: count for count, first in report.kinds()},
        "findings": [{**finding._asdict(), "severity": finding.severity} for finding in report.findings],
        "notes": report.notes,
        "csv": config.csv_path if config.csv_path.exists() else None,
        "shortcuts": [shortcut._asdict() for shortcut in report.shortcuts],
    }


def _table(config: Options, report: CheckReport) -> list[str]:
    reading = report.reading
    sizes = ", ".join(f"{sum(reading.counts(split).values()):,} {split or 'images'}" for split in reading.splits)
    classes = len(set().union(*reading.classes.values()))
    lines = [f"{printable(config.data)}: {reading.form}, {pluralise(classes, 'class')}, {sizes}", verdict(report)]
    lines += [f"shortcut: {shortcut}" for shortcut in report.shortcuts[:1]]
    if groups := report.groups:
        lines.append(groups)
    lines += [f"note: {note}" for note in report.notes]
    if not report.findings:
        return [*lines, next_step(config, report)]
    room = shutil.get_terminal_size().columns - 44 if sys.stdout.isatty() else 1000
    rows = [(first.kind, first.severity, f"{count:,}", _example(first, room)) for count, first in report.kinds()]
    lines += ["", *format_table([("kind", "severity", "count", "for example"), *rows], left=(0, 1, 3))]
    lines += ["", f"all of them: {printable(str(config.csv_path))}"]
    if not report.errors:
        lines.append(next_step(config, report))
    elif deeper := next((finding.other for finding in report.findings if finding.kind == "above_the_classes"), ""):
        lines.append(f"next: {command('check', operand(deeper))}")
    elif any(_is_of_an_image(finding) for finding in report.findings):
        lines += ["to train without the images of the errors:", train_command(config, config.csv_path)]
    return lines


def verdict(report: CheckReport) -> str:
    """Say in one sentence whether to train on these images."""
    if not report.findings:
        return "No fault found."
    numbers = {"error": report.errors, "warning": len(report.findings) - report.errors}
    counts = ", ".join(pluralise(number, severity) for severity, number in numbers.items() if number)
    if report.errors:
        return f"Training would be wrong: {counts}."
    if report.shortcuts:
        return f"A model may learn a shortcut in place of the content: {counts}."
    return f"No errors, {pluralise(len(report.findings), 'warning')}: you can train."


def _is_of_an_image(finding: Problem) -> bool:
    """Return whether an error is about its image.

    Others are about a class, the bit depth of the set, or two rows of a good image."""
    of_others = finding.path == finding.label or finding.kind in ("narrow_range", "all_blank", "duplicate_row")
    return finding.severity == "error" and not of_others


def next_step(config: Options, report: CheckReport) -> str:
    """Name the next step: training, or first a look at a shortcut."""
    if not report.shortcuts:
        return f"next: {train_command(config)}"
    shortcut = f"take the shortcut ({report.shortcuts[0].fact}) out, or a score will be that of the shortcut"
    return f"next: {shortcut}; then {train_command(config)}"


def train_command(config: Options, exclude: Path | None = None) -> str:
    data = replace(config.images, exclude=exclude)
    return command("train", *words(data), "--minutes", "5")


def _example(finding: Problem, room: int) -> str:
    """Name an image of a kind of finding, with details where they fit."""
    other = f" = {finding.other}" if finding.other and finding.other not in finding.detail else ""
    text = printable(finding.path + other + (f" ({finding.detail})" if finding.detail else ""))
    return text if len(text) <= room else printable(finding.path)
