"""The verdict of a comparison in TensorBoard, and a curve for each arm: its mean over the seeds and its band.

TensorBoard knows no groups of runs, so each arm has a row of its own. The first section holds its mean validation
accuracy over the seeds, the last the two ends of its band. The Custom Scalars tab lays them over each other in margin
charts. Steps are training images seen: arms with other batch sizes take other numbers of steps.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t
from torch.utils.tensorboard import SummaryWriter

from comparison.drawing import ReportFigure
from comparison.names import slugs
from comparison.results import ConditionResult
from comparison.runs import Arm, Condition
from trainers.reporting.tensorboard import add_png, utf8
from trainers.statistics import LEVEL

MEANS, ENDS = "0_val_accuracy", "9_val_accuracy_spread"
"""The first section, which TensorBoard opens, and the last, from which the Custom Scalars tab draws the bands."""
FEW = 3
"""Seeds up to which a band goes from the lowest to the highest: a Student interval of three seeds swings from one epoch
to the next between a twentieth and a half."""


def write_events(
    folder: Path, verdict: str, pictures: Sequence[ReportFigure], results: Sequence[ConditionResult]
) -> None:
    """Write the `verdict` (Markdown) and the figures to `folder`, first in their tabs; below it a row for each arm."""
    conditions = [result.condition for result in results]
    with SummaryWriter(log_dir=str(folder)) as writer:
        writer.add_text("0_verdict", utf8(verdict), 0)
        for place, picture in enumerate(pictures):
            add_png(writer, f"0_verdict/{place:02}_{Path(picture.file).stem}", picture.png, 0)
        if charts := margin_charts(conditions):
            writer.add_custom_scalars(charts)
    for place, slug in enumerate(slugs(conditions[0].names)):
        seeds = "-".join(map(str, sorted({len(condition.arms[place].runs) for condition in conditions})))
        with SummaryWriter(log_dir=str(folder / f"{slug}_n{seeds}")) as writer:
            for condition in conditions:
                write_curves(writer, condition, place)


def margin_charts(conditions: Sequence[Condition]) -> dict[str, dict[str, list[Any]]]:
    """Return the layout of the Custom Scalars tab: by kind of band, a chart for each condition with several seeds."""
    charts: dict[str, dict[str, list[Any]]] = {}
    for condition in reversed(conditions):  # TensorBoard shows the last chart first
        for count in sorted({len(arm.runs) for arm in condition.arms} - {1}):
            chart = {f"val accuracy, {condition.title}": ["Margin", tags_of(condition, count)]}
            charts.setdefault(band_of(count)[1], {}).update(chart)
    return charts


def band_of(seeds: int) -> tuple[str, str]:
    """Return a prefix for the tags of a band's ends, and the band in words; empty for one seed."""
    if seeds == 1:
        return "", ""
    if seeds <= FEW:
        return "seeds", "mean over the seeds, from the lowest seed to the highest"
    return "interval", f"mean over the seeds and its {1 - LEVEL:.0%} interval"


def write_curves(writer: SummaryWriter, condition: Condition, place: int) -> None:
    """Write one arm's mean, and for several seeds the ends of its band."""
    arm = condition.arms[place]
    images, *curves = over_seeds(arm)
    for tag, values in zip(tags_of(condition, len(arm.runs)), curves, strict=False):
        for seen, value in zip(images, values, strict=True):
            writer.add_scalar(tag, value, seen)


def over_seeds(arm: Arm) -> tuple[list[int], np.ndarray, np.ndarray, np.ndarray]:
    """Return the images seen at the epochs that every run has, and the mean and band ends of the validation accuracy
    over the K seeds: the lowest and highest of few seeds, else the ends of the mean's Student interval."""
    epochs = list(zip(*(run.history for run in arm.runs), strict=False))
    values = np.array([[row["val_accuracy"] for row in rows] for rows in epochs])  # (epochs, K)
    mean, count = values.mean(axis=1), values.shape[1]
    first = arm.runs[0]
    per_step = first.summary["images_seen"] / max(1, first.history[-1]["step"])
    images = [round(rows[0]["step"] * per_step) for rows in epochs]
    if count <= FEW:
        return images, mean, values.min(axis=1), values.max(axis=1)
    half = t.ppf(1 - LEVEL / 2, count - 1) * values.std(axis=1, ddof=1) / count**0.5
    return images, mean, mean - half, mean + half


def tags_of(condition: Condition, seeds: int) -> list[str]:
    """Return the tag of the mean and, for several seeds, of the lower and the upper end of its band."""
    name, ends = f"{condition.labels}_labels", band_of(seeds)[0]
    return [f"{MEANS}/{name}", *(f"{ENDS}/{name}_{ends}_{end}" for end in ("low", "high") if ends)]
