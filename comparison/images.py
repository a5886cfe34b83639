"""The images behind the numbers: which ones only one arm gets right, and how they look."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from comparison.results import ConditionResult
from comparison.runs import Arm, Run
from datasets.config import DataConfig
from datasets.errors import DataError
from datasets.loaders import read_samples
from datasets.suspects import picture_of
from figures.thumbnails import thumbnail
from trainers.config import from_dict
from trainers.run_directory import as_data

EXAMPLES = 8  # images per side that only one arm gets right
THUMBNAIL = 160  # pixels; the longer side


@dataclass(frozen=True)
class Example:
    """One image on which arms disagree: its row among the scored ones, and the usual predictions with their votes."""

    row: int
    path: str
    label: str
    first: tuple[str, int]
    second: tuple[str, int]
    thumbnail: str | None


@dataclass(frozen=True)
class Disagreement:
    """Images that only one of two arms gets right; `problem` says why there are no pictures."""

    first: Arm
    second: Arm
    only_first: list[Example]
    only_second: list[Example]
    problem: str = ""


def disagreement(result: ConditionResult) -> Disagreement:
    """The images that only the first arm, or only the most accurate of the others, gets right."""
    first = result.condition.arms[0]
    second = max(result.arms[1:], key=lambda row: row.scores.accuracy).arm
    only_first, only_second = only_one_right(first, second)
    rows = [*only_first, *only_second]
    run, problem = first.runs[0], ""
    thumbnails: list[str | None] = [None] * len(rows)
    try:
        thumbnails = [thumbnail(image, THUMBNAIL) for image in open_images(run, rows)] if rows else []
    except (DataError, OSError, ValueError) as error:
        problem = f"The images are not shown: {error}"
    examples = []
    for row, picture in zip(rows, thumbnails, strict=True):
        predictions = usual_prediction(first, row), usual_prediction(second, row)
        examples.append(Example(row, run.paths[row], run.class_names[run.labels[row]], *predictions, picture))
    count = len(only_first)
    return Disagreement(first, second, examples[:count], examples[count:], problem)


def only_one_right(first: Arm, second: Arm) -> tuple[list[int], list[int]]:
    """Rows of the images that most runs of one arm get right and most of the other do not, clearest first.

    Of equally clear ones the classes take turns, each beginning where the winner is surer of the true class.
    """
    right, other = first.correct.mean(axis=0), second.correct.mean(axis=0)  # (N,)
    sure = _true_class_probability(first) - _true_class_probability(second)
    ours, theirs = (right > 0.5) & (other < 0.5), (right < 0.5) & (other > 0.5)
    gap, labels = right - other, first.runs[0].labels
    return (
        [row for row in _clearest(gap, sure, labels) if ours[row]][:EXAMPLES],
        [row for row in _clearest(-gap, -sure, labels) if theirs[row]][:EXAMPLES],
    )


def _clearest(gap: np.ndarray, sure: np.ndarray, labels: np.ndarray) -> list[int]:
    order = np.lexsort((-sure, labels, -gap))
    gap, sure, place = gap[order], sure[order], np.arange(len(order))
    begins = np.append(True, (np.diff(gap) != 0) | (np.diff(labels[order]) != 0))  # of one gap and label
    turn = place - np.maximum.accumulate(np.where(begins, place, 0))
    return order[np.lexsort((-sure, turn, -gap))].tolist()


def _true_class_probability(arm: Arm) -> np.ndarray:
    rows = np.arange(len(arm.runs[0].labels))
    return np.mean([run.probabilities[rows, run.labels] for run in arm.runs], axis=0)


def usual_prediction(arm: Arm, row: int) -> tuple[str, int]:
    """The class that most of an arm's runs predict for an image, and how many do."""
    votes = np.bincount([run.predicted[row] for run in arm.runs])
    return arm.runs[0].class_names[int(votes.argmax())], int(votes.max())


def open_images(run: Run, rows: Sequence[int]) -> list[Image.Image]:
    """The scored images `rows` of a run, as its data set has them."""
    config = from_dict(DataConfig, run.config["data"])
    with as_data():
        samples = read_samples(config)
    place = {path: index for index, path in enumerate(samples.paths)}
    missing = [run.paths[row] for row in rows if run.paths[row] not in place]
    if missing:
        raise DataError(f"{config.source} no longer has {missing[0]!r}")
    return [picture_of(samples, place[run.paths[row]]) for row in rows]
