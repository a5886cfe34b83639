"""The verdict of a comparison in TensorBoard, and a curve for each arm: its mean over the seeds and its band.

TensorBoard knows no groups of runs, so each arm has a row of its own. The first section holds its mean validation
accuracy over the seeds, the last its lowest and its highest seed. The Custom Scalars tab lays them over each other in
margin charts. Steps are training images seen: arms with other batch sizes take other numbers of steps.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from torch.utils.tensorboard import SummaryWriter

from comparison.drawing import ReportFigure, curves
from comparison.names import slugs
from comparison.results import Comparison, rows_of
from trainers.reporting.tensorboard import add_png, utf8

MEANS, ENDS = "0_val_accuracy", "9_val_accuracy_spread"
"""The first section, which TensorBoard opens, and the last, from which the Custom Scalars tab draws the bands."""


def write_events(folder: Path, verdict: str, pictures: Sequence[ReportFigure], comparison: Comparison) -> None:
    """Write the `verdict` (Markdown) and the figures to `folder`, first in their tabs; below it a row for each arm."""
    conditions, seeds = comparison.conditions, comparison.runs["seed"].nunique()
    with SummaryWriter(log_dir=str(folder)) as writer:
        writer.add_text("0_verdict", utf8(verdict), 0)
        for place, picture in enumerate(pictures):
            add_png(writer, f"0_verdict/{place:02}_{Path(picture.file).stem}", picture.png, 0)
        if seeds > 1:
            charts = {
                f"val accuracy, {condition.title}": ["Margin", tags_of(condition)]
                for condition in reversed(conditions)  # TensorBoard shows the last chart first
            }
            writer.add_custom_scalars({"mean over the seeds, from the lowest seed to the highest": charts})
    for arm, slug in zip(comparison.arms, slugs(comparison.arms), strict=True):
        with SummaryWriter(log_dir=str(folder / f"{slug}_n{seeds}")) as writer:
            for condition in conditions:
                images, lines = over_seeds(condition.runs[condition.runs["arm"] == arm])
                for tag, values in zip(tags_of(condition), lines, strict=False):
                    for seen, value in zip(images, values, strict=True):
                        writer.add_scalar(tag, value, seen)


def over_seeds(runs: pd.DataFrame) -> tuple[list[int], list[np.ndarray]]:
    """Return the images seen at the epochs that every run of an arm has, and the mean validation accuracy over the
    seeds; of several seeds also the lowest and the highest."""
    of_runs = [curves(run) for run in rows_of(runs)]
    values = np.array([*zip(*(each["val_accuracy"] for each in of_runs), strict=False)])  # (epochs, K)
    ends = [values.min(axis=1), values.max(axis=1)] if len(runs) > 1 else []
    return [*map(round, of_runs[0]["images"].tolist())][: len(values)], [values.mean(axis=1), *ends]


def tags_of(condition: Comparison) -> list[str]:
    """Return the tags of the mean, and of the lower and the upper end of its band."""
    name = f"{condition.labels}_labels"
    return [f"{MEANS}/{name}", f"{ENDS}/{name}_low", f"{ENDS}/{name}_high"]
