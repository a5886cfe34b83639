"""Report of an evaluation, class by class, as files next to its predictions; and how far its confidence is right."""

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
from datasets.copies import units_of
from inference.certainty.report import report
from trainers.calibration import sharpness
from trainers.engine.engines import Scores, write_predictions
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
    """The metrics of one split as fractions, what is derived from its scores, and the files it was written to."""

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
    """Numbers that say how far its answers can be relied on (`numbers_of` in inference/certainty/report.py); empty
    where nothing is said."""
    said: Sequence[str] = ()
    """Findings in sentences."""


def write_evaluation(
    folder: Path,
    name: str,
    scores: Scores,
    kept: Sequence[tuple[Tensor, ...]],
    dataset: Any,
    class_names: Sequence[str],
    *,
    answers: Any = None,
    fit_for: str | None = None,
) -> Evaluation:
    """Write `<name>_predictions.csv`, `_per_class.csv`, `_confusion.csv` and `.png`, `_reliability.png`, and what
    `certainty.report` writes of the `answers`, into `folder`.

    `kept`: the features of each pass. With `fit_for`, the name of the weights, a temperature and answers are fitted to
    these scores and saved; else the given answers, and their temperature, are used.
    """
    from trainers.reporting.figures.results import (  # matplotlib takes a second to import
        confusion_figure,
        reliability_figure,
        save,
    )

    folder.mkdir(parents=True, exist_ok=True)
    outputs = scores.outputs
    temperature = None
    if outputs.whole:
        temperature = fitted_temperature(outputs) if fit_for is not None else answers and answers.temperature
    bins, scaled_bins, scaled = confidence_bins(outputs.confidence, outputs.correct), None, {}
    if temperature is not None:
        scaled_bins = reliability(outputs.logits, outputs.labels, temperature=temperature)
        scaled = _calibration(scores, temperature)
    classes = per_class(outputs, class_names)
    predictions = write_predictions(folder, name, scores, dataset, class_names)
    tables = [predictions, *(folder / f"{name}_{table}.csv" for table in ("per_class", "confusion"))]
    write_text(tables[1], csv_text(ClassRow._fields, classes))
    write_text(tables[2], confusion_text(outputs, class_names))
    counts, names, shown = most_confused(outputs, class_names)
    confusion = confusion_figure(counts, names, title=f"{name}: {len(outputs.labels):,} images{shown}")
    diagram = reliability_figure(bins, ece=scores.metrics["ece"], title=name, scaled=scaled_bins)
    pictures = [save(confusion, folder / f"{name}_confusion.png"), save(diagram, folder / f"{name}_reliability.png")]
    design = design_of(outputs.correct, units_of(dataset.samples, dataset.indices))
    about = (folder, name, outputs, kept, dataset, class_names)
    numbers, said, files = report(*about, answers=answers, fit_for=fit_for, temperature=temperature)
    return Evaluation(
        scores.metrics,
        design.images,
        design,
        design.interval(scores.metrics["accuracy"]),
        classes,
        [*tables, *pictures, *files],
        temperature,
        scaled,
        answers=numbers,
        said=said,
    )


def confusion_text(outputs: Predictions, class_names: Sequence[str]) -> str:
    """Write the confusion matrix as a table; of more than MOST_COLUMNS classes a row for each pair that occurs."""
    if len(class_names) <= MOST_COLUMNS:
        confusion = confusion_among(outputs, torch.arange(len(class_names)))
        return csv_text(["true \\ predicted", *class_names], zip(class_names, *confusion.T.tolist(), strict=True))
    pairs = Counter(zip(outputs.labels.tolist(), outputs.predicted.tolist(), strict=True))
    rows = ((class_names[true], class_names[predicted], images) for (true, predicted), images in sorted(pairs.items()))
    return csv_text(("true", "predicted", "images"), rows)


def _calibration(scores: Scores, temperature: float) -> dict[str, float]:
    logits, labels = scores.outputs.logits, scores.outputs.labels
    bins = reliability(logits, labels, temperature=temperature)
    return {
        "loss": F.cross_entropy(logits.double() / temperature, labels).item(),
        "ece": expected_calibration_error(bins),
    }


def reliability(logits: Tensor, labels: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Return the `confidence_bins` of predictions (N, classes), once the logits are divided by `temperature`."""
    confidence, predicted = (logits.detach().float() / temperature).softmax(dim=1).max(dim=1)
    return confidence_bins(confidence, predicted == labels)


def fitted_temperature(outputs: Predictions) -> float:
    """Fit the temperature (Guo et al. 2017) to the logits and labels of validation images."""
    return 1 / sharpness(outputs.logits.double().numpy(), outputs.labels.numpy())


LISTED = 4
"""Classes in the table on a terminal."""


def lines(evaluation: Evaluation) -> Iterator[str]:
    """Yield the lines below the scores: notes, whether training logged the same, answers, classes, files."""
    yield from (f"note: {note}" for note in evaluation.notes)
    if len(evaluation.classes) > 5 and "accuracy_top5" in evaluation.metrics:
        yield f"{'top-5 accuracy':>17}  {evaluation.metrics['accuracy_top5']:.2%}"
    logged = {name: value for name, value in evaluation.logged.items() if name in evaluation.metrics}
    changed = [name for name, value in logged.items() if value != evaluation.metrics[name]]
    if logged and not changed:
        yield f"{'as logged':>17}  bit for bit what training logged"
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
    """Yield the lines of a table of all classes, or of many the ones with the lowest F1."""
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
