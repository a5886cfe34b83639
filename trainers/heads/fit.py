"""Heads of a run: fitted at once instead of trained (`--start-head fit`), or where training begins (`probe`).

Where one of the networks of a mixture was trained before, on the same images, its own head and the fitted one of the
others are mixed, by weights that are fitted to the validation images: neither has learnt from them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from common.errors import OptionError
from datasets.bundle import image_set
from datasets.copies import units_of
from datasets.image_dataset import ImageDataset
from datasets.loaders import evaluation_loader
from datasets.split import subset_training
from trainers.features import compute_features
from trainers.heads.linear import Images, Judged, Linear, fit_head, weights_of
from trainers.heads.temperature import Floats, losses, sharpness
from trainers.setup import RunSetup
from vit.mixture import SideBySide
from vit.parts import parts

FROZEN = "the frozen ones"
MOST_TO_BEGIN_WITH = 60_000
"""Training images by which a head begins: the features of more take gigabytes."""


class Fitted(NamedTuple):
    """Parts of a fitted head."""

    lines: list[str]
    parts: dict[str, dict[str, dict[str, float]]]
    """Scores of each part alone on val and test images: part -> split -> score. Nothing is chosen by the test."""


@torch.no_grad()
def fit_to_features(setup: RunSetup) -> Fitted:
    """Give the model of a setup on cached features its head. Raises OptionError: its head is more than one layer."""
    linears = [layer for layer in setup.model.modules() if isinstance(layer, nn.Linear)]
    if len(linears) != 1:
        raise OptionError("--start-head fit: this model has more than one layer in its head; leave it out")
    train = images_of(setup, "train")
    network = setup.network
    tuned = network.trained if isinstance(network, SideBySide) else {}
    frozen = [place for place in range(len(train.columns)) if place not in tuned]
    own, judged = fit_head(train.of(frozen))
    columns, width = [train.columns[place] for place in frozen], train.features.shape[1]
    head = widened(own.weight, own.bias, columns, width)
    lines, heads = [said(judged)], {FROZEN: head}
    if isinstance(network, SideBySide) and tuned:
        val = images_of(setup, "val")
        names = [str(network.networks[place]) for place in tuned]
        names = [name if names.index(name) == n else f"{name} ({n + 1})" for n, name in enumerate(names)]
        trained = [
            widened(end.weight.double().numpy(), end.bias.double().numpy(), [train.columns[place]], width)
            for place, end in tuned.items()
        ]
        head, line = mixed_head(val, [head, *trained], [FROZEN, *names])
        lines.append(line)
        heads |= {name: calibrated(each, val) for name, each in zip(names, trained, strict=True)}
    linears[0].weight.copy_(torch.from_numpy(head.weight))
    linears[0].bias.copy_(torch.from_numpy(head.bias))
    return Fitted(lines, scores_of(setup, heads))


def said(judged: Judged | None) -> str:
    if judged is None:
        return "too few images to choose its penalty by"
    return f"right on {judged.accuracy:.1%} of the training images, by cross-validation; log loss {judged.loss:.3f}"


def images_of(setup: RunSetup, split: str) -> Images:
    """Return the cached features of one split of a setup, and the columns of its networks."""
    dataset: Any = setup.data.dataloaders[split].dataset
    return as_images(setup, split, dataset.features)


def as_images(setup: RunSetup, split: str, features: torch.Tensor) -> Images:
    """Return features (N, ...) of a split with labels, units and the columns of the networks of a setup."""
    images, network = image_set(setup.data.dataloaders[split]), setup.network
    values, units = features.flatten(1).float().numpy(), units_of(images.samples, images.indices)
    whole = (slice(0, values.shape[1]),)
    columns, levels = (network.columns, network.levels) if isinstance(network, SideBySide) else (whole, whole)
    return Images(values, images.labels, units, len(setup.data.class_names), columns, levels)


def widened(weight: Floats, bias: Floats, columns: Sequence[slice], width: int) -> Linear:
    """Return a head on some columns of all features as one on all: 0 for the others."""
    whole = np.zeros((len(bias), width))
    whole[:, np.concatenate([np.arange(width)[each] for each in columns])] = weight
    return Linear(whole, bias)


def calibrated(head: Linear, images: Images) -> Linear:
    """Return the head at the temperature that suits images which it has not learnt from."""
    return head.times(sharpness(head(images.features), images.labels))


def scores_of(setup: RunSetup, heads: Mapping[str, Linear]) -> dict[str, dict[str, dict[str, float]]]:
    found: dict[str, dict[str, dict[str, float]]] = {name: {} for name in heads}
    for split in sorted({*setup.data.dataloaders} - {"train"}):
        images = images_of(setup, split)
        for name, head in heads.items():
            logits = head(images.features)
            right = (logits.argmax(axis=1) == images.labels).mean()
            found[name][split] = {"accuracy": float(right), "loss": float(losses(logits, images.labels).mean())}
    return found


def mixed_head(images: Images, heads: Sequence[Linear], names: Sequence[str]) -> tuple[Linear, str]:
    """Weigh several heads on the same features by their logits on validation images; return their sum, and a line.

    The first is that of the frozen networks, which all training images have calibrated: the weights are pulled to it
    alone. The others were trained, so their temperatures are fitted here, too."""
    logits = [head(images.features) for head in heads]
    factors = [1.0, *(sharpness(each, images.labels) for each in logits[1:])]
    scaled = [factor * each for factor, each in zip(factors, logits, strict=True)]
    weights = weights_of(scaled, images.labels, start=np.eye(len(heads))[0])
    pairs = list(zip(heads, weights * np.array(factors), strict=True))
    head = Linear(sum(share * each.weight for each, share in pairs), sum(share * each.bias for each, share in pairs))
    alone = [losses(each, images.labels).mean() for each in scaled]
    together = losses(head(images.features), images.labels).mean()
    shares = ", ".join(f"{share:.0%} {name}" for share, name in zip(weights / weights.sum(), names, strict=True))
    each = ", ".join(f"{name} {loss:.3f}" for loss, name in zip(alone, names, strict=True))
    fit = f"fitted to {len(images.labels)} validation images, whose loss it makes {together:.3f}"
    return head, f"mixture of {shares}, {fit}; alone: {each}"


@torch.no_grad()
def begin_as_probe(setup: RunSetup) -> str:
    """Give the model of a setup the head of its frozen features, on images that are not augmented; return a line.

    What is trained then has no reason to distort the features (LP-FT: Kumar et al. 2022, arXiv:2202.10054): a zero head
    would, while it learns itself."""
    ends = [module for part in parts(setup.network).head for module in part.modules() if isinstance(module, nn.Linear)]
    loader = not_augmented(setup)
    found = compute_features(setup.network, loader, setup.device, amp_dtype=setup.amp_dtype, end=ends[-1])
    images = image_set(loader)
    units = units_of(images.samples, images.indices)
    values, whole = found.flatten(1).float().numpy(), (slice(0, ends[-1].in_features),)
    head, judged = fit_head(Images(values, images.labels, units, ends[-1].out_features, whole, whole))
    ends[-1].weight.copy_(torch.from_numpy(head.weight))
    ends[-1].bias.copy_(torch.from_numpy(head.bias))
    return f"begins as a linear probe: {said(judged)}"


def not_augmented(setup: RunSetup) -> DataLoader:
    """Load the training images as for evaluation, a part of very many; the Datasets of a program as they are."""
    loader = setup.data.dataloaders["train"]
    images = image_set(loader)
    if not isinstance(images, ImageDataset):
        return loader
    samples, share = images.samples, MOST_TO_BEGIN_WITH / len(images)
    if share < 1:
        samples = subset_training(samples, replace(setup.config.data, labels_per_class=None, fraction=share))
    return evaluation_loader(samples, "train", setup.spec, setup.config.data)
