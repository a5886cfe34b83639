"""Join the features of several networks under one linear head.

One picture goes in, large enough for every network; each cuts its own part out of it, resizes that and normalises it
as its weights want. Any weighted sum of the logits of linear heads, on some of the networks each, is one such head:
so is an ensemble of frozen networks and of trained ones. `vit.config.Network` says what each network is; a network with
stages has features of its stages next to its last ones. B images, C channels, S side of the picture, D features,
K classes.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.errors import OptionError
from common.image_spec import HALF, ImageSpec
from vit.anatomy import Anatomy, anatomy_of, recording, zero_
from vit.config import Network

STAGES = 5
"""Stages whose features are taken, at most: the last ones."""


def shared_picture(specs: Sequence[ImageSpec]) -> ImageSpec:
    """Return the smallest picture that has the pixels that each network wants."""
    largest = max(specs, key=lambda spec: spec.image_size / spec.crop_fraction)
    side = math.ceil(largest.image_size / largest.crop_fraction - 1e-6)
    values = HALF[:1] * largest.in_channels
    return ImageSpec(side, values, values, largest.interpolation, in_channels=largest.in_channels)


class Float32Linear(nn.Linear):
    """Compute in float32, also under autocast: the sum of thousands of features needs it."""

    def forward(self, features: Tensor) -> Tensor:
        kind = features.device.type
        if not torch.is_autocast_enabled(kind):
            return super().forward(features.float())
        with torch.autocast(kind, enabled=False):
            return super().forward(features.float())


class WithStages(nn.Module):
    """Append the mean map of each last stage to the features of a convolutional network.

    They still hold what the classes of its pretraining did not ask for (Evci et al. 2022, Head2Toe)."""

    def __init__(self, network: nn.Module, spec: ImageSpec) -> None:
        super().__init__()
        self.network = network
        self.ends: list[tuple[nn.Module, Literal["out"]]]
        self.ends = [(stage, "out") for stage in anatomy_of(network).blocks[-STAGES:]]
        was_training = network.training
        with torch.no_grad(), recording(self.ends, take=_mean_of_map) as pooled:
            network.eval()(torch.zeros(1, spec.in_channels, spec.image_size, spec.image_size))
        network.train(was_training)
        self.widths = tuple(each.size(1) for each in pooled)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, S, S) -> (B, D), its own features first"""
        with recording(self.ends, take=_mean_of_map) as pooled:
            features = self.network(images).float()
        return torch.cat([features, *pooled], dim=1)


def _mean_of_map(made: Tensor) -> Tensor:
    """(B, D, H, W) -> (B, D). Raises OptionError: a stage that makes no map."""
    if not isinstance(made, Tensor) or made.dim() != 4:
        raise OptionError("its blocks make no maps: only a convolutional network has stages")
    return made.float().mean(dim=(2, 3))


class View(nn.Module):
    """Cut, resize and normalise the common picture for one network, and return its features."""

    rows: Tensor | None
    scale: Tensor
    shift: Tensor

    def __init__(self, network: nn.Module, spec: ImageSpec, picture: ImageSpec, *, stages: bool = False) -> None:
        super().__init__()
        self.spec = spec
        own = anatomy_of(network)
        if len(own.head) > 1:
            raise OptionError(f"{type(network).__name__} has more than one layer in its head: it cannot be mixed")
        width = linear_of(network).in_features
        network.set_submodule(own.head_name, nn.Identity())
        self.network = WithStages(network, spec) if stages else network
        self.levels = (width, *(self.network.widths if isinstance(self.network, WithStages) else ()))
        self.width = sum(self.levels)
        self.cut = round(picture.image_size * spec.crop_fraction)
        self.margin = (picture.image_size - self.cut) // 2
        rows = None if self.cut == spec.image_size else resizing(self.cut, spec.image_size, spec.interpolation)
        mean, std, own_mean, own_std = (
            torch.tensor(values).view(-1, 1, 1) for values in (picture.mean, picture.std, spec.mean, spec.std)
        )
        # They follow from the options, so they are in no file of weights.
        self.register_buffer("rows", rows, persistent=False)
        self.register_buffer("scale", std / own_std, persistent=False)
        self.register_buffer("shift", (mean - own_mean) / own_std, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, S, S) -> (B, D)"""
        end = self.margin + self.cut
        part = images[..., self.margin : end, self.margin : end]
        if self.rows is not None:
            kind = part.device.type  # in bf16 the products would round a picture to a grey level
            with torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext():
                part = self.rows @ part @ self.rows.T
        features: Tensor = self.network(part * self.scale + self.shift)
        return features


def linear_of(network: nn.Module) -> nn.Linear:
    """Return the linear layer of a network's head."""
    layer = network.get_submodule(anatomy_of(network).head_name)
    assert isinstance(layer, nn.Linear)
    return layer


def resizing(before: int, after: int, interpolation: str) -> Tensor:
    """Return the matrix (after, before) that resizes a column of pixels, with antialiasing.

    A product with it is the same in torch and in ONNX, to the last digits."""
    columns = torch.eye(before, device="cpu")[None, None]
    size = (after, before)
    return F.interpolate(columns, size=size, mode=interpolation, align_corners=False, antialias=True)[0, 0]


def one_after_the_other(widths: Sequence[int]) -> tuple[slice, ...]:
    """Return the columns of blocks of these widths that stand side by side."""
    return tuple(slice(end - width, end) for end, width in zip(accumulate(widths), widths, strict=True))


class SideBySide(nn.Module):
    """Classify by one linear head on the features of several networks, one after the other.

    Each of `modules` has a head; the ensemble begins with the heads of the trained networks, in equal shares.
    """

    def __init__(
        self,
        networks: Sequence[Network],
        modules: Sequence[nn.Module],
        specs: Sequence[ImageSpec],
        picture: ImageSpec,
        *,
        num_classes: int,
    ) -> None:
        super().__init__()
        self.networks = tuple(networks)
        self.trained = {place: linear_of(module) for place, module in enumerate(modules) if networks[place].weights}
        views = [
            View(module, spec, picture, stages=network.stages)
            for network, module, spec in zip(networks, modules, specs, strict=True)
        ]
        self.views, self.widths = nn.ModuleList(views), tuple(view.width for view in views)
        self.head = Float32Linear(sum(self.widths), num_classes)
        zero_(self.head)
        with torch.no_grad():
            for place, head in self.trained.items():
                self.head.weight[:, self.columns[place]] = head.weight / len(self.trained)
                self.head.bias.add_(head.bias / len(self.trained))

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, S, S) -> logits (B, K)"""
        return self.head(torch.cat([view(images).float() for view in self.views], dim=1))

    @property
    def columns(self) -> tuple[slice, ...]:
        """List the columns of each network among all features."""
        return one_after_the_other(self.widths)

    @property
    def levels(self) -> tuple[slice, ...]:
        """List the columns of each level: a network's last features, or one of its stages."""
        return one_after_the_other([width for view in self.views for width in view.levels])  # type: ignore[union-attr]


def anatomy(model: nn.Module) -> Anatomy | None:
    """Return the networks of an ensemble as its blocks."""
    if not isinstance(model, SideBySide):
        return None
    return Anatomy([*model.views], [], [model.head], "head", block_name="networks")
