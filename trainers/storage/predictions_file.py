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
from trainers.engine.predictions import Predictions, dense_probabilities
from trainers.storage.run_folder import RunFolder

if TYPE_CHECKING:
    import pandas as pd


class SavedPredictions(NamedTuple):
    """N images, sorted by path."""

    paths: tuple[str, ...]
    labels: np.ndarray  # int64 (N,)
    predicted: np.ndarray  # int64 (N,)
    probabilities: np.ndarray  # float64 (N, classes)
    class_names: tuple[str, ...]


def read_predictions(path: Path, names: Sequence[str]) -> SavedPredictions:
    """Read a file of a run whose classes are `names`. Raises DataError: it is damaged, or of other classes."""
    paths, labels, predicted, probabilities = (_of_file if path.suffix == ".npz" else _of_table)(path, names)
    if not paths:
        raise DataError(f"{path} has no rows")
    order = sorted(range(len(paths)), key=paths.__getitem__)
    own = tuple(paths[row] for row in order)
    return SavedPredictions(own, labels[order], predicted[order], probabilities[order], tuple(names))


def predictions_of(run: RunFolder, split: str) -> SavedPredictions:
    """Read what a finished run predicted on a split. Raises DataError: it has no such split, or a file is damaged."""
    table = run.path / "eval" / f"{split}_predictions.csv"
    path = table if table.is_file() else table.with_suffix(".npz")
    if not path.is_file():
        raise DataError(f"{run} has no predictions of {split!r}: there is no {table}")
    return read_predictions(path, run.meta["class_names"])


def predictions_frame(run: RunFolder, split: str) -> "pd.DataFrame":
    """Return a row per image of a split: path, label, predicted, and a column `p(NAME)` for each class.

    Raises DataError: the run has no such split, or a file is damaged.
    """
    import pandas as pd

    paths, labels, predicted, probabilities, names = predictions_of(run, split)
    # Names stay Python's own objects: the text of pandas cannot hold one that is no Unicode.
    named = np.array(names, dtype=object)
    images = pd.DataFrame({"path": paths, "label": named[labels], "predicted": named[predicted]}, dtype=object)
    columns = pd.Index([*images.columns, *(f"p({name})" for name in names)], dtype=object)
    return pd.concat([images, pd.DataFrame(probabilities)], axis=1).set_axis(columns, axis=1)


def _of_table(path: Path, names: Sequence[str]) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray]:
    table = read_table(path, ("path", "label", "predicted", "probabilities"))
    number = {name: index for index, name in enumerate(names)}
    unknown = [name for column in ("label", "predicted") for name in table[column] if name not in number]
    if unknown:
        raise DataError(f"{path}: class {unknown[0]!r} is not one of the run's: {shorten_list(names, 20)}")
    labels, predicted = (np.array([number[name] for name in table[column]], int) for column in ("label", "predicted"))
    try:
        probabilities = np.array(" ".join(table["probabilities"]).split(), dtype=np.float64)
        return list(table["path"]), labels, predicted, probabilities.reshape(len(table), len(names))
    except ValueError:
        raise DataError(f"{path} does not hold {len(names)} probabilities per image; evaluate the run again") from None


def _of_file(path: Path, names: Sequence[str]) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            outputs = Predictions(*(torch.from_numpy(file[column]) for column in Predictions._fields))
            paths, own = file["paths"].tolist(), file["class_names"].tolist()
    except (EOFError, OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is damaged ({error}); evaluate the run again") from None
    if own != list(names):
        raise DataError(
            f"{path}: the classes {shorten_list(own)} are not the run's: {shorten_list(names)}; evaluate the run again"
        )
    return paths, outputs.labels.numpy(), outputs.predicted.numpy(), dense_probabilities(outputs, len(names)).numpy()
