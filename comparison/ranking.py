"""Ranking of backbones for fine-tuning: each is judged frozen, by the head that plans fit to its features.

The head is cross-validated on training images, the same ones and the same folds for every backbone. The validation and
test images are not looked at.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.errors import DataError
from common.files import write_text
from common.shell import command
from common.tables import csv_text
from datasets.bundle import LEFT_OUT, VAL, Samples, image_set
from datasets.config import DataConfig, words
from trainers.budget.local_weights import MOST_IMAGES, probes
from trainers.config import RunConfig
from trainers.features import features_of
from trainers.heads.fit import as_images, ranking
from trainers.heads.linear import Judged, cross_validate
from trainers.reporting.console import say
from trainers.seen import Start, starts_of, without_seen
from trainers.statistics import design_of, holm, is_claim, paired_difference
from trainers.storage.data_folder import claimed_folder


@dataclass(frozen=True)
class RankedBackbone:
    """Result of one backbone."""

    arm: str
    """Name as an arm of `compare`."""
    parameters: int
    seconds: float
    """Seconds to compute the features and to judge them."""
    judged: Judged


def rank_backbones(arms: Mapping[str, RunConfig]) -> list[RankedBackbone]:
    """Judge all that can be had, the best first. Raises DataError: there are too few images to judge by."""
    names, base = {config.model: arm for arm, config in arms.items()}, next(iter(arms.values()))
    starts, rows = dict.fromkeys(start for arm in arms.values() for start in starts_of(arm.model)), []
    unseen: NDArray[np.bool_] | None = None
    for model, setup in probes(base.changed(data={"allow_seen": True}), names):
        start = time.perf_counter()
        if unseen is None:
            unseen = images_to_judge(setup.data.samples, starts, allow=base.data.allow_seen)
        images = as_images(setup, "train", features_of(setup, "train", keep=True))
        rows_of_train = image_set(setup.data.dataloaders["train"]).indices
        judged = cross_validate(images.take(np.flatnonzero(unseen[rows_of_train])), most=MOST_IMAGES)
        if judged is None:
            raise DataError(f"{base.data.source}: too few training images to rank by; three of each class are needed")
        seconds = time.perf_counter() - start
        parameters = sum(parameter.numel() for parameter in setup.model.requires_grad_(True).parameters())
        rows.append(RankedBackbone(names[model], parameters, seconds, judged))
    return sorted(rows, key=lambda row: row.judged.loss)


def images_to_judge(samples: Samples, starts: Collection[Start], *, allow: bool) -> NDArray[np.bool_]:
    """Choose the training images that no start was trained on, (n,) over all samples; with `allow` all of them.

    Prints how many others there are. Raises DataError: less than half is left."""
    train = samples.indices("train")
    others = np.setdiff1d(np.arange(len(samples)), train)
    judged, said = without_seen(samples.with_splits({LEFT_OUT: others, VAL: train}), starts, allow=allow)
    for line in said:
        say(line.replace("val images", "train images"), label="note")
    return judged.splits != LEFT_OUT


def table(rows: Sequence[RankedBackbone]) -> Iterator[str]:
    """Yield the table, and what follows from it."""
    first, *others = (row.judged.right for row in rows)
    images = rows[0].judged.images
    behind = [paired_difference(first[None], other[None], images.units) for other in others]
    yield from ranking({row.arm: {"cross-validation": row.judged.scores} for row in rows})
    design = design_of(first, images.units)
    yield f"a linear head, cross-validated on {len(first):,} training images; ± half of a 95 % interval"
    if not design.alone:
        yield f"groups: these images come {design} that stand alone; intervals and verdicts draw whole groups"
    adjusted = holm([other.p for other in behind])
    level = [row.arm for row, other, p in zip(rows[1:], behind, adjusted, strict=True) if not is_claim(other, p)]
    yield f"worth fine-tuning: {rows[0].arm}" + "".join(f", or {arm}" for arm in level)


def compare_command(data: DataConfig, arms: Sequence[str]) -> str:
    """Return the command that compares these arms on the same images."""
    return command("compare", *words(data), "--arms", *arms)


def write(rows: Sequence[RankedBackbone], config: RunConfig) -> Path:
    """Write ranking.csv into the folder of the runs on these images, which is returned."""
    folder = claimed_folder(config.output, config.data.source)
    header = ("backbone", "low", "accuracy", "high", "log_loss", "images", "parameters", "seconds")
    cells = []
    for row in rows:
        found, judged = row.judged.scores, len(row.judged.right)
        of_head = (*(found[name] for name in ("low", "accuracy", "high", "loss")), judged)
        cells.append((row.arm, *of_head, row.parameters, row.seconds))
    write_text(folder / "ranking.csv", csv_text(header, cells))
    return folder
