"""What a comparison shows in TensorBoard: the verdict to start from, and the mean of every arm over its seeds.

TensorBoard knows no groups of runs. So each arm has a row for its mean, whose curves stand in the first section; the
Custom Scalars tab draws them with their band (margin charts).
"""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
from scipy.stats import t
from torch.utils.tensorboard import SummaryWriter

from comparison.analysis.results import ConditionResult
from comparison.analysis.runs import Arm, Condition
from comparison.analysis.statistics import LEVEL
from comparison.names import slugs
from comparison.reporting.drawing import ReportFigure
from trainers.reporting.tensorboard import add_png, add_text, failures_kept

METRICS = ("accuracy", "loss")


def write_events(
    folder: Path, verdict: str, pictures: Sequence[ReportFigure], results: Sequence[ConditionResult]
) -> None:
    """The `verdict` (markdown) and the figures in `folder`, and below it a row per arm for its mean."""
    conditions = [result.condition for result in results]
    with failures_kept(), SummaryWriter(log_dir=str(folder)) as writer:
        add_text(writer, "comparison", verdict, 0)
        for picture in pictures:
            add_png(writer, f"comparison/{Path(picture.file).stem}", picture.png, 0)
        charts = {
            f"val {metric}, {condition.title}": ["Margin", tags_of(metric, condition)]
            for metric in reversed(METRICS)
            for condition in reversed(conditions)  # TensorBoard shows the last chart first
        }
        writer.add_custom_scalars({f"mean over the seeds and its {1 - LEVEL:.0%} interval": charts})
    for place, slug in enumerate(slugs(conditions[0].names)):
        seeds = "-".join(map(str, sorted({len(condition.arms[place].runs) for condition in conditions})))
        with failures_kept(), SummaryWriter(log_dir=str(folder / f"{slug}_n{seeds}")) as writer:
            for condition, metric in product(conditions, METRICS):
                steps, *curves = over_seeds(condition.arms[place], metric)
                for tag, values in zip(tags_of(metric, condition), curves, strict=True):
                    for step, value in zip(steps, values, strict=True):
                        writer.add_scalar(tag, value, step)


def over_seeds(arm: Arm, metric: str) -> tuple[list[int], np.ndarray, np.ndarray, np.ndarray]:
    """The steps of the epochs that every run has, and there a validation metric's mean over the K seeds with the ends
    of its Student interval; of one seed no interval is known: its ends are the mean."""
    epochs = list(zip(*(run.history for run in arm.runs), strict=False))
    values = np.array([[row[f"val_{metric}"] for row in rows] for rows in epochs])  # (epochs, K)
    mean, count = values.mean(axis=1), values.shape[1]
    half = t.ppf(1 - LEVEL / 2, count - 1) * values.std(axis=1, ddof=1) / count**0.5 if count > 1 else 0 * mean
    return [int(rows[0]["step"]) for rows in epochs], mean, mean - half, mean + half


def tags_of(metric: str, condition: Condition) -> list[str]:
    """Of the mean, in the first section that TensorBoard opens, and of the ends of its interval."""
    name = f"{metric}_{condition.labels}_labels"
    return [f"0_mean/{name}", f"interval/{name}_low", f"interval/{name}_high"]
