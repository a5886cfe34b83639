"""The metrics of an evaluation pass, over all samples at once: a short last batch or an uneven share of a process
weighs what it should."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from ignite.engine import Engine, Events
from torch import Tensor

from trainers.engine.predictions import MOST_LOGITS, PredictionBuffer, Predictions, class_counts, confusion_of
from trainers.system import distributed

SCALARS = ("loss", "accuracy", "balanced_accuracy", "accuracy_top5", "macro_f1", "ece")
NUM_BINS = 15


class ClassRow(NamedTuple):
    """One class, shares as fractions: no precision (None) when it is never predicted, no recall without images."""

    name: str
    precision: float | None
    recall: float | None
    f1: float | None
    images: int


def per_class(confusion: Tensor, class_names: Sequence[str]) -> list[ClassRow]:
    """Precision, recall and F1 of each class from counts (classes, classes), rows true."""
    counts = (of_class.tolist() for of_class in class_counts(confusion))
    return [
        ClassRow(name, _share(hits, predicted), _share(hits, images), _share(2 * hits, images + predicted), images)
        for name, hits, images, predicted in zip(class_names, *counts, strict=True)
    ]


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def balanced_accuracy(confusion: Tensor) -> float:
    """Mean recall over the classes that have images, from a confusion matrix (rows: labels)."""
    hits, images, _ = class_counts(confusion)
    return float((hits.double() / images)[images > 0].mean())


def macro_f1(confusion: Tensor) -> float:
    """Mean F1 over the classes that occur among labels or predictions, from a confusion matrix (rows: labels)."""
    hits, images, predicted = (counts.double() for counts in class_counts(confusion))
    occurrences = images + predicted
    seen = occurrences > 0
    return float((2 * hits[seen] / occurrences[seen]).mean()) if seen.any() else 0.0


def confidence_bins(confidence: Tensor, correct: Tensor) -> Tensor:
    """Sums over the images in equal-width bins of confidence: (3, NUM_BINS) float64 of their number, their confidence,
    and how many of them are right. A confidence (N,) on the edge of two bins belongs to the lower one."""
    bins = (confidence * NUM_BINS).ceil().long().clamp(1, NUM_BINS) - 1
    rows = (torch.ones_like(confidence), confidence, correct)
    return torch.stack([torch.bincount(bins, row.double(), minlength=NUM_BINS) for row in rows])


def expected_calibration_error(bins: Tensor) -> float:
    """Mean gap between confidence and accuracy, weighted by images (Guo et al. 2017, eq. 3)."""
    count, confidence, correct = bins
    return float((confidence - correct).abs().sum() / count.sum().clamp(min=1))


def attach_metrics(evaluator: Engine) -> None:
    """Let `evaluator.state.outputs` hold after each pass the `Predictions` of all images in stored order, and
    `evaluator.state.metrics` what follows from them: `SCALARS` and `confusion`.

    Each is computed from the whole pass of all processes at once, so its bits do not depend on their number.
    """

    @evaluator.on(Events.ITERATION_COMPLETED)
    def keep(engine: Engine) -> None:
        state, (logits, labels) = engine.state, engine.state.output
        if state.iteration == 1:
            whole = state.epoch_length * distributed.world_size() * logits.numel() <= MOST_LOGITS
            state.outputs = PredictionBuffer(state.epoch_length, whole)
        state.outputs.add(logits, labels)

    @evaluator.on(Events.EPOCH_COMPLETED)
    def compute(engine: Engine) -> None:
        outputs, count = of_all_processes(engine), engine.state.output[0].size(1)
        engine.state.outputs = outputs
        columns = {"loss": outputs.losses, "accuracy": outputs.correct, "accuracy_top5": outputs.in_top5}
        engine.state.metrics |= {name: column.double().mean().item() for name, column in columns.items()}
        confusion = engine.state.metrics["confusion"] = confusion_of(outputs, count)
        engine.state.metrics["ece"] = expected_calibration_error(confidence_bins(outputs.confidence, outputs.correct))
        for name, of_counts in (("macro_f1", macro_f1), ("balanced_accuracy", balanced_accuracy)):
            engine.state.metrics[name] = of_counts(confusion)


def of_all_processes(evaluator: Engine) -> Predictions:
    """Collect what is kept of the images of one pass, in stored order."""
    own = evaluator.state.outputs.outputs()
    if distributed.world_size() == 1:
        return own
    loader: Any = evaluator.state.dataloader
    shares = distributed.all_gather((torch.as_tensor(loader.batch_sampler.indices), *own))
    rows, *parts = map(torch.cat, zip(*shares, strict=True))
    places = np.unique(rows.numpy(), return_index=True)[1]  # a row that two processes took counts once
    return Predictions(*(part[torch.from_numpy(places)] for part in parts))
