"""The pretrained networks at hand for images of one size, what each costs on this machine, and which there is time for.

None of them has seen the images yet: `trainers.budget.side_by_side` shows them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from datasets.description import native_sizes
from datasets.opened import OpenedImages
from trainers.budget.local_weights import MOST_IMAGES, SAMPLE
from trainers.budget.pace import images_timed, seconds_of
from trainers.config import RunConfig
from trainers.engine.engines import autocast
from trainers.reporting import console
from trainers.setup import RunSetup, prepare
from vit.config import MIXTURE, Network
from vit.factory import image_spec, local_pretrained_models

LARGER_VIT = Network("vit_stem_16", 128)
"""The embedded ViT once more, on larger pictures: it sees other things in them."""
CONVOLUTIONAL = ("efficientnet", "resnet")
"""Beginnings of the names of networks whose stages give features, too, and what those of a ViT's blocks would bring:
docs/results.md."""
SMALL = 40
"""Pixels: only images with a shorter side of so many are shown to networks that learnt from as small ones."""
QUICK = 5e8
"""Operations for one image up to which a network belongs to the first answer."""
ENDURED = 1.5
"""Factor by which a single network may take longer than the limit, where none would be left."""
SAMPLES = 0.4
"""Share of the limit that networks may take for a sample of the images, which tells whether they are worth more."""


@dataclass(frozen=True)
class Price:
    """Cost of a network: seconds of one image as measured here, operations and megabytes, which are its own."""

    seconds: float
    operations: float
    megabytes: float


@dataclass(frozen=True)
class AtHand:
    """The networks at hand and their prices; `sizes` and `classes` are those of the images."""

    prices: Mapping[Network, Price]
    side: int
    """Side of the picture that all networks share, in pixels."""
    sizes: Mapping[str, int]
    classes: int

    @property
    def quick(self) -> list[Network]:
        """The networks of the first answer; all of them where none is quick."""
        return [network for network, price in self.prices.items() if price.operations <= QUICK] or [*self.prices]

    def seconds(self, network: Network) -> float:
        """Estimate the seconds that the features of all images take, those of the test too."""
        return self.prices[network].seconds * sum(self.sizes.values())

    def in_time(self, networks: Collection[Network], limit: float) -> bool:
        """Return whether the features of all images take these networks no longer than `limit` seconds; a network
        alone may take `ENDURED` times that."""
        return sum(map(self.seconds, networks)) <= limit * (ENDURED if len(networks) == 1 else 1.0)

    def affordable(self, networks: Sequence[Network], limit: float) -> list[Network]:
        """Return those of the networks that can be looked at where features of all images may take `limit` seconds;
        print a line about each other one. The first to have the time are quick networks with features of their stages.

        Of a large set a sample is looked at: then each network must be in time, but not all of them together.
        """

        def worth(network: Network) -> tuple[bool, bool, float]:
            price = self.prices[network]
            return price.operations > QUICK, not network.stages, -price.operations

        kept: list[Network] = []
        for network in sorted(networks, key=worth):
            if self.sizes["train"] <= MOST_IMAGES:
                there_is_time = self.in_time([*kept, network], limit)
            else:
                sample = SAMPLE / sum(self.sizes.values()) * sum(map(self.seconds, [*kept, network]))
                there_is_time = self.in_time([network], limit) and (not kept or sample <= SAMPLES * limit)
            if there_is_time:
                kept.append(network)
            else:
                wanted = console.duration(self.seconds(network))
                console.say(f"{network}: left out, it would take about {wanted}", label="weights")
        return [network for network in networks if network in kept]


def at_hand(config: RunConfig, setup: RunSetup, *, side: float, images: OpenedImages) -> AtHand:
    """The networks at hand that the images of a setup are large enough for, whose shorter side is mostly of `side`
    pixels, and what each network costs. The picture that they share is no larger than the largest image: it would show
    nothing more."""
    shown = native_sizes(setup.data)
    networks = candidates(side)
    wanted = image_spec(run_of(config, networks).model).image_size
    shared = min(wanted, int((shown.min(axis=1) if setup.spec.fit == "crop" else shown.max(axis=1)).max()))
    with console.quiet():
        together = prepare(run_of(config, networks, shared), images=images)
    views: Sequence[Any] = together.model.views  # type: ignore[assignment]
    prices = {network: price(together, view) for network, view in zip(networks, views, strict=True)}
    return AtHand(prices, shared, setup.data.dataset_sizes, len(setup.data.class_names))


def candidates(side: float) -> list[Network]:
    """The networks at hand that images of this shorter side are large enough for, the quickest first."""
    small = ("vit_nano_8",)
    found = []
    for model in local_pretrained_models():
        size = model.image_size or image_spec(model).image_size
        if model.name not in small or side <= SMALL:
            found.append(Network(model.name, size, stages=model.name.startswith(CONVOLUTIONAL)))
    place = next((place for place, each in enumerate(found) if each.name == LARGER_VIT.name), None)
    if place is not None and side > SMALL:
        found.insert(place + 1, LARGER_VIT)
    return found


def mixture_of(networks: Sequence[Network], canvas: int | None) -> dict[str, Any]:
    """Return the options of a model: these networks side by side, frozen, on pictures of `canvas` pixels."""
    return {"name": MIXTURE, "networks": tuple(networks), "image_size": canvas, "trainable": "head"}


def run_of(config: RunConfig, networks: Sequence[Network], canvas: int | None = None) -> RunConfig:
    """The run of these networks side by side, frozen, with a head that is fitted."""
    model = mixture_of(networks, canvas) | {"weights": None}
    train = {"start_head": "fit", "cache_features": "on", "mixup": 0.0, "cutmix": 0.0, "epochs": None}
    return config.changed(model=model, data={"augment": "none"}, train=train)


@torch.inference_mode()
def price(setup: RunSetup, view: torch.nn.Module) -> Price:
    side = setup.spec.image_size
    batch = torch.zeros(images_timed(setup), setup.spec.in_channels, side, side, device=setup.device)
    counter = FlopCounterMode(display=False)
    with autocast(setup.device, setup.amp_dtype):
        with counter:
            view(batch[:1])
        seconds = min(seconds_of(lambda: view(batch).cpu()) for _ in range(2)) / len(batch)  # the first pass is slower
    size = sum(tensor.numel() * tensor.element_size() for tensor in view.state_dict().values())
    return Price(seconds, float(counter.get_total_flops()), size / 1e6)
