"""The images that only one of two arms gets right."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from common.errors import DataError
from comparison.results import ConditionResult
from comparison.runs import Arm, FinishedRun
from datasets.images import picture_of
from datasets.loaders import read_samples
from trainers.reporting.figures.images import thumbnail
from trainers.storage.run_folder import RunFolder, untrusted_run

EXAMPLES = 8
"""Images shown per arm."""
THUMBNAIL = 160
"""Longer side in pixels."""


@dataclass(frozen=True)
class Example:
    """An image on which arms disagree, and the most frequent prediction of each arm with its votes."""

    path: str
    label: str
    first: tuple[str, int]
    second: tuple[str, int]
    thumbnail: str | None


@dataclass(frozen=True)
class Disagreement:
    """The images that only one of two arms gets right; `problem` says why there are no pictures."""

    first: Arm
    second: Arm
    only_first: list[Example]
    only_second: list[Example]
    problem: str = ""


def disagreement(result: ConditionResult) -> Disagreement:
    """Return the images that only the first arm, or only the most accurate of the others, gets right."""
    first = result.condition.arms[0]
    second = max(result.arms[1:], key=lambda row: row.scores["accuracy"]).arm
    only_first, only_second = only_one_right(first, second)
    run, rows, pictures, problem = first.runs[0], [*only_first, *only_second], dict[int, Image.Image](), ""
    try:
        pictures = open_images(run, rows) if rows else {}
    except (DataError, OSError, ValueError) as error:
        problem = f"The images are not shown: {error}"

    def example(row: int) -> Example:
        predictions = usual_prediction(first, row), usual_prediction(second, row)
        picture = thumbnail(pictures[row], THUMBNAIL) if pictures else None
        return Example(run.paths[row], run.class_names[run.labels[row]], *predictions, picture)

    return Disagreement(first, second, [*map(example, only_first)], [*map(example, only_second)], problem)


def only_one_right(first: Arm, second: Arm) -> tuple[list[int], list[int]]:
    """Return rows of images that most runs of one arm get right and most of the other do not, clearest first."""
    right, other = first.correct.mean(axis=0), second.correct.mean(axis=0)  # (N,)
    sure = _true_class_probability(first) - _true_class_probability(second)
    order = np.lexsort((-sure, other - right)).tolist()
    ours = [row for row in order if right[row] > 0.5 > other[row]]
    theirs = [row for row in reversed(order) if other[row] > 0.5 > right[row]]
    return ours[:EXAMPLES], theirs[:EXAMPLES]


def _true_class_probability(arm: Arm) -> np.ndarray:
    rows = np.arange(len(arm.runs[0].labels))
    return np.mean([run.probabilities[rows, run.labels] for run in arm.runs], axis=0)


def usual_prediction(arm: Arm, row: int) -> tuple[str, int]:
    """Return the class that most of an arm's runs predict for an image, and how many do."""
    votes = np.bincount([run.predicted[row] for run in arm.runs])
    return arm.runs[0].class_names[int(votes.argmax())], int(votes.max())


def open_images(run: FinishedRun, rows: Sequence[int]) -> dict[int, Image.Image]:
    """Open the scored images `rows` of a run, by row. Raises DataError: its data set no longer has them."""
    config = RunFolder(run.run_dir).config.data
    with untrusted_run():
        samples = read_samples(config)
    place = {path: index for index, path in enumerate(samples.paths)}
    missing = [run.paths[row] for row in rows if run.paths[row] not in place]
    if missing:
        raise DataError(f"{config.source} no longer has {missing[0]!r}")
    return {row: picture_of(samples, place[run.paths[row]]) for row in rows}
