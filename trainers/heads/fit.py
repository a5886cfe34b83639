"""Heads of a run: fitted at once instead of trained (`--start-head fit`), or where training begins (`probe`).

Where one of the networks of a mixture was trained before, on the same images, its own head and the fitted one of the
others are mixed, by weights that are fitted to the validation images: neither has learnt from them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from common.errors import OptionError
from common.text import format_table
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

FROZEN = "frozen together"
MOST_TO_BEGIN_WITH = 60_000
"""Training images by which a head begins: the features of more take gigabytes."""


Scores = dict[str, dict[str, dict[str, float]]]
"""Part of a head -> `cross-validation` on training images, val or test -> score; `mixture` -> its share."""


class Fitted(NamedTuple):
    """Parts of a fitted head."""

    lines: list[str]
    parts: Scores
    """Scores of each part alone. Nothing is chosen by the test."""


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
    heads, shares = {FROZEN: head}, {FROZEN: 1.0}
    parts = judged_parts(judged, setup)
    lines = [*(ranking(parts) if len(parts) > 1 else ()), said(judged)]
    if isinstance(network, SideBySide) and tuned:
        val = images_of(setup, "val")
        names = [str(network.networks[place]) for place in tuned]
        names = [name if names.index(name) == n else f"{name} ({n + 1})" for n, name in enumerate(names)]
        trained = [
            widened(end.weight.double().numpy(), end.bias.double().numpy(), [train.columns[place]], width)
            for place, end in tuned.items()
        ]
        head, weights, line = mixed_head(val, [head, *trained], [FROZEN, *names])
        shares = dict(zip([FROZEN, *names], weights, strict=True))
        lines.append(line)
        heads |= {name: calibrated(each, val) for name, each in zip(names, trained, strict=True)}
    linears[0].weight.copy_(torch.from_numpy(head.weight))
    linears[0].bias.copy_(torch.from_numpy(head.bias))
    for name, scores in scores_of(setup, heads).items():
        parts[name] = parts.get(name, {}) | scores | {"mixture": {"share": shares[name]}}
    return Fitted(lines, parts)


def judged_parts(judged: Judged | None, setup: RunSetup) -> Scores:
    """Return the cross-validation of the frozen networks of a setup, together and each alone."""
    if judged is None:
        return {}
    found = {FROZEN: {"cross-validation": judged.scores}}
    if isinstance(setup.network, SideBySide) and judged.alone:
        names = [str(network) for network in setup.network.networks if not network.weights]
        alone = sorted(zip(names, judged.alone, strict=True), key=lambda row: row[1].loss)
        found |= {name: {"cross-validation": each.scores} for name, each in alone}
    return found


def ranking(parts: Scores) -> Iterator[str]:
    """Yield the table of cross-validated parts, one a line, in the order in which they come."""
    cells = [("network, frozen", "accuracy", "log loss")]
    for name, scores in parts.items():
        if (found := scores.get("cross-validation")) is not None:
            half = 50 * (found["high"] - found["low"])
            cells.append((name, f"{100 * found['accuracy']:.1f} ±{half:.1f} %", f"{found['loss']:.3f}"))
    yield from format_table(cells, left=(0,))


def shares_of(parts: Scores) -> str:
    """Say which share each part of a mixture has."""
    shares = {name: scores["mixture"]["share"] for name, scores in parts.items() if "mixture" in scores}
    return ", ".join(f"{share:.0%} {name}" for name, share in shares.items())


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


def mixed_head(images: Images, heads: Sequence[Linear], names: Sequence[str]) -> tuple[Linear, list[float], str]:
    """Weigh several heads on the same features by their logits on validation images.

    Return their sum, the share of each, and a line about them.

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
    shares = [float(share) for share in weights / weights.sum()]
    of = ", ".join(f"{share:.0%} {name}" for share, name in zip(shares, names, strict=True))
    each = ", ".join(f"{name} {loss:.3f}" for loss, name in zip(alone, names, strict=True))
    fit = f"fitted to {len(images.labels)} validation images, whose loss it makes {together:.3f}"
    return head, shares, f"mixture of {of}, {fit}; alone: {each}"


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
