"""Result of a run, as a program gets it: scores, history and predictions as tables, the curves as a figure.

Predictions are read back from files: a table, or of a large split the likeliest classes of each image.
"""

import html
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from common.errors import CheckpointError, DataError, first_line, report_damage
from common.tables import read_table
from common.text import shorten_list
from trainers.config import RunConfig, rank_key
from trainers.engine.predictions import Predictions, dense_probabilities
from trainers.statistics import Design
from trainers.storage.run_folder import RunFolder

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class RunResult:
    """Result of a run; a notebook shows it as a table of its scores.

    Metrics are fractions; `val` is the best epoch's, `test` None where there is no such split. `images`: how many each
    split has."""

    run_dir: Path
    best_epoch: int
    val: dict[str, float]
    test: dict[str, float] | None
    epochs: list[dict[str, Any]]
    """A row per epoch, as in metrics.csv; the first is from before the first step."""
    images: Mapping[str, int] = field(default_factory=dict)
    designs: Mapping[str, Design] = field(default_factory=dict)
    """Effect of groups on the images of each split; without splits whose images all stand alone."""
    config: RunConfig = field(kw_only=True)
    """Options of the run, each with the value that it trained with."""

    def __repr__(self) -> str:
        scores = {"val": self.val, "test": self.test}
        said = [f"{split} accuracy {metrics['accuracy']:.1%}" for split, metrics in scores.items() if metrics]
        return f"RunResult({str(self.run_dir)!r}, {', '.join(said)}, best epoch {self.best_epoch})"

    def _repr_html_(self) -> str:
        where = html.escape(str(self.run_dir), quote=False)
        table = self.scores.rename_axis(None).to_html(float_format="{:.4f}".format, border=0)
        return f"{table}<p>best epoch {self.best_epoch}, in {where}</p>"

    @cached_property
    def folder(self) -> RunFolder:
        """Return what else the run has left."""
        return RunFolder(self.run_dir)

    @property
    def scores(self) -> "pd.DataFrame":
        """Return the best weights' metrics as fractions: a row per split."""
        import pandas as pd

        found = {split: metrics for split, metrics in (("val", self.val), ("test", self.test)) if metrics}
        return pd.DataFrame.from_dict(found, orient="index").rename_axis("split")

    def plot(self) -> "Figure":
        """Draw each epoch's loss and accuracy, train and val; mark the best."""
        from trainers.reporting.figures.results import learning_figure

        return learning_figure(self.epochs, best_epoch=self.best_epoch, title=str(self.run_dir))

    @property
    def history(self) -> "pd.DataFrame":
        """Return metrics.csv: a row per epoch, NaN where an epoch has no such value."""
        import pandas as pd

        return pd.DataFrame(self.epochs).apply(pd.to_numeric)

    def predictions(self, split: str = "test") -> "pd.DataFrame":
        """Return a row per image: path, label, predicted, and `p(NAME)` per class.

        Raises DataError: the run has no such split, or a file is damaged."""
        import pandas as pd

        paths, labels, predicted, probabilities, names = predictions_of(self.folder, split)
        # Names stay Python's own objects: the text of pandas cannot hold one that is no Unicode.
        named = np.array(names, dtype=object)
        images = pd.DataFrame({"path": paths, "label": named[labels], "predicted": named[predicted]}, dtype=object)
        columns = pd.Index([*images.columns, *(f"p({name})" for name in names)], dtype=object)
        return pd.concat([images, pd.DataFrame(probabilities)], axis=1).set_axis(columns, axis=1)


def read_result(run: RunFolder) -> RunResult:
    """Read the result of a finished run from its files.

    Raises CheckpointError: the run did not finish, or has lost what it found."""
    summary = run.summary
    if summary["status"] != "finished":
        raise CheckpointError(f"run {run} is {summary['status']}: it has no result yet")
    _ = run.best  # without these weights it is not whole
    epoch = summary["best"]["epoch"]
    with report_damage(run.path / "summary.json"):
        test = summary["test"] and {name: value for name, value in summary["test"].items() if name != "n"}
        designs = {split: Design(**fields) for split, fields in summary.get("groups", {}).items()}
    val, sizes = run.validated(epoch), summary["images"]
    return RunResult(run.path, epoch, val, test, run.history, sizes, designs, config=run.config)


def best_of_several(results: Iterable[RunResult], *, select: str) -> RunResult:
    """Return the run with the best validation score.

    Ties go to the lower loss, then to the first. The runs must share their validation images."""
    return max(results, key=lambda result: rank_key(select)(result.val))


class SavedPredictions(NamedTuple):
    """N images, sorted by path."""

    paths: tuple[str, ...]
    labels: np.ndarray  # int64 (N,)
    predicted: np.ndarray  # int64 (N,)
    probabilities: np.ndarray  # float64 (N, classes)
    class_names: tuple[str, ...]


def predictions_of(run: RunFolder, split: str) -> SavedPredictions:
    """Read what a finished run predicted on a split.

    Raises DataError: it has no such split, or a file is damaged or of other classes."""
    table = run.path / "eval" / f"{split}_predictions.csv"
    path = table if table.is_file() else table.with_suffix(".npz")
    if not path.is_file():
        raise DataError(f"{run} has no predictions of {split!r}: there is no {table}")
    names = run.meta["class_names"]
    paths, labels, predicted, probabilities = (_of_table if path == table else _of_file)(path, names)
    if not paths:
        raise DataError(f"{path} has no rows")
    order = sorted(range(len(paths)), key=paths.__getitem__)
    own = tuple(paths[row] for row in order)
    return SavedPredictions(own, labels[order], predicted[order], probabilities[order], tuple(names))


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
        probabilities = dense_probabilities(outputs, len(own)).numpy()
        labels, predicted = outputs.labels.numpy(), outputs.predicted.numpy()
        known = all(((classes >= 0) & (classes < len(own))).all() for classes in (labels, predicted))
        if not known or not len(paths) == len(labels) == len(predicted) == len(probabilities):
            raise ValueError("its columns do not fit together")
    except (EOFError, OSError, RuntimeError, ValueError, LookupError, TypeError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is damaged ({first_line(error)}); evaluate the run again") from None
    if own != list(names):
        raise DataError(
            f"{path}: the classes {shorten_list(own)} are not the run's: {shorten_list(names)}; evaluate the run again"
        )
    return paths, labels, predicted, probabilities
