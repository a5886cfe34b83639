"""The images behind the numbers: which ones only one arm gets right, how they look, and where the models look."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from comparison.runs import Arm, Run
from datasets.bundle import DataError
from datasets.config import DataConfig
from datasets.images import from_array, read_image
from datasets.loaders import read_samples
from datasets.transforms import eval_pipeline
from inference.explain import reading
from trainers.config import from_dict
from trainers.result import load
from vit import attention_weights, rollout

THUMBNAIL = 160  # pixels; the longer side
SMALL = 96  # pixels; up to here a picture is kept losslessly and enlarged without smoothing


@dataclass(frozen=True)
class Sight:
    """What one arm sees in the chosen images: pixels uint8 (C, S, S) each, attention rollout (G, G) each."""

    arm: str
    pixels: tuple[np.ndarray, ...]
    maps: tuple[torch.Tensor, ...]


def only_one_right(first: Arm, second: Arm, *, limit: int = 8) -> tuple[list[int], list[int]]:
    """Rows of the images that most runs of one arm get right and most of the other do not, clearest first.

    Of equally clear ones the classes take turns, each beginning where the winner is surer of the true class.
    """
    right, other = first.correct.mean(axis=0), second.correct.mean(axis=0)  # (N,)
    gap = right - other
    sure = _true_class_probability(first) - _true_class_probability(second)
    labels = first.runs[0].labels
    ours, theirs = (right > 0.5) & (other < 0.5), (right < 0.5) & (other > 0.5)
    return (
        [row for row in _clearest(gap, sure, labels) if ours[row]][:limit],
        [row for row in _clearest(-gap, -sure, labels) if theirs[row]][:limit],
    )


def _clearest(gap: np.ndarray, sure: np.ndarray, labels: np.ndarray) -> list[int]:
    order = np.lexsort((-sure, labels, -gap))
    groups = np.stack([gap[order], labels[order]])
    begins = np.append(True, (np.diff(groups, axis=1) != 0).any(axis=0))
    turn = np.arange(len(order)) - np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))
    return order[np.lexsort((-sure[order], turn, -gap[order]))].tolist()


def _true_class_probability(arm: Arm) -> np.ndarray:
    rows = np.arange(len(arm.runs[0].labels))
    return np.mean([run.probabilities[rows, run.labels] for run in arm.runs], axis=0)


def usual_prediction(arm: Arm, row: int) -> tuple[str, int]:
    """The class that most of an arm's runs predict for an image, and how many do."""
    votes = np.bincount([run.predicted[row] for run in arm.runs])
    return arm.runs[0].class_names[int(votes.argmax())], int(votes.max())


def open_images(run: Run, rows: Sequence[int]) -> list[Image.Image]:
    """The scored images `rows` of a run, as its data set has them.

    Raises:
        DataError, OSError: the data set is gone, or has changed.
    """
    config = from_dict(DataConfig, run.config["data"])
    samples = read_samples(config)
    place = {path: index for index, path in enumerate(samples.paths)}
    missing = [run.paths[row] for row in rows if run.paths[row] not in place]
    if missing:
        raise DataError(f"{config.source} no longer has {missing[0]!r}")
    indices = [place[run.paths[row]] for row in rows]
    if samples.pixels is not None:
        return [from_array(samples.pixels[index], 3) for index in indices]
    return [read_image(samples.file(index)) for index in indices]


def thumbnail(image: Image.Image) -> str:
    """A small picture as a data URI."""
    image = image.convert("RGB")
    lossless = max(image.size) <= SMALL
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    content = io.BytesIO()
    if lossless:
        image.save(content, "PNG", optimize=True)
    else:
        image.save(content, "JPEG", quality=85)
    return data_uri(content.getvalue(), "png" if lossless else "jpeg")


def data_uri(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"


def look(arm: Arm, images: Sequence[Image.Image]) -> Sight | None:
    """Where the model of the arm's first seed looks (attention rollout); None for a model without attention.

    Raises:
        CheckpointError, OSError: the run's weights cannot be read.
    """
    run = arm.runs[0]
    model, spec, _ = load(run.run_dir)
    pipeline = eval_pipeline(spec)
    mode = "L" if pipeline.channels == 1 else "RGB"
    pixels = [pipeline.store(image.convert(mode)) for image in images]
    try:
        with torch.no_grad():
            _, attention = attention_weights(model, pipeline.normalise(torch.from_numpy(np.stack(pixels))))
            pool = "cls" if run.config["model"]["pool"] == "cls" else "mean"
            maps = reading(rollout(attention), pool=pool)
    except ValueError:  # no attention, or tokens that are not one class token and a square grid
        return None
    return Sight(arm.name, tuple(pixels), tuple(maps))
