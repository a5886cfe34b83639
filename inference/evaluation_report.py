"""Report on an evaluation, class by class, and on how far its confidence is right."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from common.files import write_text
from common.tables import csv_text
from common.text import format_table, printable
from inference.certainty.answers_report import JudgedPass, write_answers_report
from inference.scored_pass import ScoredPass
from trainers.engine.engines import write_predictions
from trainers.engine.metrics import (
    ClassRow,
    confidence_bins,
    confusion_among,
    expected_calibration_error,
    most_confused,
    per_class,
)
from trainers.engine.predictions import Predictions
from trainers.statistics import Design, design_of

MOST_COLUMNS = 1_000
"""Classes whose confusion matrix is written as a table."""


@dataclass(frozen=True)
class Evaluation:
    """The metrics of one split as fractions, what follows from them, and its files."""

    metrics: dict[str, float]
    images: int
    design: Design
    """Effect of groups on the images."""
    interval: tuple[float, float]
    """The 95 % interval of the accuracy (Wilson 1927), of images or of groups of them."""
    classes: list[ClassRow]
    files: list[Path]
    temperature: float | None
    """Divisor of the logits; fitted on val, None where nothing was."""
    scaled: dict[str, float]
    """`loss` and `ece` once the logits are divided by it."""
    epoch: int | None = None
    """Epoch of a run's best weights."""
    logged: dict[str, float] = field(default_factory=dict)
    """Metrics that training logged for the same weights; empty where it did not."""
    notes: Sequence[str] = ()
    answers: dict[str, Any] = field(default_factory=dict)
    """Numbers on how far its answers can be relied on (`answers_report.numbers_of_answers`)."""
    said: Sequence[str] = ()
    """Findings in sentences."""


def write_evaluation(folder: Path, judged: JudgedPass) -> Evaluation:
    """Write what a pass found into a folder.

    `<name>_predictions.csv`, `_per_class.csv`, `_confusion.csv` and `.png`, `_reliability.png`, and what
    `write_answers_report` writes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    scored, temperature = judged.scored, judged.temperature
    classes = per_class(scored.outputs, scored.class_names)
    design = design_of(scored.outputs.correct, scored.units)
    files = [*write_tables(folder, scored, classes), *draw_scores(folder, scored, temperature)]
    numbers, sentences, more = write_answers_report(folder, judged)
    return Evaluation(
        metrics=scored.metrics,
        images=design.images,
        design=design,
        interval=design.interval(scored.metrics["accuracy"]),
        classes=classes,
        files=[*files, *more],
        temperature=temperature,
        scaled={} if temperature is None else scaled_metrics(scored, temperature),
        answers=numbers,
        said=sentences,
    )


def write_tables(folder: Path, scored: ScoredPass, classes: Sequence[ClassRow]) -> list[Path]:
    """Write the predictions, the scores of each class, and the confusion matrix; return the files."""
    name, names = scored.name, scored.class_names
    predictions = write_predictions(folder, name, scored.scores, scored.images, names)
    of_classes, confusion = (folder / f"{name}_{table}.csv" for table in ("per_class", "confusion"))
    write_text(of_classes, csv_text(ClassRow._fields, classes))
    write_text(confusion, confusion_text(scored.outputs, names))
    return [predictions, of_classes, confusion]


def draw_scores(folder: Path, scored: ScoredPass, temperature: float | None) -> list[Path]:
    """Draw the confusion matrix and the reliability, before and after calibration; return the files."""
    from trainers.reporting.figures.results import (  # matplotlib takes a second to import
        confusion_figure,
        reliability_figure,
        save,
    )

    name, outputs = scored.name, scored.outputs
    counts, names, shown = most_confused(outputs, scored.class_names)
    confusion = confusion_figure(counts, names, title=f"{name}: {len(outputs.labels):,} images{shown}")
    bins = confidence_bins(outputs.confidence, outputs.correct)
    scaled = None if temperature is None else scaled_bins(scored, temperature)
    diagram = reliability_figure(bins, ece=scored.metrics["ece"], title=name, scaled=scaled)
    return [save(confusion, folder / f"{name}_confusion.png"), save(diagram, folder / f"{name}_reliability.png")]


def scaled_metrics(scored: ScoredPass, temperature: float) -> dict[str, float]:
    """Compute `loss` and `ece` once the logits are divided by the temperature."""
    logits, labels = scored.outputs.logits.double(), scored.outputs.labels
    loss = F.cross_entropy(logits / temperature, labels).item()
    return {"loss": loss, "ece": expected_calibration_error(scaled_bins(scored, temperature))}


def scaled_bins(scored: ScoredPass, temperature: float) -> Tensor:
    """Return the `confidence_bins` once the logits are divided by the temperature."""
    confidence, predicted = (scored.outputs.logits.float() / temperature).softmax(dim=1).max(dim=1)
    return confidence_bins(confidence, predicted == scored.outputs.labels)


def confusion_text(outputs: Predictions, class_names: Sequence[str]) -> str:
    """Write the confusion matrix as a table.

    Of more than MOST_COLUMNS classes it has a row for each pair that occurs."""
    if len(class_names) <= MOST_COLUMNS:
        confusion = confusion_among(outputs, torch.arange(len(class_names)))
        return csv_text(["true \\ predicted", *class_names], zip(class_names, *confusion.T.tolist(), strict=True))
    pairs = Counter(zip(outputs.labels.tolist(), outputs.predicted.tolist(), strict=True))
    rows = ((class_names[true], class_names[predicted], images) for (true, predicted), images in sorted(pairs.items()))
    return csv_text(("true", "predicted", "images"), rows)


LISTED = 4
"""Classes in the table on a terminal."""


def report_lines(evaluation: Evaluation) -> Iterator[str]:
    """Yield the lines below the scores: notes, whether training logged the same, answers, classes, files."""
    yield from (f"note: {note}" for note in evaluation.notes)
    if len(evaluation.classes) > 5 and "accuracy_top5" in evaluation.metrics:
        yield f"{'top-5 accuracy':>17}  {evaluation.metrics['accuracy_top5']:.2%}"
    logged = {name: value for name, value in evaluation.logged.items() if name in evaluation.metrics}
    changed = [name for name, value in logged.items() if value != evaluation.metrics[name]]
    if logged and not changed:
        yield f"{'as logged':>17}  the scores of training, to the last bit"
    for name in changed:
        yield f"{name.replace('_', ' '):>17}  {evaluation.metrics[name]!r}, but training logged: {logged[name]!r}"
    if evaluation.temperature is not None:
        loss, ece = evaluation.scaled["loss"], evaluation.scaled["ece"]
        yield f"{'temperature':>17}  {evaluation.temperature:.4f} fitted on val: loss {loss:.4f}, ECE {ece:.4f} with it"
    yield from evaluation.said
    yield ""
    yield from _class_table(evaluation.classes)
    if evaluation.files:
        yield f"{'files':>17}  {evaluation.files[0]} and {len(evaluation.files) - 1} more"


def _class_table(classes: Sequence[ClassRow]) -> Iterator[str]:
    """Yield a table of all classes, or of many the ones with the lowest F1."""
    rows = sorted(classes, key=lambda row: 1.0 if row.f1 is None else row.f1)[:LISTED]
    if len(classes) <= LISTED + 1:
        rows = [*classes]
    else:
        yield f"the {LISTED} classes with the lowest F1; all {len(classes):,} are in the per-class file"
    table = [["class", "precision", "recall", "F1", "images"]]
    for row in rows:
        shares = ("-" if value is None else f"{value:.2%}" for value in (row.precision, row.recall, row.f1))
        table.append([printable(row.name), *shares, f"{row.images:,}"])
    yield from format_table(table)
