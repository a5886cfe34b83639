"""Metrics of an evaluation pass over all images at once, independent of batches and processes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from ignite.engine import Engine, Events
from ignite.metrics import Accuracy, TopKCategoricalAccuracy
from torch import Tensor
from torch.nn.functional import pad

from trainers.engine.predictions import PassPredictions, Predictions

SCALARS = ("loss", "accuracy", "balanced_accuracy", "accuracy_top5", "macro_f1", "ece")
NUM_BINS = 15
MOST_SHOWN, SHOWN_CLASSES = 40, 30
"""A picture shows SHOWN_CLASSES classes if there are more than MOST_SHOWN."""


def attach_metrics(evaluator: Engine, device: torch.device | str = "cpu") -> None:
    """Compute `SCALARS` into `evaluator.state.metrics` after each pass.

    Next to it are `state.predictions` of all images and `state.recall` (classes,), NaN for classes without images:
    loggers would show all of `state.metrics`. Nothing depends on the number of processes or batches.
    """
    # Ignite's other metrics compute something else: the last bits of its Loss depend on batches and processes, its
    # ConfusionMatrix takes 800 MB for 10,000 classes, its EpochMetric fails if shares are unequal, and it has no
    # calibration error. scikit-learn's metrics take a second to import.
    Accuracy(device=device).attach(evaluator, "accuracy")
    TopKCategoricalAccuracy(5, _with_more_classes, device=device).attach(evaluator, "accuracy_top5")
    PassPredictions().attach(evaluator, "predictions")

    @evaluator.on(Events.EPOCH_COMPLETED)
    def compute(engine: Engine) -> None:
        metrics, outputs = engine.state.metrics, engine.state.predictions
        scores = class_scores(outputs.labels, outputs.predicted, engine.state.output[0].size(1))
        metrics["loss"] = outputs.losses.double().mean().item()
        metrics["ece"] = expected_calibration_error(confidence_bins(outputs.confidence, outputs.correct))
        engine.state.recall = scores.recall
        metrics["balanced_accuracy"], metrics["macro_f1"] = mean_of(scores.recall), mean_of(scores.f1)


def _with_more_classes(output: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Add classes that are never predicted: Ignite's top-5 accuracy needs five, and with four classes it is top-4."""
    logits, labels = output
    return pad(logits, (0, max(0, 5 - logits.size(1))), value=-torch.inf), labels


class ClassScores(NamedTuple):
    """Scores of each class (classes,) as fractions, float64; NaN for a division by 0."""

    precision: Tensor
    recall: Tensor
    f1: Tensor
    images: Tensor  # int64


def class_scores(labels: Tensor, predicted: Tensor, count: int) -> ClassScores:
    each = (labels[labels == predicted], labels, predicted)
    hits, images, taken = (torch.bincount(classes, minlength=count) for classes in each)
    return ClassScores(hits.double() / taken, hits.double() / images, 2 * hits.double() / (images + taken), images)


def mean_of(scores: Tensor) -> float:
    """Average the scores of the classes that have one; 0 if none has."""
    known = scores[~scores.isnan()]
    return known.mean().item() if len(known) else 0.0


class ClassRow(NamedTuple):
    """Scores of one class as fractions; precision is None if it is never predicted, recall if it has no images."""

    name: str
    precision: float | None
    recall: float | None
    f1: float | None
    images: int


def per_class(outputs: Predictions, class_names: Sequence[str]) -> list[ClassRow]:
    scores = class_scores(outputs.labels, outputs.predicted, len(class_names))
    shares = ([None if share.isnan() else share.item() for share in column] for column in scores[:3])
    return [ClassRow(*row) for row in zip(class_names, *shares, scores.images.tolist(), strict=True)]


def confusion_among(outputs: Predictions, classes: Tensor) -> np.ndarray:
    """Count the predictions among K classes: int64 (K, K), rows are true classes."""
    inside = torch.isin(outputs.labels, classes) & torch.isin(outputs.predicted, classes)
    true, predicted = (torch.searchsorted(classes, part[inside]) for part in (outputs.labels, outputs.predicted))
    count = len(classes)
    return torch.bincount(true * count + predicted, minlength=count**2).reshape(count, count).numpy()


def most_confused(outputs: Predictions, class_names: Sequence[str]) -> tuple[np.ndarray, list[str], str]:
    """Return counts among the SHOWN_CLASSES with the most mistakes, their names, and a suffix for the title.

    All classes if there are few; names in class order.
    """
    chosen, title = torch.arange(len(class_names)), ""
    if len(class_names) > MOST_SHOWN:
        wrong = torch.cat([outputs.labels[~outputs.correct], outputs.predicted[~outputs.correct]])
        mistakes = torch.bincount(wrong, minlength=len(class_names))
        chosen = mistakes.sort(descending=True, stable=True).indices[:SHOWN_CLASSES].sort().values
        title = f"; the {SHOWN_CLASSES} of {len(class_names):,} classes with the most mistakes"
    return confusion_among(outputs, chosen), [class_names[index] for index in chosen.tolist()], title


def confidence_bins(confidence: Tensor, correct: Tensor) -> Tensor:
    """Sum over the images in equal-width bins of confidence: (3, NUM_BINS) float64.

    The rows are the number of images, their confidence, and correct ones. A confidence (N,) on the edge of two bins
    belongs to the lower one.
    """
    bins = (confidence * NUM_BINS).ceil().long().clamp(1, NUM_BINS) - 1
    rows = (torch.ones_like(confidence), confidence, correct)
    return torch.stack([torch.bincount(bins, row.double(), minlength=NUM_BINS) for row in rows])


def expected_calibration_error(bins: Tensor) -> float:
    """Return the mean gap between confidence and accuracy, weighted by images (Guo et al. 2017, eq. 3)."""
    count, confidence, correct = bins
    return float((confidence - correct).abs().sum() / count.sum().clamp(min=1))
