"""The networks that a plan trains after its first answer: by which options, from how many passes, and for how long.

The embedded ViT, and the last stages of EfficientNet-Lite0. docs/results.md says what each threshold was chosen by.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainers.budget.networks import Priced
from trainers.heads.fit import FROZEN, PartScores
from trainers.options.recipes import RECIPES
from vit.config import EMBEDDED_WEIGHTS, Network, default_weights

GOOD = 0.97
"""Accuracy of the best frozen network above which none is trained."""
CUT = 0.4
"""Share of a frozen network's errors that training all of it may leave."""
VIT, LITE0 = "vit_stem_16", "efficientnet_lite0"
MANY = 1_000
"""Training images from which EfficientNet is trained, and from which the larger ViT learns more than the smaller."""
MIXED, MIXED_PASSES = {"mixup": 0.8, "cutmix": 1.0}, 10.0
"""Options that keep the ViT from memorising many images, and the passes from which they help."""
LARGER, LARGER_PASSES = 128, 20.0
"""Input side of the ViT for few photographs that are as large, and the passes from which it helps."""
STEP, LAST_STAGES = 3.5, 2.0
"""Cost of training with an image, in forward passes; of training the last three stages."""
FILES = 6.0
"""Seconds that a run takes besides its passes."""


@dataclass(frozen=True)
class Way:
    """Options that train a network, as in a recipe, and its passes over the images."""

    options: dict[str, dict[str, Any]]
    seconds_per_pass: float
    pays: float
    """Passes from which it improves the mixture."""
    most: float
    """Passes after which it gains no more."""
    mixing: float
    """Seconds of its features of the validation and test images, and of its heat maps."""

    @property
    def name(self) -> str:
        return str(self.options["model"]["name"])

    def seconds(self, passes: float) -> float:
        return FILES + passes * self.seconds_per_pass + self.mixing

    def passes(self, seconds: float) -> float:
        return (seconds - self.mixing - FILES) / self.seconds_per_pass


def ways(accuracy: Mapping[str, float], networks: Priced, *, seconds: float) -> list[Way]:
    """List the ways to train for so many seconds, the one that gains most in little time first.

    `accuracy`: that of each frozen network, by its name; empty if unknown. A network is left out if it would have to
    cut its errors to less than `CUT` to reach the best."""
    best = max(accuracy.values(), default=0.0)
    if best >= GOOD:
        return []
    images = networks.sizes["train"]
    embedded = [name for name in EMBEDDED_WEIGHTS.values() if any(each.name == name for each in networks.prices)]
    if images >= MANY and VIT in embedded:
        embedded = [VIT]
    embedded = sorted(embedded, key=lambda name: -accuracy.get(name, 0.0))[:1]
    found = []
    for name in [*embedded, *([LITE0] if images >= MANY else [])]:
        promising = CUT * (1 - accuracy.get(name, best)) <= 1 - best
        if promising and any(each.name == name for each in networks.prices):
            found.append(efficientnet(networks) if name == LITE0 else vit(name, networks, seconds=seconds))
    return found


def vit(name: str, networks: Priced, *, seconds: float) -> Way:
    """All of an embedded ViT: many images are mixed where they pass often, few large ones are shown larger."""
    recipe = RECIPES["finetune-small"].options
    model = {"name": name, "weights": default_weights(name), "trainable": "all"}
    train = recipe["train"] | {"schedule": "cooldown"}
    usual = way(recipe | {"model": model, "train": train}, networks, pays=5.0, most=100.0)
    if networks.sizes["train"] >= MANY:
        if usual.passes(seconds) < MIXED_PASSES:
            return usual
        return way(recipe | {"model": model, "train": train | MIXED}, networks, pays=5.0, most=100.0)
    larger = recipe | {"model": model | {"image_size": LARGER}, "train": train}
    richer = way(larger, networks, pays=5.0, most=100.0)
    return richer if networks.side >= LARGER and richer.passes(seconds) >= LARGER_PASSES else usual


def efficientnet(networks: Priced) -> Way:
    """The last stages of EfficientNet-Lite0, on pictures of 96 pixels of small images, else of 128."""
    size = 96 if networks.side <= 48 else 128
    model = {"name": LITE0, "weights": "imagenet", "trainable": "last:3", "image_size": size}
    train = {"schedule": "cooldown", "label_smoothing": 0.1, "lr": 1e-3, "start_head": "probe"}
    options: dict[str, dict[str, Any]] = {"model": model, "data": {"augment": "light"}, "train": train}
    return way(options, networks, pays=2.5, most=20.0, step=LAST_STAGES)


def way(options: dict[str, dict[str, Any]], networks: Priced, *, pays: float, most: float, step: float = STEP) -> Way:
    """Price a way by the forward pass of its network, at the nearest size of which that is known."""
    name, size = options["model"]["name"], options["model"].get("image_size")
    known = [network for network in networks.prices if network.name == name]
    nearest = min(known, key=lambda network: abs(network.image_size - (size or network.image_size)))
    cost = networks.prices[nearest].seconds * ((size or nearest.image_size) / nearest.image_size) ** 2
    images = networks.sizes["train"]
    evaluated = sum(networks.sizes.values()) - images
    return Way(options, step * cost * images, pays, most, cost * (evaluated + networks.passes))


def shares(found: Sequence[Way], seconds: float) -> Iterator[tuple[Way, float]]:
    """Yield each way with its seconds, its mixing included.

    All have equal parts if all have the passes then from which they pay, else the first ones. What one of them needs
    not goes to the next."""
    while len(found) > 1 and any(each.passes(seconds / len(found)) < each.pays for each in found):
        found = found[:-1]
    for place, each in enumerate(found):
        share = min(seconds / (len(found) - place), each.seconds(each.most))
        seconds -= share
        yield each, share


def frozen_accuracy(parts: PartScores, networks: Sequence[Network]) -> dict[str, float]:
    """Return the best cross-validated accuracy of each frozen network, by its name, from the parts of a head."""
    found: dict[str, float] = {}
    for network in networks:
        scores = parts.get(str(network) if len(networks) > 1 else FROZEN, {}).get("cross-validation")
        if scores is not None:
            found[network.name] = max(scores["accuracy"], found.get(network.name, 0.0))
    return found
