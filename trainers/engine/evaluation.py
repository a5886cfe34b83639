"""Score a model on a split, and keep the prediction for every image."""

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
    """Metrics of a split as fractions, and the predictions that they are computed from."""

    metrics: dict[str, float]
    outputs: Predictions


def score_split(model: nn.Module, loader: DataLoader, device: torch.device, amp_dtype: torch.dtype | None) -> Scores:
    """Run the evaluator of training over a whole split, in its stored order.

    With several processes each scores its share; all of them get the metrics and all predictions.
    """
    return scores_of(create_evaluator(model, device, amp_dtype=amp_dtype).run(loader))


def scores_of(state: Any) -> Scores:
    """Return the scores in the state of an evaluator after a pass."""
    return Scores({name: float(state.metrics[name]) for name in SCALARS}, state.predictions)


def write_predictions(folder: Path, name: str, scores: Scores, dataset: Any, class_names: Sequence[str]) -> Path:
    """Write the predictions of a split, a row per image.

    `<name>_predictions.csv` has path, label, predicted, and probabilities in class order, separated by spaces. If the
    logits were not kept, `<name>_predictions.npz` has paths, class_names, and the columns of `Predictions`.
    """
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
        with replacing(path) as temporary:
            np.savez_compressed(temporary, paths=np.array(list(paths)), class_names=np.array(class_names), **columns)
    other.unlink(missing_ok=True)  # left by an evaluation with other limits
    return path
