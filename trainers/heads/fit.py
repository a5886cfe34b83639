"""Fit the head of a run at once (`--start-head fit`), or before training (`probe`).

If a network of an ensemble was trained on the same images before, its own head is mixed with the fitted head of the
other networks, with weights fitted to the validation images: neither head has learnt from those.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from common.errors import OptionError
from common.text import format_table
from datasets.bundle import image_set
from datasets.copies import units_of
from datasets.image_dataset import ImageDataset
from datasets.loaders import evaluation_loader
from datasets.split import subset_training
from trainers.calibration import losses, sharpness
from trainers.features import features_before
from trainers.heads.linear import Images, Judged, Linear, fit_head, weights_of
from trainers.setup import RunSetup
from vit.anatomy import anatomy_of
from vit.config import Network
from vit.ensemble import SideBySide

FROZEN = "frozen ensemble"
MOST_TO_BEGIN_WITH = 60_000
"""Most training images for the head of a probe: features of more images take gigabytes."""
SOFTENED, HIGH_RATE = 0.1, 1e-3
"""Share of a fitted head's weights that training of a whole network begins with, and the learning rate from which:
docs/results.md."""

PartScores = dict[str, dict[str, dict[str, float]]]
"""Part of a head -> `cross-validation` on training images, val or test -> score; `ensemble` -> its share."""


@torch.no_grad()
def fit_to_features(setup: RunSetup) -> PartScores:
    """Fit a setup's head on cached features; return the scores of its parts.

    Nothing is chosen by the test images. Raises OptionError: its head is more than one layer.
    """
    linears = [layer for layer in setup.model.modules() if isinstance(layer, nn.Linear)]
    if len(linears) != 1:
        raise OptionError("start_head fit: this model has more than one layer in its head; leave it out")
    images = {split: images_of(setup, split) for split in setup.data.dataloaders}
    network, columns = setup.network, images["train"].columns
    networks, trained = (network.networks, network.trained) if isinstance(network, SideBySide) else ((), {})
    frozen = [own for place, own in enumerate(columns) if place not in trained]
    head, judged = fit_head(replace(images["train"], columns=frozen))
    alone = [each for each in networks if not each.weights]
    together = FROZEN if len(alone) > 1 else str(alone[0]) if alone else setup.config.model.name
    heads, shares = {together: head}, [1.0]
    for number, (place, end) in enumerate(trained.items(), 1):
        weight, name = np.zeros(head.weight.shape), str(networks[place])
        weight[:, columns[place]] = end.weight.double().numpy()
        heads[f"{name} ({number})" if name in heads else name] = Linear(weight, end.bias.double().numpy())
    if trained:
        head, factors, shares = mixed_head(images["val"], [*heads.values()])
        # Each head alone gets the temperature fitted to images that it has not learnt from.
        pairs = zip(heads.items(), factors, strict=True)
        heads = {name: Linear(factor * each.weight, factor * each.bias) for (name, each), factor in pairs}
    linears[0].weight.copy_(torch.from_numpy(head.weight))
    linears[0].bias.copy_(torch.from_numpy(head.bias))
    scores = judged_parts(judged, together, alone)
    for (name, each), share in zip(heads.items(), shares, strict=True):
        of_splits = {split: scores_of(each, images[split]) for split in sorted({*images} - {"train"})}
        scores[name] = scores.get(name, {}) | of_splits | {"ensemble": {"share": share}}
    return scores


def judged_parts(judged: Judged | None, together: str, networks: Sequence[Network]) -> PartScores:
    """Return the cross-validation of frozen networks, together under that name, and of several each."""
    if judged is None:
        return {}
    alone = sorted(zip(networks, judged.alone, strict=False), key=lambda row: row[1].loss)
    found = {together: judged} | {str(network): each for network, each in alone}
    return {name: {"cross-validation": each.scores} for name, each in found.items()}


def ranking(parts: PartScores) -> Iterator[str]:
    """Yield a table of the cross-validated parts in their order; nothing without cross-validation."""
    cells = [("frozen network", "accuracy", "log loss")]
    for name, scores in parts.items():
        if (found := scores.get("cross-validation")) is not None:
            half = 50 * (found["high"] - found["low"])
            cells.append((name, f"{100 * found['accuracy']:.1f} ±{half:.1f} %", f"{found['loss']:.3f}"))
    yield from format_table(cells, left=(0,)) if len(cells) > 1 else ()


def shares_of(parts: PartScores) -> str:
    """Describe the share of each part of an ensemble."""
    shares = {name: scores["ensemble"]["share"] for name, scores in parts.items() if "ensemble" in scores}
    return ", ".join(f"{share:.0%} {name}" for name, share in shares.items())


def images_of(setup: RunSetup, split: str) -> Images:
    """Return a split's cached features, and the columns of its networks."""
    loader: Any = setup.data.dataloaders[split]
    return as_images(loader, loader.dataset.features, len(setup.data.class_names), setup.network)


def as_images(loader: DataLoader, features: Tensor, classes: int, network: nn.Module | None = None) -> Images:
    """Combine features (N, ...) with labels, units, and the columns of each network."""
    images, values = image_set(loader), features.flatten(1).float().numpy()
    columns, levels = [slice(0, values.shape[1])], np.zeros(values.shape[1], np.int64)
    if isinstance(network, SideBySide):
        columns = [*network.columns]
        for number, level in enumerate(network.levels):
            levels[level] = number
    return Images(values, images.labels, units_of(images.samples, images.indices), classes, columns, levels)


def scores_of(head: Linear, images: Images) -> dict[str, float]:
    logits = head(images.features)
    right = (logits.argmax(axis=1) == images.labels).mean()
    return {"accuracy": float(right), "loss": float(losses(logits, images.labels).mean())}


def mixed_head(images: Images, heads: Sequence[Linear]) -> tuple[Linear, list[float], list[float]]:
    """Weight several heads on the same features by their logits on validation images.

    Return their sum, the factor that calibrates each head, and the share of each. The first head is that of the frozen
    networks, which is calibrated on all training images: the weights are regularised towards it. The others were
    trained, so their temperatures are fitted here, too.
    """
    logits = [head(images.features) for head in heads]
    factors = [1.0, *(sharpness(each, images.labels) for each in logits[1:])]
    scaled = [factor * each for factor, each in zip(factors, logits, strict=True)]
    weights = weights_of(scaled, images.labels, start=np.eye(len(heads))[0])
    pairs = list(zip(heads, weights * np.array(factors), strict=True))
    head = Linear(sum(share * each.weight for each, share in pairs), sum(share * each.bias for each, share in pairs))
    return head, factors, [float(share) for share in weights / (weights.sum() or 1.0)]  # 0: all heads mislead


@torch.no_grad()
def begin_as_probe(setup: RunSetup) -> str:
    """Give the model the fitted head of a linear probe; return a line.

    It is fitted to frozen features without augmentation. Fine-tuning then distorts the features less than with a zero
    head, which first has to learn (LP-FT: Kumar et al. 2022, arXiv:2202.10054).
    """
    end: Any = setup.network.get_submodule(anatomy_of(setup.network).head_name)
    loader = not_augmented(setup)
    found = features_before(setup, loader, end)
    head, judged = fit_head(as_images(loader, found, end.out_features))
    end.weight.copy_(torch.from_numpy(head.weight))
    end.bias.copy_(torch.from_numpy(head.bias))
    known = "too few images to choose its penalty by"
    if judged is not None:
        known = f"right on {judged.accuracy:.1%} of the training images, by cross-validation; loss {judged.loss:.3f}"
    return f"begins as a linear probe: {known}"


@torch.no_grad()
def soften_head(setup: RunSetup) -> None:
    """Shrink a fitted head before the first step where the learning rate is high.

    It keeps its directions. With all of its weights a step changes the logits so much that images are memorised."""
    assert setup.config.train.lr is not None
    if setup.config.train.lr >= HIGH_RATE and setup.config.model.trainable == "all":
        for parameter in setup.network.get_submodule(anatomy_of(setup.network).head_name).parameters():
            parameter.mul_(SOFTENED)


def not_augmented(setup: RunSetup) -> DataLoader:
    """Load the training images, or part of very many, as for evaluation.

    A program's own Dataset stays unchanged."""
    loader = setup.data.dataloaders["train"]
    images = image_set(loader)
    if not isinstance(images, ImageDataset):
        return loader
    samples, share = images.samples, MOST_TO_BEGIN_WITH / len(images)
    if share < 1:
        samples = subset_training(samples, replace(setup.config.data, labels_per_class=None, fraction=share))
    return evaluation_loader(samples, "train", setup.spec, setup.config.data)
