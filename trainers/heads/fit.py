"""`--start-head fit`: the head of a run is fitted to the features of its frozen networks at once; no step follows.

Where one of the networks was trained before, on the same images, its own head and the fitted one of the others are
mixed, by weights that are fitted to the validation images: neither has learnt from them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from datasets.bundle import image_set
from datasets.units import units_of
from trainers.errors import ConfigError
from trainers.heads.choice import QUICK, SLOW, Images, fitted, judge
from trainers.heads.linear import Linear
from trainers.heads.pool import weights_of
from trainers.heads.validation import folds_of, losses, sharpness
from trainers.setup import RunSetup

FEW = 2.0
"""One over the temperature of a head that no image is left to calibrate, and of which cross-validation says nothing."""


def images_of(setup: RunSetup, split: str) -> Images:
    """The cached features of one split of a setup, and the columns of its networks."""
    dataset: Any = setup.data.dataloaders[split].dataset
    features, images = dataset.features.flatten(1).float().numpy(), image_set(setup.data.dataloaders[split])
    units = units_of(images.samples, dataset.images.indices)
    columns = getattr(setup.network, "columns", (slice(0, features.shape[1]),))
    return Images(features, images.labels, units, len(setup.data.class_names), columns)


@torch.no_grad()
def fit_head(setup: RunSetup) -> list[str]:
    """Give the setup's model its head; lines about it. Raises ConfigError: its head is more than one layer."""
    head = setup.model
    if not isinstance(head, nn.Linear):
        raise ConfigError("--start-head fit: this model has more than one layer in its head; leave it out")
    names = [str(network) for network in getattr(setup.network, "names", (setup.config.model.name,))]
    tuned = [place for place, network in enumerate(getattr(setup.network, "names", ())) if network.tuned]
    frozen = [place for place in range(len(names)) if place not in tuned]
    train = images_of(setup, "train")
    found, lines = best_head(train, frozen, [names[place] for place in frozen])
    if tuned:
        before = Linear(head.weight.double().numpy(), head.bias.double().numpy())
        found, mixed = mixture(images_of(setup, "val"), [found, before], ["the frozen ones", names[tuned[0]]])
        lines += mixed
    head.weight.copy_(torch.from_numpy(found.weight))
    head.bias.copy_(torch.from_numpy(found.bias))
    return lines


def best_head(images: Images, networks: Sequence[int], names: Sequence[str]) -> tuple[Linear, list[str]]:
    """The calibrated head on these networks with the least loss of those that are tried, fitted to all images."""
    some = images.some()
    folds = folds_of(some.labels, some.units)
    what = " + ".join(names)
    if not folds:
        head = fitted(images, networks, QUICK[2])
        return head.times(FEW), [f"{QUICK[2]} on {what}: too few images to choose a head by"]
    best = min(judge(some, networks, (*QUICK, *SLOW), folds), key=lambda each: each.loss)
    line = f"{best.head} on {what}: {best.accuracy:.1%} of training images that it has not learnt from"
    return fitted(images, networks, best.head).times(best.sharpness), [f"{line}, log loss {best.loss:.3f}"]


def mixture(images: Images, heads: Sequence[Linear], names: Sequence[str]) -> tuple[Linear, list[str]]:
    """One head that is a weighted sum of several, on the same features, by their logits on validation images; the last
    was trained, so its temperature is fitted here, too."""
    logits = [head(images.features.astype(np.float64)) for head in heads]
    factors = [*(1.0 for _ in heads[:-1]), sharpness(logits[-1], images.labels)]
    calibrated = [factor * each for factor, each in zip(factors, logits, strict=True)]
    weights = weights_of(calibrated, images.labels)
    mixed = [weight * factor for weight, factor in zip(weights, factors, strict=True)]
    head = Linear(
        sum(each * part.weight for each, part in zip(mixed, heads, strict=True)),
        sum(each * part.bias for each, part in zip(mixed, heads, strict=True)),
    )
    alone = [losses(each, images.labels).mean() for each in calibrated]
    together = losses(head(images.features.astype(np.float64)), images.labels).mean()
    shares = ", ".join(f"{share:.0%} {name}" for share, name in zip(weights / weights.sum(), names, strict=True))
    parts = " and ".join(f"{loss:.3f} {name}" for loss, name in zip(alone, names, strict=True))
    return head, [f"{shares}: validation loss {together:.3f}, alone {parts}"]
