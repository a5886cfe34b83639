"""`predict RUN PATH...`: classify image files: CSV out, one line per image."""

from __future__ import annotations

import contextlib
import csv
import math
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import tyro

from commands import arguments
from commands.arguments import ModelOptions
from datasets.files import write_bytes
from datasets.text import guarded, printable
from vit.config import require_counts

if TYPE_CHECKING:
    from figures.judged import Judged
    from inference.classifier import Classifier
    from inference.images import Unreadable
    from inference.predict import Spread


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
            raise ValueError("no images named; see python main.py predict --help")
        if self.tta and self.calibrated:
            raise ValueError("--calibrated divides by what was fitted to one view of each image: leave out it or --tta")
        require_counts(self, "top", "grid_images", "batch_size")


def main(options: Options) -> int:
    """0, or 3 when a file could not be read."""
    from inference.images import find_images
    from inference.predict import predict
    from inference.ten_views import with_ten_views

    classifier = options.open()
    if options.tta:
        classifier = with_ten_views(classifier)
    results = predict(
        classifier,
        find_images(options.paths, sys.stdin.buffer if "-" in options.paths else None),
        top=options.top,
        batch_size=options.batch_size,
        temperature=temperature_of(classifier) if options.calibrated else 1.0,
        keep_pixels=options.grid is not None,
    )
    with arguments.output_file(options.output) if options.output else contextlib.nullcontext(sys.stdout) as file:
        counts, spread = _write(results, file, options)
        file.flush()
    if options.grid is not None and spread.pool:
        _draw(spread, options.grid, images=counts["files"] - counts["unreadable"])
    if counts["labelled"]:
        share = f"{counts['right']} of {counts['labelled']} images whose folder names their class are right"
        _say(f"{share} ({counts['right'] / counts['labelled']:.2%})")
    if counts["unreadable"]:
        _complain(f"{counts['unreadable']} of {counts['files']} files could not be read")
    return 3 if counts["unreadable"] else 0


def _draw(spread: Spread, path: Path, *, images: int) -> None:
    from figures.sheets import judged_sheet, png

    shown = spread.chosen()
    title = f"{len(shown)} of {images:,} images: of each class the least and the most certain"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, png(judged_sheet(shown, title=title, columns=max(2, math.ceil(len(shown) ** 0.5)))))


def _write(results: Iterable[Judged | Unreadable], file: TextIO, options: Options) -> tuple[Counter[str], Spread]:
    """Write a row per image and name what is none; how many there were, and pictures for the grid."""
    from tqdm import tqdm

    from inference.images import Unreadable
    from inference.predict import Spread

    writer, counts, spread = csv.writer(file, lineterminator="\n"), Counter[str](), Spread(options.grid_images)
    ranks = ["", *(f"_{rank}" for rank in range(2, options.top + 1))]
    writer.writerow(["path", "label", *(f"{name}{rank}" for rank in ranks for name in ("predicted", "probability"))])
    # disable=None: silent where standard error is not a terminal
    for image in tqdm(results, desc="predict", unit="image", file=sys.stderr, disable=None, leave=False):
        counts["files"] += 1
        if isinstance(image, Unreadable):
            counts["unreadable"] += 1
            _complain(image.error)
            continue
        ranked = [text for name, probability in image.ranked for text in (printable(name), f"{probability:.7g}")]
        writer.writerow(map(guarded, [printable(image.path), printable(image.label or ""), *ranked]))
        counts["labelled"] += image.label is not None
        counts["right"] += image.label == image.predicted
        if options.grid is not None:
            spread.add(image)
    return counts, spread


def temperature_of(classifier: Classifier) -> float:
    """What `evaluate` fitted for this run."""
    from inference.evaluation_report import read_temperature

    temperature = read_temperature(classifier.folder / "eval")
    if temperature is None:
        raise arguments.UsageError(
            f"{classifier.source} has no fitted temperature; python main.py evaluate {classifier.source} fits it on val"
        )
    return temperature


def _complain(line: str) -> None:
    _say(f"error: {printable(line)}")


def _say(line: str) -> None:
    from tqdm import tqdm

    tqdm.write(line, file=sys.stderr)
