"""Heat maps of a run's model, and how faithful they are: measured once, and kept in the run."""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from common.errors import CheckpointError
from datasets.bundle import BatchKey, evenly
from trainers.reporting.explanations.faithfulness import AT_ONCE, IMAGES, Faithfulness, from_json, measure, to_json
from trainers.reporting.explanations.methods import MIXTURE, heat_maps
from trainers.reporting.explanations.subject import NoMap
from trainers.storage.checkpoint_file import best_of, seal_of
from trainers.storage.run_folder import read_if_whole, write_json

FILE = "faithfulness.json"
"""File in `eval/` of a run: what each method's maps are worth on its best weights."""
__all__ = ["IMAGES", "NoMap", "heat_maps", "kept", "measured", "to_ask_for"]

WAITED_FOR = 10.0
"""Seconds that a run which has just ended may take to measure its maps; `explain` does it otherwise."""


class TakesLong(Exception):
    """Measuring would take more than the seconds that it may."""


def to_ask_for(method: str) -> str:
    """The name that makes `heat_maps` take this method again."""
    return "auto" if method == MIXTURE else method


def kept(run_dir: Path) -> "dict[str, Faithfulness]":
    """Read what was measured on the best weights of a run, by method; nothing where none was, or the file is
    damaged."""
    with suppress(FileNotFoundError, CheckpointError):
        return from_json(read_if_whole(run_dir / "eval" / FILE), weights=seal_of(best_of(run_dir)))
    return {}


def measured(
    run_dir: Path, model: nn.Module, dataset: Any, *, method: str = "auto", seconds: float | None = None
) -> "Faithfulness | None":
    """Measure a method, by default the model's own, on images of the validation set `dataset`, and keep it in the run.
    None where there are no images. Raises NoMap: it has no maps of this model. TakesLong: more than these seconds."""
    rows = evenly(len(dataset), IMAGES)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    parts = [rows[start : start + AT_ONCE] for start in range(0, len(rows), AT_ONCE)]
    images = (dataset.batch(BatchKey(0, part))[0].to(device) for part in parts)
    found = measure(model, images if seconds is None else _in_time(images, len(parts), seconds), method=method)
    if found is not None:
        everything = {**kept(run_dir), found.method: found}
        with suppress(OSError):  # a run that may only be read
            path = run_dir / "eval" / FILE
            path.parent.mkdir(exist_ok=True)
            write_json(path, to_json(everything, weights=seal_of(best_of(run_dir))))
    return found


def _in_time(batches: Iterator[Tensor], count: int, seconds: float) -> Iterator[Tensor]:
    """The batches, until the first one has shown that all of them take longer."""
    start = time.perf_counter()
    for number, batch in enumerate(batches):
        if number == 1 and (time.perf_counter() - start) * count > seconds:
            raise TakesLong
        yield batch
