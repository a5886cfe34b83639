"""Predictions of a run, read back from its files: a table, or of a large split the likeliest classes of each image."""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from common.errors import DataError
from common.tables import read_table
from common.text import shorten_list
from trainers.engine.many_classes import dense_probabilities
from trainers.engine.predictions import Predictions
from trainers.storage.run_folder import read_json

if TYPE_CHECKING:
    import pandas as pd

SavedPredictions = tuple[tuple[str, ...], np.ndarray, np.ndarray, np.ndarray]
"""N images, sorted by path: paths, labels and predicted classes int64 (N,), probabilities float64 (N, classes)."""


def read_predictions(path: Path, names: Sequence[str]) -> SavedPredictions:
    """The predictions of a run whose classes are `names`. Raises DataError: they are damaged, or of other classes."""
    paths, labels, predicted, probabilities = (_of_file if path.suffix == ".npz" else _of_table)(path, names)
    if not len(paths):
        raise DataError(f"{path} has no rows")
    order = sorted(range(len(paths)), key=paths.__getitem__)
    return tuple(paths[row] for row in order), labels[order], predicted[order], probabilities[order]


class SplitPredictions(NamedTuple):
    """Predictions of a run on a split, by `SavedPredictions`, with the names of its classes."""

    class_names: tuple[str, ...]
    paths: tuple[str, ...]
    labels: np.ndarray
    predicted: np.ndarray
    probabilities: np.ndarray


def predictions_of(run_dir: Path, split: str) -> SplitPredictions:
    """Read what a finished run predicted on a split. Raises DataError: it has no such split, or a file is damaged."""
    table = run_dir / "eval" / f"{split}_predictions.csv"
    path = table if table.is_file() else table.with_suffix(".npz")
    if not path.is_file():
        raise DataError(f"{run_dir} has no predictions of {split!r}: there is no {table}")
    names = tuple(read_json(run_dir / "meta.json", class_names=list)["class_names"])
    return SplitPredictions(names, *read_predictions(path, names))


def predictions_frame(run_dir: Path, split: str) -> "pd.DataFrame":
    """A row per image of a split of a finished run: path, label, predicted, and a column `p(NAME)` for each class.

    Raises DataError: the run has no such split, or a file is damaged.
    """
    import pandas as pd

    names, paths, labels, predicted, probabilities = predictions_of(run_dir, split)
    # Names stay Python's own objects: the text of pandas cannot hold one that is no Unicode.
    frame = pd.DataFrame(probabilities, columns=pd.Index([f"p({name})" for name in names], dtype=object))
    columns = {"path": paths, "label": np.array(names)[labels], "predicted": np.array(names)[predicted]}
    for place, (name, column) in enumerate(columns.items()):
        frame.insert(place, name, pd.Series(column, dtype=object))
    return frame


def _of_table(path: Path, names: Sequence[str]) -> SavedPredictions:
    table = read_table(path, ("path", "label", "predicted", "probabilities"))
    number = {name: index for index, name in enumerate(names)}
    unknown = [name for column in ("label", "predicted") for name in table[column] if name not in number]
    if unknown:
        raise DataError(f"{path}: class {unknown[0]!r} is not one of the run's: {shorten_list(names, 20)}")
    labels, predicted = (np.array([number[name] for name in table[column]], int) for column in ("label", "predicted"))
    try:
        probabilities = np.array(" ".join(table["probabilities"]).split(), dtype=np.float64)
    except ValueError:
        probabilities = np.empty(0)
    if probabilities.size != len(table) * len(names):
        raise DataError(f"{path} does not hold {len(names)} probabilities per image; evaluate the run again")
    return tuple(table["path"]), labels, predicted, probabilities.reshape(len(table), len(names))


def _of_file(path: Path, names: Sequence[str]) -> SavedPredictions:
    try:
        with np.load(path, allow_pickle=False) as file:
            outputs = Predictions(*(torch.from_numpy(file[column]) for column in Predictions._fields))
            paths, own = tuple(file["paths"].tolist()), file["class_names"].tolist()
    except (EOFError, OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is damaged ({error}); evaluate the run again") from None
    if own != list(names):
        raise DataError(
            f"{path}: the classes {shorten_list(own)} are not the run's: {shorten_list(names)}; evaluate the run again"
        )
    return paths, outputs.labels.numpy(), outputs.predicted.numpy(), dense_probabilities(outputs, len(names)).numpy()
