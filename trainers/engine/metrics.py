"""Metrics: of an evaluation pass, over all images at once, and of training steps, summed on the device.

Neither depends on the sizes of batches and shares.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from ignite.engine import Engine, Events
from ignite.handlers import Timer
from ignite.metrics import Accuracy, TopKCategoricalAccuracy
from torch import Tensor
from torch.amp import GradScaler
from torch.nn.functional import pad

from common.errors import Diverged
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
    """Add classes that are never predicted: Ignite's top-5 accuracy needs at least five."""
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
    """Scores of one class as fractions.

    Precision is None if it is never predicted, recall if it has no images."""

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
    """Return counts among the SHOWN_CLASSES with most mistakes, their names, a title's suffix.

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
    """Average the gap of confidence and accuracy over images (Guo et al. 2017, eq. 3)."""
    count, confidence, correct = bins
    return float((confidence - correct).abs().sum() / count.sum().clamp(min=1))


class Step(NamedTuple):
    """A training step and its values, which stay on the device until `StepSums.read`."""

    number: int
    n: int
    lr: float
    measured: Tensor  # (3,): mean of the loss over `n` images, the number of hits, the norm of the gradient

    def output(self, measured: Sequence[Any] | None = None) -> dict[str, Any]:
        """Return `loss`, `correct`, `n`, `grad_norm`, `lr`: 0-d tensors on the device unless `measured` values are
        given."""
        # A plain dict: Ignite and programs rebuild, print and save the output of an engine.
        loss, correct, norm = self.measured.unbind() if measured is None else measured
        return {"loss": loss, "correct": correct, "n": self.n, "grad_norm": norm, "lr": self.lr}


class StepSums:
    """Totals of the training steps over the epoch and since the last log point.

    They are saved with the trainer, so a run resumed in mid-epoch continues them; Ignite's own metrics start anew with
    the trainer. Seconds include waiting for data, but neither validation nor logging.
    """

    def __init__(self, device: torch.device, scaler: GradScaler) -> None:
        self.scaler, self.unread, self.last_loss = scaler, list[Step](), math.nan
        self.failed = torch.zeros((), device=device)
        self.epoch, self.window = defaultdict[str, float](float), defaultdict[str, float](float)
        self.seconds, self.lr = 0.0, 0.0
        self.step, self.wait = Timer(), Timer()

    def attach(self, trainer: Engine) -> None:
        """Clear the totals at each epoch, and time each step."""
        self.wait.attach(trainer, start=Events.GET_BATCH_STARTED, pause=Events.GET_BATCH_COMPLETED)
        self.step.attach(trainer, start=Events.GET_BATCH_STARTED, pause=Events.ITERATION_COMPLETED)
        trainer.add_event_handler(Events.ITERATION_COMPLETED, self.take_time)
        trainer.add_event_handler(Events.EPOCH_STARTED, self.start_epoch)

    def take_time(self) -> None:
        self.seconds += self.step.total
        for totals in (self.epoch, self.window):
            totals["seconds"] += self.step.total
            totals["wait"] += self.wait.total

    def start_epoch(self, engine: Engine) -> None:
        self.read()
        if engine.state.iteration % engine.state.epoch_length == 0:  # otherwise: resumed in mid-epoch
            self.epoch.clear()

    def failed_by(self, step: Step) -> Tensor:
        """Return float32 () on the device: 1 if an unread step is not finite."""
        return self.failed.masked_fill_(~step.measured.isfinite().all(), 1.0)

    def read(self) -> dict[str, Any]:
        """Add unread steps to the totals, and return the output of the last one.

        Synchronises with the device. Raises Diverged: a step was not finite.
        """
        steps, self.unread = self.unread, []
        measured, output = [step.measured for step in steps], dict[str, Any]()
        rows = torch.stack(measured).tolist() if len(steps) > 1 else [row.tolist() for row in measured]
        for step, (mean, hits, gradient) in zip(steps, rows, strict=True):
            output = step.output((mean, int(hits), gradient))
            loss, correct, n, norm, lr = output.values()
            # A scaler skips such a step and halves its scale; below 1 it is not the scale that overflows.
            skipped = not math.isfinite(norm) and self.scaler.is_enabled() and self.scaler.get_scale() > 1
            if not (math.isfinite(loss) and (math.isfinite(norm) or skipped)):
                name, value = ("gradient norm", norm) if math.isfinite(loss) else ("loss", loss)
                self.failed.zero_()
                raise Diverged(
                    f"{name} is {value} at step {step.number} (lr {lr:.3g}, last finite loss {self.last_loss:.4g});"
                    " this step was not taken, the weights are as before it. Try a lower --lr, --amp off, or a"
                    " longer warm-up, in a file: warmup_epochs",
                    step.number,
                )
            self.last_loss, self.lr = loss, lr
            for totals in (self.epoch, self.window):
                totals["loss"] += loss * n
                totals["correct"] += correct
                totals["n"] += n
                if not skipped:
                    totals["grad_norm"] += norm
                    totals["steps"] += 1
        return output

    def epoch_means(self) -> dict[str, float]:
        self.read()
        return means(self.epoch)

    def take_window(self) -> dict[str, float]:
        """Return means over the steps since the last call."""
        self.read()
        found = means(self.window)
        self.window.clear()
        return found

    def state_dict(self) -> dict[str, Any]:
        self.read()
        return {"epoch": dict(self.epoch), "window": dict(self.window), "seconds": self.seconds, "lr": self.lr}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.epoch, self.window = (defaultdict(float, state[name]) for name in ("epoch", "window"))
        self.seconds, self.lr = state["seconds"], state["lr"]


def means(totals: Mapping[str, float]) -> dict[str, float]:
    """Return means over images or steps, seconds, images per second, and the share of waiting."""
    total = defaultdict(float, totals)
    n, seconds = max(total["n"], 1), max(total["seconds"], 1e-9)
    return {
        "loss": total["loss"] / n,
        "accuracy": total["correct"] / n,
        "grad_norm": total["grad_norm"] / max(total["steps"], 1),
        "seconds": total["seconds"],
        "images_per_s": total["n"] / seconds,
        "data_wait": total["wait"] / seconds,
    }
