"""Which model for the images at hand and the minutes there are: a table of measured recipes, and how one is chosen.

No torch here, and nothing is measured: `trainers/planning.py` does that.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from trainers.config import RunConfig, from_dict, to_dict
from trainers.recipes import RECIPES


@dataclass(frozen=True)
class Candidate:
    """A way to train that a plan may choose: options as in a recipe, which fill in what a person left open."""

    name: str
    options: dict[str, dict[str, Any]]
    wants: float = 0.0
    """Passes over the training images from which it does better than the candidate before it."""
    weights: str | None = None
    """Those that it starts from, as the ranking names them."""
    most: float = math.inf
    """Passes after which it gains no more."""


@dataclass(frozen=True)
class Plan:
    """What was chosen for the time there is, and why."""

    candidate: Candidate
    epochs: int | float
    reasons: tuple[str, ...]


STEM_SIDES = ((32, 0.0), (64, 15.0), (96, 60.0))
"""Input side of the small ViT on a stem of convolutions; passes from which it does better than the side before it."""

ENLARGED = 2.5
"""Up to this much larger than the images an input still shows the model more: as many more patches."""


def from_scratch(side: float) -> Iterator[Candidate]:
    """Candidates without weights for images of this shorter side in pixels, cheapest first."""
    recipe = RECIPES["scratch-small"].options
    if ENLARGED * side < STEM_SIDES[0][0]:
        yield Candidate("vit_micro_2", {"model": {"name": "vit_micro_2"}})
        return
    for size, wants in STEM_SIDES:
        if size <= ENLARGED * side:
            options = recipe | {"model": recipe["model"] | {"image_size": size}}
            options |= {"train": recipe["train"] | {"schedule": "cooldown"}}
            yield Candidate(f"vit_nano_8 with a stem at {size} px", options, wants)


GOOD = 0.97
"""Accuracy of a linear probe above which training the whole model has little to gain."""
ENOUGH = 100.0
"""Passes over the training images that fine-tuning takes: with 95 of dogs 68 % came after 40, 71 % after 100."""
MIXED, MIXED_PASSES, MIXED_IMAGES = {"mixup": 0.8, "cutmix": 1.0}, 10.0, 1_000
"""What keeps fine-tuning from learning its images by heart, and the passes and images from which it helps: with 4,500
of CIFAR-10 it was worth 67.0 % of the test images after 12 passes and 69.2 % after 20, without it 64.6 % after 11 (98 %
of the training images were right by then); with 95 of dogs 61.0 %, without it 58.5 and 70.7 %. Of the weights that came
later it was worth 78.8 % of 5,000 other images after 9 passes, without it 79.1 %."""
LARGER, LARGER_PASSES = 128, 20.0
"""Side in pixels at which few photographs, themselves as large, are better fine-tuned where each is seen so often:
after 30 passes 68.3 and 68.3 % of ten dog breeds (at 64 px 61.0 and 63.4 %), 35.7 and 50.0 % of twenty others (36.9 and
39.3 %), 86.9 % of hymenoptera (80.4 %); test images, seeds 0 and 1, of hymenoptera 0."""
CUT = 0.4
"""Share of a linear probe's errors that training its whole model may leave."""


def may_do_better(probe: float, best: float) -> bool:
    """Whether all of a model trained may beat the best linear probe, where its own probe is this accurate."""
    return best < GOOD and CUT * (1 - probe) <= 1 - best


def filled_in(config: RunConfig, options: dict[str, dict[str, Any]]) -> RunConfig:
    """`config` with `options` where it still has the application's defaults, and its epochs left open."""
    given, default = to_dict(config), to_dict(RunConfig())
    open_values = {
        section: {name: value for name, value in values.items() if given[section][name] == default[section][name]}
        for section, values in options.items()
    }
    filled: RunConfig = from_dict(RunConfig, open_values, base=config)
    return filled.changed(train={"epochs": config.train.epochs})


def choose(candidates: Sequence[Candidate], epochs: Sequence[float]) -> Plan:
    """The richest candidate that sees the images often enough in the time; `epochs` says how often each would."""
    chosen = max((n for n, candidate in enumerate(candidates) if epochs[n] >= candidate.wants), default=0)
    reasons = [f"{candidates[chosen].name} sees each image {times(epochs[chosen])}"]
    if chosen + 1 < len(candidates):
        larger, seen = candidates[chosen + 1], times(epochs[chosen + 1])
        reasons.append(f"{larger.name} would see it {seen}, and pays from {larger.wants:g} times on")
    if epochs[chosen] > candidates[chosen].most:
        reasons = [f"{candidates[chosen].name} gains no more by seeing each image more often"]
    return Plan(candidates[chosen], rounded(min(epochs[chosen], candidates[chosen].most)), tuple(reasons))


def rounded(epochs: float) -> int | float:
    """Whole epochs where that changes the length by little, else hundredths of one."""
    return int(epochs) if epochs >= 20 else max(0.01, int(100 * epochs) / 100)


def times(epochs: float) -> str:
    return f"{epochs:.0f} times" if epochs >= 10 else f"{epochs:.1f} times"
