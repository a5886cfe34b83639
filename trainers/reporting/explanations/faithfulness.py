"""Faithfulness of the heat maps of a model: whether it needs what they call bright more than anything else.

Of each image the brightest fifth of the cells is replaced by a blurred copy of itself, and so is a random fifth; what
the probability of the predicted class falls by is compared in pairs (deletion, as in Samek et al. 2017,
doi:10.1109/TNNLS.2016.2599820, and Petsiuk, Das and Saenko 2018, arXiv:1806.07421). The random fifth is the brightest
one, moved at random and wrapped around the edges: cells that lie together take more away than as many scattered ones,
whatever they show, so a smooth map would look faithful to any model. B images, N cells per side.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trainers.reporting.explanations.methods import METHODS, MIXTURE, heat_maps, title_of
from trainers.reporting.explanations.perturbation import blurred, probabilities, without
from trainers.reporting.explanations.subject import Subject, cells, resized

IMAGES = 64
"""Validation images that are measured."""
REMOVED = 5
"""One cell in so many is removed."""
DRAWS = 2
"""Random fifths of each image, whose mean is compared with the brightest one."""
LEVEL, LEAST = 0.01, 0.01
"""Maps are faithful whose p value (one-sided, paired t test) is below the one, if their lead is not below the other."""
AT_ONCE = 16


@dataclass(frozen=True)
class Faithfulness:
    """Faithfulness of the maps of one method on one model. Costs are shares of probability, means over the images."""

    method: str
    images: int
    brightest: float
    """Cost to the predicted class of removing the brightest fifth."""
    random: float
    """Cost to it of removing a random fifth."""
    p: float
    """P-value of the hypothesis that the brightest fifth costs no more than a random one."""

    @property
    def faithful(self) -> bool:
        return self.p < LEVEL and self.brightest - self.random >= LEAST

    @property
    def verdict(self) -> str:
        """A sentence, verdict first."""
        title = title_of(self.method)
        if not self.faithful:
            return f"On this model the maps of {title} are no better than random: do not read them."
        return f"On this model the maps of {title} are faithful."

    @property
    def numbers(self) -> str:
        """Sentence with the numbers that the verdict is based on."""
        return (
            f"Removing the brightest fifth of the patches costs {points(self.brightest)} points of the class's "
            f"probability, a random fifth {points(self.random)} ({self.images} validation images)."
        )

    def __str__(self) -> str:
        return f"{self.verdict} {self.numbers}"


def measure(model: nn.Module, batches: Iterable[Tensor], *, method: str = "auto") -> Faithfulness | None:
    """Measure a method, by default the model's own, on normalised images (B, C, S, S), batch after batch.

    The random fifths are drawn by place in the stream, so the result is the same each time. None without images.
    Raises NoMap: the method has no maps of this model."""
    bright, chance, name = [], [], method
    for start, images in enumerate(batches):
        found = heat_maps(model, images, method=method)
        name = found.method
        if name != MIXTURE:  # which is what `auto` found: no method that could be asked for
            method = name
        costs = costs_of(Subject(model, images, found.classes.to(images.device)), found.values, seed=start)
        bright.append(costs[0])
        chance.append(costs[1])
    if not bright:
        return None
    first, second = torch.cat(bright).double(), torch.cat(chance).double()
    return Faithfulness(name, len(first), float(first.mean()), float(second.mean()), p=paired(first - second))


def points(share: float) -> str:
    """A share of probability in points, without a sign before zero."""
    return f"{round(100 * share, 1) + 0.0:.1f}"


def paired(leads: Tensor) -> float:
    """p value of the hypothesis that differences (N,) are 0 on average, or less; 1 where there is nothing to test."""
    if len(leads) < 2 or not bool(leads.isfinite().all()) or float(leads.std()) == 0:
        return float(len(leads) < 2 or not float(leads.mean()) > 0)
    from scipy.special import stdtr  # scipy.stats, which has the test, takes 0.7 s to import

    statistic = float(leads.mean()) / (float(leads.std()) / len(leads) ** 0.5)
    return float(stdtr(len(leads) - 1, -statistic))


def costs_of(subject: Subject, maps: Tensor, *, seed: int) -> tuple[Tensor, Tensor]:
    """Measure by how much the probability of each image's class falls without its brightest fifth, and without a random
    one: (B,) each, the second a mean over DRAWS."""
    images, side = subject.images, cells(subject.images.size(-1))
    count = max(1, round(side * side / REMOVED))
    order = resized(maps, side).flatten(1).argsort(dim=1, descending=True, stable=True)
    brightest = torch.zeros(order.shape, dtype=torch.bool).scatter(1, order[:, :count], True)
    brightest = brightest.unflatten(1, (side, side))
    generator, instead = torch.Generator().manual_seed(seed), blurred(images)

    def left(removed: Tensor) -> Tensor:
        return probabilities(subject, without(images, removed.to(images.device), instead)).cpu()

    with torch.no_grad():
        whole = probabilities(subject, images).cpu()
        chance = torch.stack([left(moved(brightest, generator)) for _ in range(DRAWS)]).mean(dim=0)
        return whole - left(brightest), whole - chance


def moved(marks: Tensor, generator: torch.Generator) -> Tensor:
    """Marks (B, N, N), each moved by a number of rows and of columns drawn at random, wrapped around the edges."""
    side = marks.size(-1)
    shifts = torch.randint(side, (len(marks), 2), generator=generator).tolist()
    return torch.stack(
        [mark.roll((down, right), dims=(0, 1)) for mark, (down, right) in zip(marks, shifts, strict=True)]
    )


def to_json(measured: Mapping[str, Faithfulness], *, weights: str) -> dict[str, Any]:
    """Return what a run keeps; `weights`: the name of the file that the measured weights are in."""
    return {"weights": weights, "methods": {name: asdict(found) for name, found in measured.items()}}


def from_json(values: Any, *, weights: str) -> dict[str, Faithfulness]:
    """Read what was kept of these very weights; nothing where it is of others, or damaged."""
    found = {}
    try:
        if values["weights"] != weights:
            return {}
        for name, fields in values["methods"].items():
            numbers = {key: float(fields[key]) for key in ("brightest", "random", "p")}
            if name in (*METHODS, MIXTURE) and all(map(is_finite, numbers.values())):
                found[name] = Faithfulness(name, int(fields["images"]), **numbers)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return {}
    return found


def is_finite(number: float) -> bool:
    return float("-inf") < number < float("inf")
