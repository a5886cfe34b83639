"""`predict RUN PATH...`: classify image files: CSV or JSON lines out, one line per image."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TextIO

import tyro

from commands import arguments
from datasets.text import printable

if TYPE_CHECKING:
    from inference.classifier import Classifier
    from inference.predict import Prediction


@dataclass(frozen=True)
class Options:
    """Classify images: files, folders, globs, or `-` for standard input (file names line by line, or one image).

    Unreadable files are named on standard error and skipped; the exit code is then 3. Where a file's folder has the
    name of a class, that is taken as its true label.
    """

    run: Annotated[str, tyro.conf.Positional]
    """A run directory, `latest`, an export (.safetensors, .onnx, .pt2), a weights file (with --model), or hf:ID."""
    paths: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Images."""
    top: int = 1
    """How many classes to give per image, the most probable first."""
    format: Literal["auto", "csv", "jsonl"] = "auto"
    """CSV or one JSON object per line. `auto`: by the name of --output, else CSV."""
    output: Path | None = None
    """File to write. Default: standard output."""
    grid: Path | None = None
    """PNG file for a grid of the first pictures: predicted [true], green when right, red when wrong."""
    grid_images: int = 25
    """How many pictures the grid shows at most."""
    calibrated: bool = False
    """Divide the logits by the temperature that `evaluate` fitted on val."""
    batch_size: int = 32
    """Images per forward pass."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    model: str | None = None
    """Which model a weights file from elsewhere belongs to."""
    class_names: Path | None = None
    """Text file with one class name per line, for weights that carry none."""
    trust: bool = False
    """Open a .pt2 file, which can run code that is in it."""
    output_dir: Path = Path("runs")
    """Where `latest` is looked for."""

    def __post_init__(self) -> None:
        for field in ("top", "grid_images", "batch_size"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field}={getattr(self, field)} must be at least 1")

    @property
    def lines(self) -> Literal["csv", "jsonl"]:
        if self.format != "auto":
            return self.format
        return "jsonl" if self.output is not None and self.output.suffix in (".jsonl", ".json") else "csv"


def parse(argv: Sequence[str], prog: str) -> Options:
    options: Options = arguments.parse(Options, argv, prog=prog)
    if not options.paths:
        raise arguments.UsageError(f"no images named; see {prog} --help")
    return options


def main(options: Options) -> int:
    """0, or 3 when a file could not be read."""
    from inference.classifier import open_classifier
    from inference.predict import find_images, predict, tally

    classifier = open_classifier(
        options.run, device=options.device, model=options.model, class_names=options.class_names,
        trust=options.trust, output_dir=options.output_dir,
    )  # fmt: skip
    stream = predict(
        classifier,
        find_images(options.paths, sys.stdin.buffer if "-" in options.paths else None),
        top=options.top,
        batch_size=options.batch_size,
        temperature=temperature_of(classifier) if options.calibrated else 1.0,
        keep_pixels=options.grid is not None,
    )
    pictures: list[Prediction] = []
    try:
        with _opened(options.output) as file, _progress() as advance:
            write = _writer(file, options)

            def each(prediction: Prediction) -> None:
                advance()
                if prediction.error is not None:
                    _complain(prediction.error)
                    return
                write(prediction)
                if options.grid is not None and len(pictures) < options.grid_images:
                    pictures.append(prediction)

            counts = tally(stream, each=each)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if options.grid is not None and pictures:
        from figures.results import prediction_grid, save

        save(prediction_grid(pictures), options.grid)
    read, unreadable, labelled, correct = counts
    if labelled:
        _say(f"{correct} of {labelled} images whose folder names their class are right ({correct / labelled:.2%})")
    if unreadable:
        _complain(f"{unreadable} of {read + unreadable} files could not be read")
    return 3 if unreadable else 0


def temperature_of(classifier: Classifier) -> float:
    """What `evaluate` fitted for this run.

    Raises:
        UsageError: nothing has been fitted.
    """
    from inference.evaluation_report import read_temperature

    temperature = read_temperature(classifier.folder / "eval")
    if temperature is None:
        raise arguments.UsageError(
            f"{classifier.source} has no fitted temperature; python main.py evaluate {classifier.source} fits it on val"
        )
    return temperature


@contextlib.contextmanager
def _opened(path: Path | None) -> Iterator[TextIO]:
    if path is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w", newline="", encoding="utf-8")
    except OSError as error:
        raise arguments.UsageError(f"cannot write {path}: {error.strerror}; choose another --output") from error
    with file:
        yield file


def _writer(file: TextIO, options: Options) -> Callable[[Prediction], None]:
    if options.lines == "jsonl":
        return lambda prediction: print(json.dumps(_as_object(prediction), ensure_ascii=False), file=file)
    writer = csv.writer(file, lineterminator="\n")
    header = ["path", "label", "predicted", "probability"]
    header += [f"{name}_{rank}" for rank in range(2, options.top + 1) for name in ("predicted", "probability")]
    writer.writerow(header)
    return lambda prediction: writer.writerow(_as_row(prediction))


def _as_row(prediction: Prediction) -> list[str]:
    row = [printable(prediction.path), prediction.label or ""]
    for name, probability in prediction.top:
        row += [name, f"{probability:.7g}"]
    return row


def _as_object(prediction: Prediction) -> dict[str, object]:
    top = [{"class": name, "probability": round(probability, 9)} for name, probability in prediction.top]
    return {
        "path": printable(prediction.path), "label": prediction.label, "predicted": prediction.predicted, "top": top,
    }  # fmt: skip


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[], object]]:
    from tqdm import tqdm

    # disable=None: silent where standard error is not a terminal
    with tqdm(desc="predict", unit="image", file=sys.stderr, disable=None, leave=False) as bar:
        yield bar.update


def _complain(line: str) -> None:
    _say(f"error: {printable(line)}")


def _say(line: str) -> None:
    from tqdm import tqdm

    tqdm.write(line, file=sys.stderr)
