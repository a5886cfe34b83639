"""The arms of a plan: what competes, at which budget, over which learning rates. Nothing is trained here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from comparison.names import arm_names, slugs
from trainers import defaults
from trainers.config import RunConfig, to_dict
from trainers.errors import ConfigError
from trainers.job import prepare
from vit.summary import summarise

SMALL_GRID = (3e-4, 1e-3, 3e-3)
"""Peak rates every arm tries where all models are small; spaced by about 3, around what they usually take."""
LARGE_GRID = (5e-5, 2e-4, 1e-3)
"""The same where one is large: from fine-tuning a pretrained ViT-B to training a small one from scratch."""

TUNING_FLOPS = {"cpu": 1e15, "mps": 1e16, "cuda": 3e17}
"""`--tune-lr auto` tunes when the additional runs take no more than this: about an hour on a device of the kind."""


@dataclass(frozen=True)
class PlannedArm:
    """One contestant: all of its options but seed, budget and tuned rate."""

    name: str
    slug: str
    """The name as a part of a folder's name."""
    config: RunConfig
    """As it was asked for."""
    resolved: RunConfig
    """With every default filled in, as a run by itself would have it."""
    flops: float
    """Of one image's forward pass."""
    parameters: int
    trainable: int

    @property
    def pretrained(self) -> bool:
        return self.resolved.model.weights != "none"


def default_arms(source: str) -> tuple[str, ...]:
    """The same architecture at the same image size, from scratch and pretrained, as arms of the command line."""
    model = "vit_nano_8,weights=fashion_mnist" if source in defaults.SMALL_IMAGES else "vit_b_16"
    return f"{model.split(',')[0]},weights=none", model


def measure_arms(configs: Sequence[RunConfig]) -> tuple[PlannedArm, ...]:
    """Build every arm once, so that whatever is wrong with one shows before any of them trains.

    Raises:
        ConfigError, DataError, WeightsError: what is wrong with an arm.
    """
    jobs = [prepare(config) for config in configs]
    names = arm_names([to_dict(job.config) for job in jobs])
    twins = sorted(name for name in names if names.count(name) > 1)
    if twins:
        raise ConfigError(f"two arms are the same: {twins[0]}; each --arms must differ from the others")
    arms = []
    for config, job, name, slug in zip(configs, jobs, names, slugs(names), strict=True):
        summary = summarise(job.model, in_channels=job.spec.in_channels, image_size=job.spec.image_size)
        size = (float(summary.flops), summary.parameters, summary.trainable)
        arms.append(PlannedArm(name, slug, config, job.config, *size))
    return tuple(arms)


def shared_epochs(arms: Sequence[PlannedArm], base: RunConfig, *, train_images: int, images_seen: int | None) -> int:
    """Epochs every arm gets: `--epochs`, or those in which it sees `images_seen`, by default as many as the arm that
    asks for most."""
    if base.train.epochs is not None:
        return base.train.epochs
    if images_seen is not None:
        return max(1, round(images_seen / train_images))
    rows = [defaults.lookup(arm.resolved) for arm in arms]
    return defaults.default_epochs(
        max(row.images_seen for row in rows), max(row.max_epochs for row in rows), train_images=train_images
    )


def rate_grid(arms: Sequence[PlannedArm], chosen: tuple[float, ...] | None) -> tuple[float, ...]:
    """The rates every arm tries: the same for all of them."""
    if chosen is not None:
        return tuple(sorted(set(chosen)))
    families = {defaults.model_family(arm.resolved.model.name) for arm in arms}
    return LARGE_GRID if "vit" in families else SMALL_GRID


def tunes(
    wanted: Literal["auto", "on", "off"],
    arms: Sequence[PlannedArm],
    *,
    images_seen: Sequence[int],
    grid: tuple[float, ...],
    device: str,
) -> tuple[bool, str]:
    """Whether each arm's rate is looked for, and why.

    The cost of the additional runs: a training step is three forward passes, a step on cached features nothing.
    """
    if wanted != "auto":
        return wanted == "on", f"--tune-lr {wanted}"
    searched = [arm for arm in arms if arm.config.train.lr is None and arm.config.model.trainable != "head"]
    cost = sum(3 * arm.flops * images for arm in searched for images in images_seen) * (len(grid) - 1)
    limit = TUNING_FLOPS[device.split(":")[0]]
    text = f"the additional runs take {cost:.1e} floating-point operations, the limit of --tune-lr auto is {limit:.0e}"
    return cost <= limit, text
