"""`--start-head fit`: the head of a run is fitted to the features of its frozen networks at once; no step follows.

Where one of the networks was trained before, on the same images, its own head and the fitted one of the others are
mixed, by weights that are fitted to the validation images: neither has learnt from them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from common.errors import OptionError
from datasets.bundle import image_set
from datasets.copies import units_of
from trainers.engine.temperature import Floats, losses, sharpness
from trainers.heads import choice
from trainers.heads.choice import QUICK, SLOW, Images, Judged, fitted, judge, one_thread
from trainers.heads.kept import BestHead, Keep, fitted_once
from trainers.heads.linear import Linear
from trainers.heads.pool import weights_of
from trainers.heads.validation import folds_of
from trainers.setup import RunSetup
from vit.mixture import SideBySide

FEW = 6.0
"""One over the temperature of a ridge regression that no image is left to calibrate:
docs/results.md."""


def images_of(setup: RunSetup, split: str) -> Images:
    """The cached features of one split of a setup, and the columns of its networks."""
    dataset: Any = setup.data.dataloaders[split].dataset
    features, images = dataset.features.flatten(1).float().numpy(), image_set(setup.data.dataloaders[split])
    units = units_of(images.samples, dataset.images.indices)
    if isinstance(setup.network, SideBySide):
        columns, levels = setup.network.columns, setup.network.levels
    else:
        columns, levels = (slice(0, features.shape[1]),), ()
    return Images(features, images.labels, units, len(setup.data.class_names), columns, levels)


class Fitted(NamedTuple):
    """Parts of a fitted head."""

    lines: list[str]
    parts: dict[str, dict[str, dict[str, float]]]
    """Scores of each part alone on val and test images: part -> split -> score. Nothing is chosen by the test."""


@torch.no_grad()
def fit_head(setup: RunSetup, *, keep: Keep) -> Fitted:
    """Give the setup's model its head; what it is made of. `keep`: where that of the frozen networks is left. Raises
    OptionError: its head is more than one layer."""
    linears = [layer for layer in setup.model.modules() if isinstance(layer, nn.Linear)]
    if len(linears) != 1:
        raise OptionError("--start-head fit: this model has more than one layer in its head; leave it out")
    [head] = linears
    mixture = setup.network if isinstance(setup.network, SideBySide) else None
    names = [setup.config.model.name] if mixture is None else [str(network) for network in mixture.networks]
    tuned = {} if mixture is None else mixture.trained
    frozen = [place for place in range(len(names)) if place not in tuned]
    train = images_of(setup, "train")
    with one_thread():
        found, alone, lines = fitted_once(best_head, train, frozen, [names[place] for place in frozen], keep=keep)
    heads = {FROZEN: found} | ({} if alone is None else {"one network alone, frozen": alone})
    if tuned:
        trained = [whole_head(head, train.columns[place], train.columns[-1].stop) for place, head in tuned.items()]
        named = dict(zip(numbered([names[place] for place in tuned]), trained, strict=True))
        val = images_of(setup, "val")
        found, mixed = mixed_head(val, [found, *trained], [FROZEN, *named])
        lines, heads = lines + mixed, heads | {name: calibrated(head, val) for name, head in named.items()}
    head.weight.copy_(torch.from_numpy(found.weight))
    head.bias.copy_(torch.from_numpy(found.bias))
    return Fitted(lines, scores_of(setup, heads))


FROZEN = "the frozen ones"


def numbered(names: Sequence[str]) -> list[str]:
    """The names, with a number where one comes again."""
    return [
        name if names.index(name) == place else f"{name} ({names[: place + 1].count(name)})"
        for place, name in enumerate(names)
    ]


def whole_head(head: nn.Linear, columns: slice, width: int) -> Linear:
    """Return the head that a network brought, on the features of all networks: 0 for the others."""
    weight = np.zeros((head.out_features, width))
    weight[:, columns] = head.weight.detach().double().numpy()
    return Linear(weight, head.bias.detach().double().numpy())


def calibrated(head: Linear, images: Images) -> Linear:
    """The head at the temperature that suits images which it has not learnt from."""
    return head.times(sharpness(head(images.features.astype(np.float64)), images.labels))


def scores_of(setup: RunSetup, heads: Mapping[str, Linear]) -> dict[str, dict[str, dict[str, float]]]:
    found: dict[str, dict[str, dict[str, float]]] = {name: {} for name in heads}
    for split in sorted({*setup.data.dataloaders} - {"train"}):
        images = images_of(setup, split)
        for name, head in heads.items():
            logits = head(images.features.astype(np.float64))
            right = (logits.argmax(axis=1) == images.labels).mean()
            found[name][split] = {"accuracy": float(right), "loss": float(losses(logits, images.labels).mean())}
    return found


def best_head(images: Images, networks: Sequence[int], names: Sequence[str]) -> BestHead:
    """The calibrated head on these networks: a pool of the best heads of each network alone and of all side by side,
    chosen and weighed by cross-validation and fitted to all images."""
    some = images.some()
    folds = folds_of(some.labels, some.units)
    sets = [[place] for place in networks] + ([list(networks)] if len(networks) > 1 else [])
    if not folds:
        line = f"{QUICK[2]}: too few images to choose a head by"
        return BestHead(fitted(images, networks, QUICK[2]).times(FEW), None, [line])
    judged = [judge(some, each, QUICK, folds) for each in sets]
    count, width = images.features.shape  # of all images: the head that is judged is the one that is fitted to them
    if count * min(count, width) * images.classes <= choice.MOST_WORK:
        judged[-1] += judge(some, sets[-1], SLOW, folds)
    members = [best for found in judged for best in best_of_each_kind(found, all_kinds=found is judged[-1])]
    logits = [each.logits for each in members]
    weights = weights_of(logits, some.labels, start=np.full(len(members), 1 / len(members)))
    head = combined([fitted(images, each.networks, each.head).times(each.sharpness) for each in members], weights)
    pooled = np.tensordot(weights, np.stack(logits), axes=1)
    right, loss = (pooled.argmax(axis=1) == some.labels).mean(), losses(pooled, some.labels).mean()
    single = min((each for each in members if len(each.networks) == 1), key=lambda each: each.loss)
    alone = f"one network alone, {names[networks.index(single.networks[0])]}: {single.accuracy:.1%}, {single.loss:.3f}"
    said = [f"right on {right:.1%} of the training images, by cross-validation; log loss {loss:.3f}"]
    if len(networks) == 1:
        return BestHead(head, None, said)
    return BestHead(head, fitted(images, single.networks, single.head).times(single.sharpness), [*said, alone])


def best_of_each_kind(judged: Sequence[Judged], *, all_kinds: bool) -> list[Judged]:
    """The candidate with the least loss; with `all_kinds` that of ridge, discriminant analysis and logistic
    regression each, which err differently."""
    ranked = sorted(judged, key=lambda each: each.loss)
    kinds = {each.head.split()[0]: each for each in reversed(ranked)}
    return list(kinds.values()) if all_kinds else ranked[:1]


def combined(heads: Sequence[Linear], weights: Sequence[float] | Floats) -> Linear:
    """The head whose logits are the weighted sum of those of several."""
    pairs = list(zip(heads, weights, strict=True))
    return Linear(sum(share * head.weight for head, share in pairs), sum(share * head.bias for head, share in pairs))


def mixed_head(images: Images, heads: Sequence[Linear], names: Sequence[str]) -> tuple[Linear, list[str]]:
    """One head that is a weighted sum of several, on the same features, by their logits on validation images. The first
    is that of the frozen networks, which all training images have calibrated: the weights are pulled to it alone. The
    others were trained, so their temperatures are fitted here, too."""
    logits = [head(images.features.astype(np.float64)) for head in heads]
    factors = [1.0, *(sharpness(each, images.labels) for each in logits[1:])]
    scaled = [factor * each for factor, each in zip(factors, logits, strict=True)]
    weights = weights_of(scaled, images.labels, start=np.eye(len(heads))[0])
    head = combined(heads, weights * np.array(factors))
    alone = [losses(each, images.labels).mean() for each in scaled]
    together = losses(head(images.features.astype(np.float64)), images.labels).mean()
    shares = ", ".join(f"{share:.0%} {name}" for share, name in zip(weights / weights.sum(), names, strict=True))
    parts = ", ".join(f"{name} {loss:.3f}" for loss, name in zip(alone, names, strict=True))
    fit = f"fitted to {len(images.labels)} validation images, whose loss it makes {together:.3f}"
    return head, [f"mixture of {shares}, {fit}; alone: {parts}"]
