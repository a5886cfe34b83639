"""The arms of a comparison: what competes, at which budget, over which learning rates. Nothing is trained here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

from datasets.config import DataConfig
from trainers import defaults
from trainers.config import RunConfig
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
class Arm:
    """One contestant: all of its options but seed, budget and tuned rate."""

    name: str
    config: RunConfig
    flops: float
    """Of one image's forward pass."""
    parameters: int
    trainable: int

    @property
    def slug(self) -> str:
        """The name as a part of a folder's name."""
        return re.sub(r"[^A-Za-z0-9.]+", "-", self.name).strip("-")[:60]


def default_arms(source: str) -> tuple[str, ...]:
    """The same architecture at the same image size, from scratch and pretrained, as arms of the command line."""
    model = "vit_nano_8,weights=fashion_mnist" if source in defaults.SMALL_IMAGES else "vit_b_16"
    return f"{model.split(',')[0]},weights=none", model


def measure_arms(configs: Sequence[RunConfig]) -> tuple[Arm, ...]:
    """Build every arm once, so that whatever is wrong with one shows before any of them trains.

    Raises:
        ConfigError, DataError, WeightsError: what is wrong with an arm.
    """
    jobs = [prepare(config) for config in configs]
    arms = []
    for config, job, name in zip(configs, jobs, arm_names([job.config for job in jobs]), strict=True):
        found = summarise(job.model, in_channels=job.spec.in_channels, image_size=job.spec.image_size)
        arms.append(Arm(name, config, float(found.flops), found.parameters, found.trainable))
    return tuple(arms)


def arm_names(resolved: Sequence[RunConfig]) -> list[str]:
    """What each arm is called: model and start, then whatever else tells it from the others.

    Raises:
        ConfigError: two arms are the same.
    """
    plain = [_name(config) for config in resolved]
    flat = [_differing(config) for config in resolved]
    names = []
    for i, name in enumerate(plain):
        alike = [flat[j] for j in range(len(plain)) if j != i and plain[j] == name]
        more = {key: value for key, value in flat[i].items() if any(other[key] != value for other in alike)}
        names.append(" ".join([name, *(f"{key}={value}" for key, value in more.items())]))
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ConfigError(f"two arms are the same: {sorted(twice)[0]}; each --arms must differ from the others")
    return names


def _name(config: RunConfig) -> str:
    model = config.model
    start = "from scratch" if model.weights == "none" else "pretrained"  # a resolved weights=None is hf:'s own
    kind, _, blocks = model.trainable.partition(":")
    part = {"all": "", "head": ", head only", "last": f", last {blocks} blocks"}[kind]
    return f"{model.name} {start}{part}"


def _differing(config: RunConfig) -> dict[str, object]:
    """Every option that may tell arms apart, flat."""
    parts = (config.model, config.train)
    flat = {field.name: getattr(part, field.name) for part in parts for field in fields(part)}
    return flat | {"augment": config.data.augment, "batch_size": config.data.batch_size}


def shared_epochs(arms: Sequence[Arm], base: RunConfig, *, train_images: int, images_seen: int | None) -> int:
    """Epochs every arm gets: `--epochs`, or those in which it sees `images_seen`, by default as many as the arm that
    asks for most."""
    if base.train.epochs is not None:
        return base.train.epochs
    if images_seen is not None:
        return max(1, round(images_seen / train_images))
    rows = [defaults.lookup(defaults.resolve_model(arm.config)) for arm in arms]
    return defaults.default_epochs(
        max(row.images_seen for row in rows), max(row.max_epochs for row in rows), train_images=train_images
    )


def rate_grid(arms: Sequence[Arm], chosen: tuple[float, ...] | None) -> tuple[float, ...]:
    """The rates every arm tries: the same for all of them."""
    if chosen is not None:
        return tuple(sorted(set(chosen)))
    families = {defaults.model_family(defaults.resolve_model(arm.config).model.name) for arm in arms}
    return LARGE_GRID if "vit" in families else SMALL_GRID


def tuning_flops(arms: Sequence[Arm], *, images_seen: int, grid: tuple[float, ...]) -> float:
    """What the additional runs cost: a training step is three forward passes, a step on cached features nothing."""
    runs = [arm for arm in arms if arm.config.train.lr is None and arm.config.model.trainable != "head"]
    return sum(3 * arm.flops * images_seen for arm in runs) * (len(grid) - 1)


def tunes(
    wanted: Literal["auto", "on", "off"],
    arms: Sequence[Arm],
    *,
    images_seen: Sequence[int],
    grid: tuple[float, ...],
    device: str,
) -> tuple[bool, str]:
    """Whether each arm's rate is looked for, and why."""
    if wanted == "off":
        return False, "--tune-lr off"
    if wanted == "on":
        return True, "--tune-lr on"
    cost = sum(tuning_flops(arms, images_seen=seen, grid=grid) for seen in images_seen)
    limit = TUNING_FLOPS[device.split(":")[0]]
    text = f"the additional runs take {cost:.1e} floating-point operations, the limit of --tune-lr auto is {limit:.0e}"
    return cost <= limit, text


def without_subset(data: DataConfig) -> DataConfig:
    """The same images before any label is taken away."""
    return replace(data, labels_per_class=None, fraction=None)
