"""Score a model on one split, and keep every single prediction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from ignite.engine import Engine, Events
from torch import Tensor, nn
from torch.utils.data import DataLoader

from datasets.files import write_text
from datasets.text import csv_text, read_rows
from trainers.engines import create_evaluator
from trainers.handlers import best_row
from trainers.metrics import SCALARS


@dataclass(frozen=True)
class Scores:
    """Metrics of a split as fractions, with the logits (N, classes) and labels (N,) they come from, in stored order."""

    metrics: dict[str, float]
    confusion: Tensor
    logits: Tensor
    labels: Tensor


def score_split(model: nn.Module, loader: DataLoader, device: torch.device, amp_dtype: torch.dtype | None) -> Scores:
    """Run the evaluator that training uses over a whole split, in its stored order.

    With several processes each scores its share; the metrics and all predictions are known to all of them.
    """
    evaluator = create_evaluator(model, device, amp_dtype=amp_dtype)
    evaluator.run(loader)
    return scores_of(evaluator.state.outputs, evaluator.state.metrics)


def scores_of(outputs: Sequence[tuple[Tensor, Tensor]], metrics: Mapping[str, Any]) -> Scores:
    """What one pass found."""
    ((logits, labels),) = outputs
    scalars = {name: float(metrics[name]) for name in SCALARS}
    return Scores(scalars, metrics["confusion"].cpu(), logits, labels)


def attach_best_outputs(trainer: Engine, evaluator: Engine, *, select: str) -> None:
    """Keep (epoch, outputs, metrics) of the best validation as `trainer.state.best_outputs`, so that a finished run
    need not validate its best weights again. They are in no checkpoint: a run resumed after its best epoch does so."""
    trainer.state.best_outputs = None

    @trainer.on(Events.EPOCH_COMPLETED)
    def keep_if_best(engine: Engine) -> None:
        best = best_row(engine.state.history, select)
        if best is not None and best["epoch"] == engine.state.epoch:
            engine.state.best_outputs = engine.state.epoch, evaluator.state.outputs, dict(evaluator.state.metrics)


def write_predictions(path: Path, scores: Scores, dataset: Any, class_names: Sequence[str]) -> None:
    """One row per image: path, label, predicted, probabilities (in class order, separated by spaces)."""
    probabilities = scores.logits.double().softmax(dim=1)
    rows = zip(
        map(dataset.path, range(len(scores.labels))),
        (class_names[label] for label in scores.labels.tolist()),
        (class_names[index] for index in probabilities.argmax(dim=1).tolist()),
        (" ".join(f"{share:.7g}" for share in shares) for shares in probabilities.tolist()),
        strict=True,
    )
    path.parent.mkdir(exist_ok=True)
    write_text(path, csv_text(("path", "label", "predicted", "probabilities"), rows))


def hits(run_dir: Path) -> list[int]:
    """For each validation image, in stored order, 1 where the best weights of a finished run are right, else 0."""
    rows = read_rows(run_dir / "eval" / "val_predictions.csv", ("label", "predicted"))
    return [int(row["label"] == row["predicted"]) for row in rows]
