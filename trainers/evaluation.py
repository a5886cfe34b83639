"""Score a model on one split, and keep every single prediction."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ignite.handlers import EpochOutputStore
from torch import Tensor, nn
from torch.utils.data import DataLoader

from trainers import distributed
from trainers.engines import create_evaluator
from trainers.metrics import SCALARS
from trainers.run_directory import write_text


@dataclass(frozen=True)
class Scores:
    """Metrics of a split as fractions, with the logits (N, classes) and labels (N,) they come from.

    Row i belongs to sample `rows[i]` of the data set.
    """

    metrics: dict[str, float]
    confusion: Tensor
    logits: Tensor
    labels: Tensor
    rows: Sequence[int]


def score_split(
    model: nn.Module, loader: DataLoader, *, num_classes: int, device: torch.device, amp_dtype: torch.dtype | None
) -> Scores:
    """Run the evaluator that training uses over a whole split, in its stored order.

    With several processes each scores its share; the metrics and all predictions are known to all of them.
    """
    evaluator = create_evaluator(
        model, nn.functional.cross_entropy, device, num_classes=num_classes, amp_dtype=amp_dtype
    )
    store = EpochOutputStore(output_transform=lambda output: tuple(part.cpu() for part in output))
    store.attach(evaluator, "outputs")
    evaluator.run(loader)
    logits, labels = (torch.cat(parts) for parts in zip(*evaluator.state.outputs, strict=True))
    rows = getattr(loader.batch_sampler, "indices", np.arange(len(labels)))
    rows, logits, labels = in_stored_order(distributed.gathered((rows, logits, labels)))
    metrics = {name: float(evaluator.state.metrics[name]) for name in SCALARS}
    return Scores(metrics, evaluator.state.metrics["confusion"].cpu(), logits, labels, rows.tolist())


def in_stored_order(shares: Sequence[tuple[np.ndarray, Tensor, Tensor]]) -> tuple[np.ndarray, Tensor, Tensor]:
    """Rows, logits and labels of all processes, sorted by row."""
    rows = np.concatenate([share[0] for share in shares])
    order = np.argsort(rows)
    logits, labels = (torch.cat(parts)[torch.from_numpy(order)] for parts in list(zip(*shares, strict=True))[1:])
    return rows[order], logits, labels


def write_predictions(path: Path, scores: Scores, dataset: Any, class_names: Sequence[str]) -> None:
    """One row per image: path, label, predicted, probabilities (in class order, separated by spaces)."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["path", "label", "predicted", "probabilities"])
    probabilities = scores.logits.double().softmax(dim=1)
    paths = (dataset.path(row) for row in scores.rows)
    for name, label, row in zip(paths, scores.labels.tolist(), probabilities.tolist(), strict=True):
        predicted = max(range(len(row)), key=row.__getitem__)
        writer.writerow([name, class_names[label], class_names[predicted], " ".join(f"{p:.7g}" for p in row)])
    path.parent.mkdir(exist_ok=True)
    write_text(path, text.getvalue())
