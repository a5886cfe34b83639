"""What an evaluation found, class by class, as files next to its predictions."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets.files import write_text
from datasets.text import csv_text
from trainers.calibration import expected_calibration_error, fit_temperature, negative_log_likelihood, reliability
from trainers.evaluation import Scores, write_predictions
from trainers.metrics import ClassRow, per_class
from trainers.run_directory import read_json, write_json


@dataclass(frozen=True)
class Evaluation:
    """The metrics of one split as fractions, what is derived from its scores, and the files it was written to."""

    metrics: dict[str, float]
    images: int
    classes: list[ClassRow]
    files: list[Path]
    temperature: float | None
    """What divides the logits; fitted on val, None where nothing was."""
    scaled: dict[str, float]
    """`loss` and `ece` once the logits are divided by it."""
    epoch: int | None = None
    """Of a run: where its best weights are from."""
    logged: dict[str, float] = field(default_factory=dict)
    """What training logged for the same weights; empty where it did not."""
    notes: Sequence[str] = ()


def write_evaluation(
    folder: Path, name: str, scores: Scores, dataset: Any, class_names: Sequence[str], *, fit: bool
) -> Evaluation:
    """Write `<name>_predictions.csv`, `_per_class.csv`, `_confusion.csv` and `.png`, `_reliability.png` into `folder`.

    With `fit` a temperature is fitted to these scores and saved as temperature.json; else the saved one is used.
    """
    from figures.results import confusion_figure, reliability_figure, save  # matplotlib takes a second to import

    folder.mkdir(parents=True, exist_ok=True)
    if fit:
        save_temperature(folder, scores)
    temperature = read_temperature(folder)
    bins, scaled_bins, scaled = reliability(scores.logits, scores.labels), None, {}
    if temperature is not None:
        scaled_bins = reliability(scores.logits, scores.labels, temperature=temperature)
        scaled = _calibration(scores, temperature)
    classes = per_class(scores.confusion, class_names)
    tables = [folder / f"{name}_{table}.csv" for table in ("predictions", "per_class", "confusion")]
    write_predictions(tables[0], scores, dataset, class_names)
    write_text(tables[1], csv_text(ClassRow._fields, classes))
    counts = zip(class_names, *scores.confusion.T.tolist(), strict=True)
    write_text(tables[2], csv_text(["true \\ predicted", *class_names], counts))
    confusion = confusion_figure(scores.confusion.numpy(), class_names, title=f"{name}: {len(scores.labels):,} images")
    diagram = reliability_figure(bins, ece=scores.metrics["ece"], title=name, scaled=scaled_bins)
    pictures = [save(confusion, folder / f"{name}_confusion.png"), save(diagram, folder / f"{name}_reliability.png")]
    return Evaluation(scores.metrics, len(scores.labels), classes, [*tables, *pictures], temperature, scaled)


def _calibration(scores: Scores, temperature: float) -> dict[str, float]:
    bins = reliability(scores.logits, scores.labels, temperature=temperature)
    return {
        "loss": negative_log_likelihood(scores.logits, scores.labels, temperature=temperature),
        "ece": expected_calibration_error(bins),
    }


def save_temperature(folder: Path, scores: Scores) -> None:
    temperature = fit_temperature(scores.logits, scores.labels)
    values = {"temperature": temperature, "fitted_on": "val", "images": len(scores.labels)}
    for name, divisor in (("before", 1.0), ("after", temperature)):
        values |= {f"{metric}_{name}": value for metric, value in _calibration(scores, divisor).items()}
    write_json(folder / "temperature.json", values)


def read_temperature(folder: Path) -> float | None:
    """The temperature that was fitted on val; None where none was."""
    path = folder / "temperature.json"
    return float(read_json(path, temperature=(int, float))["temperature"]) if path.is_file() else None
