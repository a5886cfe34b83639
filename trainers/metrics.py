"""The metrics of an evaluation pass, over all samples at once: a short last batch or an uneven share of a process
weighs what it should."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from ignite.engine import Engine, Events
from ignite.handlers import EpochOutputStore
from ignite.metrics import Accuracy, ConfusionMatrix, Loss, Metric, TopKCategoricalAccuracy
from torch import Tensor
from torch.nn.functional import cross_entropy

from trainers import distributed
from trainers.calibration import expected_calibration_error, reliability

SCALARS = ("loss", "accuracy", "balanced_accuracy", "accuracy_top5", "macro_f1", "ece")


class ClassRow(NamedTuple):
    """One class, shares as fractions: no precision (None) when it is never predicted, no recall without images."""

    name: str
    precision: float | None
    recall: float | None
    f1: float | None
    images: int


def per_class(confusion: Tensor, class_names: Sequence[str]) -> list[ClassRow]:
    """Precision, recall and F1 of each class from counts (classes, classes), rows true."""
    hits, images, predicted = (counts.tolist() for counts in (confusion.diag(), confusion.sum(1), confusion.sum(0)))
    return [
        ClassRow(
            class_names[index],
            precision=_share(hits[index], predicted[index]),
            recall=_share(hits[index], images[index]),
            f1=_share(2 * hits[index], images[index] + predicted[index]),
            images=images[index],
        )
        for index in range(len(class_names))
    ]


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def balanced_accuracy(confusion: Tensor) -> float:
    """Mean recall over the classes that have images, from a confusion matrix (rows: labels)."""
    images = confusion.sum(dim=1)
    return float((confusion.diag().double() / images)[images > 0].mean())


def macro_f1(confusion: Tensor) -> float:
    """Mean F1 over the classes that occur among labels or predictions, from a confusion matrix (rows: labels)."""
    confusion = confusion.double()
    hits = confusion.diag()
    occurrences = confusion.sum(dim=0) + confusion.sum(dim=1)
    seen = occurrences > 0
    return float((2 * hits[seen] / occurrences[seen]).mean()) if seen.any() else 0.0


def attach_metrics(evaluator: Engine, device: torch.device) -> None:
    """After each pass `evaluator.state.outputs` holds the (logits, labels) of all images in stored order, on the CPU,
    and `evaluator.state.metrics` what follows from them: `SCALARS` and `confusion`. Of 4 classes top-5 is top-4.

    Each metric is given the whole pass of all processes at once, so its bits do not depend on their number. Batch by
    batch they took as long as a small model's forward pass.
    """
    on = "cpu" if device.type == "mps" else device  # float64 sums do not exist on mps
    store = EpochOutputStore(output_transform=lambda output: tuple(part.cpu() for part in output))
    store.attach(evaluator, "outputs")

    @evaluator.on(Events.EPOCH_COMPLETED)
    def compute(engine: Engine) -> None:
        outputs = of_all_processes(engine)
        engine.state.outputs = [outputs]
        num_classes = outputs[0].size(1)
        metrics: dict[str, Metric] = {
            "loss": Loss(cross_entropy, device=on),
            "accuracy": Accuracy(device=on),
            "accuracy_top5": TopKCategoricalAccuracy(k=min(5, num_classes), device=on),
            "confusion": ConfusionMatrix(num_classes, device=on),
        }
        for name, metric in metrics.items():
            if distributed.rank() == 0:  # the sums of the others stay zero: adding them changes no bit
                metric.update(outputs)
            metric.completed(engine, name)
        engine.state.metrics["ece"] = expected_calibration_error(reliability(*outputs))
        for name, of_counts in (("macro_f1", macro_f1), ("balanced_accuracy", balanced_accuracy)):
            engine.state.metrics[name] = of_counts(engine.state.metrics["confusion"])


def of_all_processes(evaluator: Engine) -> tuple[Tensor, Tensor]:
    """The logits and labels of one pass, in stored order."""
    logits, labels = (torch.cat(parts) for parts in zip(*evaluator.state.outputs, strict=True))
    if distributed.world_size() == 1:
        return logits, labels
    loader: Any = evaluator.state.dataloader
    shares = distributed.all_gather((torch.as_tensor(loader.batch_sampler.indices), logits, labels))
    rows, *outputs = zip(*shares, strict=True)
    _, places = np.unique(np.concatenate(rows), return_index=True)  # a row that two processes took counts once
    logits, labels = (torch.cat(parts)[torch.from_numpy(places)] for parts in outputs)
    return logits, labels
