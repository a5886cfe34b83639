"""Score a model on one split, and keep every single prediction."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from common.files import replacing, text_file
from common.tables import csv_lines
from trainers.engine.engines import create_evaluator
from trainers.engine.metrics import SCALARS
from trainers.engine.predictions import Predictions


@dataclass(frozen=True)
class Scores:
    """Metrics of a split as fractions, and the predictions that they come from."""

    metrics: dict[str, float]
    outputs: Predictions


def score_split(model: nn.Module, loader: DataLoader, device: torch.device, amp_dtype: torch.dtype | None) -> Scores:
    """Run the evaluator that training uses over a whole split, in its stored order.

    With several processes each scores its share; the metrics and all predictions are known to all of them.
    """
    return scores_of(create_evaluator(model, device, amp_dtype=amp_dtype).run(loader))


def scores_of(state: Any) -> Scores:
    """Return what the state of an evaluator holds after a pass."""
    return Scores({name: float(state.metrics[name]) for name in SCALARS}, state.predictions)


def write_predictions(folder: Path, name: str, scores: Scores, dataset: Any, class_names: Sequence[str]) -> Path:
    """Write `<name>_predictions.csv`, a row per image: path, label, predicted, probabilities (in class order, separated
    by spaces). Where the logits were not kept, `<name>_predictions.npz`: paths, class_names, and the columns of
    `Predictions`."""
    folder.mkdir(exist_ok=True)
    outputs, paths = scores.outputs, map(dataset.path, range(len(scores.outputs.labels)))
    table, likeliest = folder / f"{name}_predictions.csv", folder / f"{name}_predictions.npz"
    path, other = (table, likeliest) if outputs.whole else (likeliest, table)
    if outputs.whole:
        probabilities = outputs.logits.double().softmax(dim=1)
        rows = zip(
            paths,
            (class_names[label] for label in outputs.labels.tolist()),
            (class_names[index] for index in probabilities.argmax(dim=1).tolist()),
            (" ".join(f"{share:.7g}" for share in shares.tolist()) for shares in probabilities),
            strict=True,
        )
        with text_file(path) as file:
            file.writelines(csv_lines(("path", "label", "predicted", "probabilities"), rows))
    else:
        columns = {name: column.numpy() for name, column in outputs._asdict().items()}
        with replacing(path) as aside:
            np.savez_compressed(aside, paths=np.array(list(paths)), class_names=np.array(class_names), **columns)
    other.unlink(missing_ok=True)  # of an evaluation by other limits
    return path
