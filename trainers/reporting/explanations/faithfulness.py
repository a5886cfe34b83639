"""Faithfulness of the heat maps of a model: whether it needs their bright parts more than others.

In each image the brightest fifth of the cells is replaced by a blurred copy of itself, and in another copy a random
fifth; the two falls of the predicted class's probability are compared in pairs (deletion, as in Samek et al. 2017,
doi:10.1109/TNNLS.2016.2599820, and Petsiuk, Das and Saenko 2018, arXiv:1806.07421). The random fifth is the brightest
one, shifted at random and wrapped around the edges: connected cells take more away than scattered ones, whatever they
show, so otherwise a smooth map would look faithful to any model. B images, N cells per side.
"""

import math
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from common.errors import CheckpointError
from datasets.bundle import BatchKey, evenly
from trainers.reporting.explanations.methods import heat_maps, title_of
from trainers.reporting.explanations.subject import Subject, blurred, cells, probabilities, resized, without
from trainers.storage.checkpoint_file import best_of, seal_of
from trainers.storage.run_folder import read_json, write_json

IMAGES = 64
"""Number of validation images to measure on."""
WAITED_FOR = 10.0
"""Seconds that a run waits for it; if it takes longer, `explain` does it."""
REMOVED = 5
"""One cell in this many is removed."""
DRAWS = 2
"""Random fifths per image; their mean is compared with the brightest fifth."""
LEVEL, LEAST = 0.01, 0.01
"""Maps are faithful if their p value (one-sided, paired t test) is below LEVEL and their lead at least LEAST."""
AT_ONCE = 16
FILE = "eval/faithfulness.json"
"""File of a run: how faithful each method's maps are on its best weights."""


@dataclass(frozen=True)
class Faithfulness:
    """How faithful the maps of a method are to a model.

    Costs are mean drops in probability over the images."""

    method: str
    images: int
    brightest: float
    """Drop in the predicted class's probability without the brightest fifth."""
    random: float
    """The same without a random fifth."""
    p: float
    """P-value of the hypothesis that the brightest fifth costs no more than a random one."""

    @property
    def faithful(self) -> bool:
        return self.p < LEVEL and self.brightest - self.random >= LEAST

    def __str__(self) -> str:
        verdict = "are faithful" if self.faithful else "are no better than random: do not read them"
        brightest, random = (f"{round(100 * share, 1) + 0.0:.1f}" for share in (self.brightest, self.random))  # no -0.0
        return (
            f"On this model the maps of {title_of(self.method)} {verdict}. Removing the brightest fifth of the patches"
            f" costs {brightest} points of the class's probability, a random fifth {random}"
            f" ({self.images} validation images)."
        )


def read_faithfulness(run_dir: Path) -> dict[str, Faithfulness]:
    """Read what was measured on a run's best weights, by method.

    Returns {} if the file is damaged."""
    try:
        values = read_json(run_dir / FILE)
        if values["weights"] != seal_of(best_of(run_dir)):
            return {}
        return {
            name: Faithfulness(name, int(each["images"]), *(float(each[key]) for key in ("brightest", "random", "p")))
            for name, each in values["methods"].items()
        }
    except (FileNotFoundError, CheckpointError, AttributeError, KeyError, OverflowError, TypeError, ValueError):
        return {}


def measure_run(
    run_dir: Path, model: nn.Module, dataset: Any, *, method: str = "auto", seconds: float = math.inf
) -> Faithfulness | None:
    """Measure a method on a run's validation images, and save the result there.

    Returns None without images, or if the first batch shows that all would take more than `seconds`. Raises NoMap: the
    method has no maps for this model.
    """
    rows = evenly(len(dataset), IMAGES)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    parts = [rows[start : start + AT_ONCE] for start in range(0, len(rows), AT_ONCE)]
    images = (dataset.batch(BatchKey(0, part))[0].to(device) for part in parts)
    found = measure_maps(model, images, method=method, seconds_each=seconds / max(1, len(parts)))
    if found is not None:
        methods = {name: asdict(each) for name, each in {**read_faithfulness(run_dir), found.method: found}.items()}
        with suppress(OSError):  # a run that may only be read
            (run_dir / FILE).parent.mkdir(exist_ok=True)
            write_json(run_dir / FILE, {"weights": seal_of(best_of(run_dir)), "methods": methods})
    return found


def measure_maps(
    model: nn.Module, batches: Iterable[Tensor], *, method: str = "auto", seconds_each: float = math.inf
) -> Faithfulness | None:
    """Measure a method on batches of normalised images (B, C, S, S).

    The random fifths are seeded by the number of the batch, so the result is the same each time. Returns None without
    images, or if the first of several batches takes longer than `seconds_each`. Raises NoMap: the method has no maps
    for this model.
    """
    costs, started = [], time.perf_counter()
    for number, images in enumerate(batches):
        if number == 1 and time.perf_counter() - started > seconds_each:
            return None
        found = heat_maps(model, images, method=method)
        method = found.method
        costs.append(costs_of(Subject(model, images, found.classes.to(images.device)), found.values, seed=number))
    if not costs:
        return None
    first, second = (torch.cat(parts).double() for parts in zip(*costs, strict=True))
    return Faithfulness(method, len(first), float(first.mean()), float(second.mean()), p=paired(first - second))


def paired(leads: Tensor) -> float:
    """Return the one-sided p value of a paired t test of mean <= 0.

    `leads` is (N,). It is 0 or 1 where the test is undefined."""
    if len(leads) < 2 or not bool(leads.isfinite().all()) or float(leads.std()) == 0:
        return float(len(leads) < 2 or not float(leads.mean()) > 0)
    from scipy.special import stdtr  # scipy.stats, which has the test, takes 0.7 s to import

    statistic = float(leads.mean()) / (float(leads.std()) / len(leads) ** 0.5)
    return float(stdtr(len(leads) - 1, -statistic))


def costs_of(subject: Subject, maps: Tensor, *, seed: int) -> tuple[Tensor, Tensor]:
    """Measure how far probabilities fall without the brightest and a random fifth.

    Both are (B,); the second is a mean over DRAWS.
    """
    images, side = subject.images, cells(subject.images.size(-1))
    count = max(1, round(side * side / REMOVED))
    order = resized(maps, side).flatten(1).argsort(dim=1, descending=True, stable=True)
    brightest = torch.zeros(order.shape, dtype=torch.bool).scatter(1, order[:, :count], True)
    brightest = brightest.unflatten(1, (side, side))
    generator, instead = torch.Generator().manual_seed(seed), blurred(images)

    def probability_without(removed: Tensor) -> Tensor:
        return probabilities(subject, without(images, removed.to(images.device), instead)).cpu()

    with torch.no_grad():
        whole = probabilities(subject, images).cpu()
        chance = torch.stack([probability_without(moved(brightest, generator)) for _ in range(DRAWS)]).mean(dim=0)
        return whole - probability_without(brightest), whole - chance


def moved(marks: Tensor, generator: torch.Generator) -> Tensor:
    """Shift each mask (B, N, N) at random, wrapping around the edges."""
    side = marks.size(-1)
    shifts = torch.randint(side, (len(marks), 2), generator=generator).tolist()
    return torch.stack([mark.roll(shift, dims=(0, 1)) for mark, shift in zip(marks, shifts, strict=True)])
