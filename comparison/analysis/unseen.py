"""Finished runs, or backbones, on the images that no start of any of them has seen."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from common.errors import DataError, MissingPackage
from common.text import pluralise
from comparison.analysis.runs import FinishedRun
from datasets.bundle import LEFT_OUT, SPLITS, Samples
from datasets.config import DataConfig
from trainers.config import RunConfig
from trainers.reporting import console
from trainers.seen.overlap import read_seen, said_at_start
from trainers.seen.search import seen_images, sentences, unknown
from trainers.seen.starts import Start, starts_of
from vit import Blueprint, WeightsError

JUDGED = "train and val"


def on_unseen(runs: Sequence[FinishedRun]) -> tuple[list[FinishedRun], list[str]]:
    """The runs without the images that were left out of the scores of some of them, and what to say of it; with what
    those said that scored the images which their starts had seen. Raises DataError: less than half is left."""
    allowed = [run for run in runs if run.config["data"].get("allow_seen")]
    gone = {image.path for run in runs if run not in allowed for image in read_seen(run.run_dir)}
    said = [f"{run.run_dir}: {line}" for run in allowed for line in said_at_start(run.run_dir)]
    parts = [restricted(run, frozenset(gone)) for run in runs]
    lost = max(len(run.paths) - len(part.paths) for run, part in zip(runs, parts, strict=True))
    if not lost:
        return parts, said
    most = max(len(run.paths) for run in runs)
    line = f"{pluralise(lost, 'image')} of {most:,} had been seen by what some of these runs started from"
    if 2 * (most - lost) < most:
        raise DataError(f"{line}: too few are left to compare on; train them from one start, or with one --split")
    return parts, [f"{line}: left out for all of them", *said]


def restricted(run: FinishedRun, gone: frozenset[str]) -> FinishedRun:
    """The run as if these images had never been scored."""
    kept = np.array([path not in gone for path in run.paths], bool)
    paths = tuple(path for path in run.paths if path not in gone)
    columns = {name: getattr(run, name)[kept] for name in ("labels", "predicted", "probabilities")}
    return replace(run, paths=paths, left_out=gone, **columns)


def starts_of_arms(arms: Iterable[RunConfig]) -> list[Start]:
    """The weights of all arms, as far as it is known which images these have seen; what cannot be had has none."""
    starts: list[Start] = []
    for config in arms:
        with suppress(WeightsError, MissingPackage, FileNotFoundError):
            starts += starts_of(config, Blueprint(config.model))
    return starts


def images_to_judge(samples: Samples, starts: Sequence[Start], data: DataConfig) -> NDArray[np.bool_]:
    """bool (images of train, then of val): those that no start was trained on; with `data.allow_seen` all. Prints how
    many others there are. Raises DataError: none is left."""
    rows = np.concatenate([samples.indices("train"), samples.indices("val")])
    judged = samples.with_splits({LEFT_OUT: samples.indices("test"), SPLITS.index("val"): rows})
    seen, images = seen_images(judged, starts)
    named = [image._replace(split=JUDGED) for image in images]
    said = [*sentences(named, {JUDGED: len(rows)}, scored=data.allow_seen), *unknown(judged, starts, images)]
    if len(seen) == len(rows) and not data.allow_seen:
        raise DataError(f"{said[0]}: none is left to judge on")
    for line in said:
        console.say(line, label="note")
    return np.ones(len(rows), bool) if data.allow_seen else ~np.isin(rows, seen)
