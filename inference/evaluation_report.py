"""What an evaluation found, class by class, as files next to its predictions."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trainers.calibration import (
    Bin,
    expected_calibration_error,
    fit_temperature,
    negative_log_likelihood,
    reliability,
)
from trainers.evaluation import Scores, write_predictions
from trainers.run_directory import read_json, write_json, write_text


class ClassRow(NamedTuple):
    """One class, shares as fractions: no precision (None) when it is never predicted, no recall without images."""

    name: str
    precision: float | None
    recall: float | None
    f1: float | None
    images: int


@dataclass(frozen=True)
class Report:
    """All that is derived from the scores of one split, and the files it was written to."""

    classes: tuple[ClassRow, ...]
    balanced_accuracy: float
    temperature: float | None
    """What divides the logits; fitted on val, None where nothing was."""
    scaled_ece: float | None
    scaled_loss: float | None
    files: tuple[Path, ...]


def write_report(
    folder: Path, name: str, scores: Scores, dataset: Any, class_names: Sequence[str], *, fit: bool
) -> Report:
    """Write `<name>_predictions.csv`, `_per_class.csv`, `_confusion.csv` and `.png`, `_reliability.png` into `folder`.

    With `fit` a temperature is fitted to these scores and saved as temperature.json; else the saved one is used.
    """
    from figures.results import confusion_figure, reliability_figure, save  # matplotlib takes a second to import

    folder.mkdir(parents=True, exist_ok=True)
    confusion = scores.confusion.numpy()
    rows = per_class(confusion, class_names)
    if fit:
        save_temperature(folder, scores)
    temperature = read_temperature(folder)
    bins = reliability(scores.logits, scores.labels)
    scaled: list[Bin] = []
    if temperature is not None:
        scaled = reliability(scores.logits, scores.labels, temperature=temperature)
    files = [folder / f"{name}_{what}" for what in ("predictions.csv", "per_class.csv", "confusion.csv")]
    write_predictions(files[0], scores, dataset, class_names)
    _write_csv(files[1], ClassRow._fields, rows)
    _write_csv(files[2], ["true \\ predicted", *class_names], zip(class_names, *confusion.T.tolist(), strict=True))
    figures = (
        (confusion_figure(confusion, class_names, title=f"{name}: {len(scores.labels):,} images"), "confusion.png"),
        (reliability_figure(bins, ece=scores.metrics["ece"], title=name, scaled=scaled), "reliability.png"),
    )
    files += [save(figure, folder / f"{name}_{what}") for figure, what in figures]
    return Report(
        classes=rows,
        balanced_accuracy=balanced_accuracy(confusion),
        temperature=temperature,
        scaled_ece=expected_calibration_error(scaled) if scaled else None,
        scaled_loss=None
        if temperature is None
        else negative_log_likelihood(scores.logits, scores.labels, temperature=temperature),
        files=tuple(files),
    )


def per_class(confusion: np.ndarray, class_names: Sequence[str]) -> tuple[ClassRow, ...]:
    """Precision, recall and F1 of each class from counts (classes, classes), rows true."""
    rows = []
    for index, name in enumerate(class_names):
        hits, true, predicted = (
            int(confusion[index, index]),
            int(confusion[index].sum()),
            int(confusion[:, index].sum()),
        )
        rows.append(
            ClassRow(
                name,
                hits / predicted if predicted else None,
                hits / true if true else None,
                2 * hits / (true + predicted) if true + predicted else None,
                true,
            )
        )
    return tuple(rows)


def balanced_accuracy(confusion: np.ndarray) -> float:
    """Mean recall over the classes that have images."""
    true = confusion.sum(axis=1)
    return float((confusion.diagonal()[true > 0] / true[true > 0]).mean())


def save_temperature(folder: Path, scores: Scores) -> None:
    temperature = fit_temperature(scores.logits, scores.labels)
    values = {"temperature": temperature, "fitted_on": "val", "images": len(scores.labels)}
    for name, divisor in (("before", 1.0), ("after", temperature)):
        bins = reliability(scores.logits, scores.labels, temperature=divisor)
        values[f"loss_{name}"] = negative_log_likelihood(scores.logits, scores.labels, temperature=divisor)
        values[f"ece_{name}"] = expected_calibration_error(bins)
    write_json(folder / "temperature.json", values)


def read_temperature(folder: Path) -> float | None:
    """The temperature that was fitted on val; None where none was."""
    path = folder / "temperature.json"
    return float(read_json(path)["temperature"]) if path.is_file() else None


def _write_csv(path: Path, header: Sequence[str], rows: Any) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_text(path, text.getvalue())
