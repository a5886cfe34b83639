"""`predict RUN PATH...`: classify image files: CSV out, one line per image."""

import contextlib
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from commands.arguments import ModelOptions, UsageError, output_file
from datasets.shell import command
from vit.config import require_counts


@dataclass(frozen=True)
class Options(ModelOptions):
    """Classify images: files, folders, globs, or `-` for their names on standard input, line by line.

    Unreadable files are named on standard error and skipped; the exit code is then 3. Where a file's folder has the
    name of a class, that is taken as its true label.
    """

    paths: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE")]
    """Images."""
    top: int = 1
    """How many classes to give per image, the most probable first."""
    output: Path | None = None
    """File to write. Default: standard output."""
    grid: Path | None = None
    """PNG file: a grid of the least and the most certain pictures of each class, green when right, red when wrong."""
    grid_images: int = 25
    """How many pictures the grid shows at most."""
    calibrated: bool = False
    """Divide the logits by the temperature that `evaluate` fitted on val."""
    tta: bool = False
    """Answer for ten views of each image, in ten times the time: the image, moved to its four corners by a sixteenth of
    its side, and the mirror image of each. Not where a mirror image means something else, as of digits."""
    batch_size: int = 32
    """Images per forward pass."""

    def __post_init__(self) -> None:
        if not self.paths:
            raise UsageError("no images named; see python main.py predict --help")
        if self.tta and self.calibrated:
            raise UsageError("--calibrated divides by what was fitted to one view of each image: leave out it or --tta")
        require_counts(self, "top", "grid_images", "batch_size")


def main(options: Options) -> int:
    """0, or 3 when a file could not be read."""
    from inference.evaluation_report import read_temperature
    from inference.images import find_images
    from inference.predict import Spread, predict, write_rows
    from inference.ten_views import with_ten_views

    classifier = with_ten_views(options.open()) if options.tta else options.open()
    temperature = read_temperature(classifier.folder / "eval") if options.calibrated else 1.0
    if temperature is None:
        name = classifier.source
        if classifier.run_dir is None:
            raise UsageError(f"{name} has no fitted temperature: only a run has one, from its validation images")
        raise UsageError(f"{name} has no fitted temperature; this fits it: {command('evaluate', classifier.run_dir)}")
    results = predict(
        classifier,
        find_images(options.paths, sys.stdin.buffer if "-" in options.paths else None),
        top=options.top,
        batch_size=options.batch_size,
        temperature=temperature,
        keep_pixels=options.grid is not None,
    )
    spread = Spread(options.grid_images)
    with output_file(options.output) if options.output else contextlib.nullcontext(sys.stdout) as file:
        counts = write_rows(results, file, top=options.top, spread=None if options.grid is None else spread)
        file.flush()
    if options.grid is not None and spread.pool:
        from figures.sheets import judged_sheet, save

        shown = spread.chosen()
        images = f"{len(shown)} of {counts['files'] - counts['unreadable']:,} images"
        title = f"{images}: of each class the least and the most certain"
        save(judged_sheet(shown, title=title, columns=max(2, math.ceil(len(shown) ** 0.5))), options.grid)
    if counts["labelled"]:
        share = f"{counts['right']} of {counts['labelled']} images whose folder names their class are right"
        print(f"{share} ({counts['right'] / counts['labelled']:.2%})", file=sys.stderr)
    if counts["unreadable"]:
        print(f"error: {counts['unreadable']} of {counts['files']} files could not be read", file=sys.stderr)
    return 3 if counts["unreadable"] else 0
