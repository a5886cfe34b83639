"""The arms of a plan: what competes. Each is built once before any of them trains."""

from collections.abc import Sequence
from dataclasses import dataclass

from comparison.names import arm_names, slugs
from trainers import defaults
from trainers.config import RunConfig, to_dict
from trainers.errors import ConfigError
from trainers.job import prepare
from trainers.threads import memory_of
from vit.at_hand import at_hand
from vit.config import EMBEDDED_WEIGHTS
from vit.summary import summarise


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
    memory: int
    """Bytes that a run holds, roughly."""

    @property
    def pretrained(self) -> bool:
        return self.resolved.model.weights != "none"


def default_arms(source: str) -> tuple[str, ...]:
    """The same architecture at the same image size, from scratch and pretrained; beside them, for photographs, what is
    at hand of ImageNet, frozen, as a reference. As arms of the command line."""
    if source in defaults.SMALL_IMAGES:
        return "vit_nano_8,weights=none", "vit_nano_8,weights=fashion_mnist"
    models = {model.name: model.weights for model in at_hand() if model.weights not in EMBEDDED_WEIGHTS}
    references = [f"{name},weights={weights},trainable=head" for name, weights in models.items()]
    return "vit_stem_16,weights=none", "vit_stem_16,weights=tiny_imagenet", *references


def measure_arms(configs: Sequence[RunConfig]) -> tuple[PlannedArm, ...]:
    """Build every arm once, so that whatever is wrong with one shows before any of them trains."""
    jobs = [prepare(config) for config in configs]
    names = arm_names([to_dict(job.config) for job in jobs])
    twins = sorted(name for name in names if names.count(name) > 1)
    if twins:
        raise ConfigError(f"two arms are the same: {twins[0]}; each --arms must differ from the others")
    arms = []
    for config, job, name, slug in zip(configs, jobs, names, slugs(names), strict=True):
        summary = summarise(job.model, in_channels=job.spec.in_channels, image_size=job.spec.image_size)
        size = (float(summary.flops), summary.parameters, summary.trainable, memory_of(job))
        arms.append(PlannedArm(name, slug, config, job.config, *size))
    return tuple(arms)
