"""The ways to train that a plan chooses from; docs/results.md says what each threshold was chosen by."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainers.budget.local_weights import Ranked
from trainers.options.recipes import RECIPES
from vit.config import EMBEDDED_WEIGHTS


@dataclass(frozen=True)
class Candidate:
    """A way to train that a plan may choose: options as in a recipe, which fill in what a person left open."""

    name: str
    options: dict[str, dict[str, Any]]
    wants: float = 0.0
    """Passes over the training images from which it does better than the candidate before it."""
    weights: str | None = None
    """Weights that it starts from, as the ranking names them."""
    most: float = math.inf
    """Passes after which it gains no more."""


AS_GIVEN = Candidate("the model as given", {})

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
"""Accuracy of a linear probe above which the whole model is not trained."""
ENOUGH = 100.0
"""Passes over the training images after which fine-tuning gains no more."""
MIXED, MIXED_PASSES, MIXED_IMAGES = {"mixup": 0.8, "cutmix": 1.0}, 10.0, 1_000
"""Options that keep fine-tuning from memorising its images, and the passes and images from which they help."""
LARGER, LARGER_PASSES = 128, 20.0
"""Input side in pixels for fine-tuning on few photographs that are as large, and the passes from which it helps."""
CUT = 0.4
"""Share of a linear probe's errors that training its whole model may leave."""


def may_do_better(probe: float, best: float) -> bool:
    """Return whether all of a model trained may beat the best linear probe, where its own probe is this accurate."""
    return best < GOOD and CUT * (1 - probe) <= 1 - best


def fine_tuned(rows: Sequence[Ranked], *, images: int, side: float) -> list[Candidate]:
    """All of an embedded ViT trained, where that may do better than the best linear probe: as its recipe says, and
    with time to see the images, of `side` pixels, often: many of them mixed, few of them larger. Of several models, the
    best of the ranking; the larger where images are many."""
    recipe = RECIPES["finetune-small"].options
    many = images >= MIXED_IMAGES
    if many:
        rows = sorted(rows, key=lambda row: row.options["model"]["name"] != recipe["model"]["name"])
    best = max((row.accuracy for row in rows), default=0.0)
    for row in rows:
        model = row.options["model"]
        if model["name"] in EMBEDDED_WEIGHTS.values() and may_do_better(row.accuracy, best):
            train = recipe["train"] | {"schedule": "cooldown"}
            options = recipe | {"model": model | {"trainable": "all"}, "train": train}
            alone = Candidate(f"all of {row.name}", options, weights=row.name, most=ENOUGH)
            if many:
                words, changed, wants = "with MixUp and CutMix", {"train": train | MIXED}, MIXED_PASSES
            else:
                larger = {"model": options["model"] | {"image_size": LARGER}}
                words, changed, wants = f"at {LARGER} px", larger, LARGER_PASSES
            richer = replace(alone, name=f"{alone.name} {words}", options=options | changed, wants=wants)
            return [alone, richer] if many or side >= LARGER else [alone]
    return []
