"""Run `predict RUN PATH...`: classify image files, with a CSV line for each."""

from __future__ import annotations

import contextlib
import math
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TextIO

from commands.arguments import ModelOptions, output_file, writing
from commands.parser import UsageError
from common.options import Arg, Output, Positional, require_counts
from common.shell import command
from common.text import pluralise, printable, wrapped

if TYPE_CHECKING:
    from inference.classifier import Classifier
    from inference.images import ImageFile
    from inference.predict import ExampleSheet, Tally


@dataclass(frozen=True)
class Options(ModelOptions):
    """Classify images: files, folders, globs, or `-` for their names on standard input, line by line.

    Unreadable files are named on standard error and skipped; the exit code is then 3. Where a file's folder has the
    name of a class, that is taken as its true label.
    """

    paths: Annotated[tuple[str, ...], Positional, Arg(metavar="IMAGE")] = ()
    """Name image files, folders or globs. `-` reads names from standard input."""
    top: int = 1
    """List this many classes an image, the likeliest first."""
    output: Annotated[Path | None, Output] = None
    """Write the CSV to this file. Default: standard output."""
    grid: Annotated[Path | None, Output] = None
    """Draw a grid of pictures in this PNG file. The least and the most certain of each class, green if right, red if
    wrong."""
    grid_images: int | None = None
    """Draw at most this many pictures. Default: 25."""
    calibrated: bool = False
    """Divide the logits by the temperature of `evaluate`. It was fitted on the validation images."""
    cover: Annotated[Literal["0.9", "0.95", "0.99"], Arg(metavar="SHARE")] = "0.95"
    """Let each `set` of classes be right this often. 0.9, 0.95 or 0.99; a run has sets once it was evaluated."""
    false_alarms: Annotated[Literal["0.01", "0.05", "0.1"], Arg(metavar="SHARE")] = "0.05"
    """Call this share of known images `unknown`. 0.01, 0.05 or 0.1 of the images of the same source."""
    batch_size: int = 32
    """Classify this many images in a forward pass."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.paths:
            raise UsageError(f"no images named: {command('predict', self.run, 'path/to/images')}")
        require_counts(self, "top", "grid_images", "batch_size")
        if self.grid_images is not None and self.grid is None:
            raise UsageError("--grid-images is for the picture of --grid FILE.png: add it")


def main(options: Options) -> int:
    """Return 0, or 3 when a file could not be read."""
    from inference.images import find_images
    from inference.predict import ExampleSheet, Tally, predict
    from inference.prediction_table import columns_of_predict, write_rows

    classifier = options.open()
    say_what_is_not_promised(classifier, options)
    judged, temperature = classifier.answers is not None, temperature_of(classifier) if options.calibrated else 1.0
    bar = options.output is not None or is_file(sys.stdout)
    tally, spread = Tally(classifier, bar=bar), ExampleSheet(options.grid_images or 25)
    found = find_images(options.paths, sys.stdin.buffer if "-" in options.paths else None)
    with table_of(options, tally, found) as (file, files, begun):
        results = predict(
            classifier,
            files,
            top=options.top,
            batch_size=options.batch_size,
            temperature=temperature,
            keep_pixels=options.grid is not None,
            cover=float(options.cover),
            false_alarms=float(options.false_alarms),
        )
        images = tally.readable(results)
        if options.grid is not None:
            images = spread.seeing(images)
        columns = columns_of_predict(top=options.top, judged=judged, printed=options.output is None)
        write_rows(images, file, columns, header=not begun)
        file.flush()
    if options.grid is not None and spread.pool:
        draw_grid(spread, options.grid, of=tally.images)
    say(tally, [*filter(None, (options.output, options.grid if spread.pool else None))])
    return 3 if tally.unreadable else 0


def is_file(stream: TextIO) -> bool:
    """Return whether a stream goes to a file; a terminal, or a pipe that ends at one, shows its rows."""
    with contextlib.suppress(OSError, ValueError):
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    return False


@contextlib.contextmanager
def table_of(
    options: Options, tally: Tally, files: Iterator[ImageFile]
) -> Iterator[tuple[TextIO, Iterator[ImageFile], bool]]:
    """Open the table; yield it, the files whose rows it lacks, and whether it was begun by a command that was stopped.

    A picture needs all images, a pipe all rows."""
    from inference.continued import continued_table, key_of

    if options.output is None:
        yield sys.stdout, files, False
    elif options.grid is not None or (options.output.exists() and not options.output.is_file()):
        with output_file(options.output) as file:
            yield file, files, False
    else:
        key = key_of(tally.classifier, options)
        with (
            writing(options.output),
            continued_table(options.output, key, files, tally, batch_size=options.batch_size) as opened,
        ):
            yield opened


def temperature_of(classifier: Classifier) -> float:
    """Return the temperature that `evaluate` fitted to these weights. Raises UsageError: there is none."""
    if classifier.answers is not None and classifier.answers.temperature is not None:
        return float(classifier.answers.temperature)
    name = classifier.source
    if classifier.run is None:
        raise UsageError(f"{name} has no fitted temperature: export a run that `evaluate` has scored")
    raise UsageError(f"{name} has no fitted temperature; this fits it: {command('evaluate', classifier.run.path)}")


def say_what_is_not_promised(classifier: Classifier, options: Options) -> None:
    """Print a note to standard error on sets or thresholds that lack validation images."""
    note = None
    if classifier.answers is not None:
        needed = classifier.answers.images_needed([float(options.cover)], float(options.false_alarms))
        note = needed and f"too few validation images for all that was asked: {needed}"
    elif (options.cover, options.false_alarms) != (Options.cover, Options.false_alarms):
        note = f"{classifier.source} has neither sets nor unknowns: --cover and --false-alarms have no effect"
    if note is not None:
        print(wrapped(f"note: {note}"), file=sys.stderr)


def draw_grid(spread: ExampleSheet, path: Path, *, of: int) -> None:
    from trainers.reporting.figures.sheets import prediction_sheet, save

    shown = spread.chosen()
    title = f"{len(shown)} of {of:,} images: of each class the least and the most certain"
    save(prediction_sheet(shown, title=title, columns=max(2, math.ceil(len(shown) ** 0.5))), path)


def say(tally: Tally, files: Sequence[Path] = ()) -> None:
    """Print a summary to standard error: what was written, how many are right, unreadable files."""
    if files:
        unknown = f", {tally.unknown:,} of {tally.judged:,} unknown" if tally.judged else ""
        print(
            f"{pluralise(tally.images, 'image')}{unknown}: {', '.join(printable(str(file)) for file in files)}",
            file=sys.stderr,
        )
    if tally.labelled:
        share = f"{tally.right} of {tally.labelled} images whose folder names their class are right"
        trained_on = f"; the model was trained on {tally.trained_on:,} of them" if tally.trained_on else ""
        print(wrapped(f"{share} ({tally.right / tally.labelled:.1%}){trained_on}"), file=sys.stderr)
    if failed := tally.unreadable:
        print(f"error: {failed} of {tally.images + failed} files could not be read", file=sys.stderr)
