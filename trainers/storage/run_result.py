"""Result of a run, as a program gets it: scores, history and predictions as tables, the curves as a figure."""

import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import CheckpointError, report_damage
from trainers.config import RunConfig, rank_key
from trainers.statistics import Design
from trainers.storage.run_folder import RunFolder

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class RunResult:
    """Result of a run. Metrics are fractions; `val` is the best epoch's, `test` None where there is no such split.
    `images`: how many each split has. As the last line of a notebook's cell it is a table of its scores."""

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
        """What else the run has left."""
        return RunFolder(self.run_dir)

    @property
    def scores(self) -> "pd.DataFrame":
        """Return a row per split and a column per metric: of the best epoch's weights, as fractions."""
        import pandas as pd

        found = {split: metrics for split, metrics in (("val", self.val), ("test", self.test)) if metrics}
        return pd.DataFrame.from_dict(found, orient="index").rename_axis("split")

    def plot(self) -> "Figure":
        """Draw loss and accuracy of each epoch, train and val, with matplotlib; the best epoch is marked."""
        from trainers.reporting.figures.results import learning_figure

        return learning_figure(self.epochs, best_epoch=self.best_epoch, title=str(self.run_dir))

    @property
    def history(self) -> "pd.DataFrame":
        """Return metrics.csv: a row per epoch, NaN where an epoch has no such value."""
        import pandas as pd

        return pd.DataFrame(self.epochs).apply(pd.to_numeric)

    def predictions(self, split: str = "test") -> "pd.DataFrame":
        """Return a row per image of a split: path, label, predicted, and the probability `p(NAME)` of each class.

        Raises DataError: the run has no such split. CheckpointError: a file is damaged."""
        from trainers.storage.predictions_file import predictions_frame

        return predictions_frame(self.folder, split)


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
    """Return the run with the best validation score; ties go to the lower loss, then to the first.

    The runs must share their validation images."""
    return max(results, key=lambda result: rank_key(select)(result.val))
