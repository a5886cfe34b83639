"""Networks side by side: one picture in, the features of several networks, and one linear head on all of them.

`mix:efficientnet_lite0@224+vit_stem_16@64` names such a model. Its picture is large enough for every network; each
cuts its own part out of it, resizes that and normalises it as its weights want. Any weighted sum of the logits of
linear heads, on some of the networks each, is one such head: so is a mixture of frozen networks and a trained one,
which is written `vit_stem_16@64:tuned`; there may be several. `efficientnet_lite0@128:stages` has features of its
stages beside its last ones. B images, C channels, S side of the picture, D features, K classes.
"""

import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.errors import OptionError
from common.image_spec import HALF, ImageSpec
from vit.config import MIX_PREFIX, ModelConfig, default_weights, refuse_options
from vit.parts import Parts, parts

_LACKS = (
    "pool", "patch_embedding", "representation_size", "dropout", "attention_dropout", "stochastic_depth", "attention",
    "layer_norm_eps", "weights_source",
)  # fmt: skip
_NETWORK = re.compile(r"(?P<name>[^@+]+)@(?P<size>\d{1,4})(?P<mark>:tuned|:stages)?")
STAGES = 5
"""Stages whose features are taken, at most: the last ones."""


class Network(NamedTuple):
    """One network of a mixture: its model and the side of its own input in pixels. `tuned`: it was trained here;
    `stages`: features of its stages stand beside its last ones."""

    name: str
    size: int
    tuned: bool = False
    stages: bool = False

    def __str__(self) -> str:
        return f"{self.name}@{self.size}" + (":tuned" if self.tuned else "") + (":stages" if self.stages else "")

    def config(self, of: ModelConfig) -> ModelConfig:
        """The options of this network in the mixture `of`: with its own weights, unless that is rebuilt without."""
        weights = "none" if self.tuned or of.weights == "none" else default_weights(self.name)
        return ModelConfig(self.name, weights=weights, image_size=self.size, in_channels=of.in_channels)


def networks_in(name: str) -> tuple[Network, ...]:
    """The networks that a name of a mixture lists. Raises OptionError: it lists none, or in another form."""
    words = name.removeprefix(MIX_PREFIX).split("+")
    found = [_NETWORK.fullmatch(word) for word in words]
    wrong = [word for word, match in zip(words, found, strict=True) if match is None or word.startswith(MIX_PREFIX)]
    if wrong:
        example = f"{MIX_PREFIX}efficientnet_lite0@224+vit_stem_16@64"
        raise OptionError(f"model {name!r}: {wrong[0]!r} is not NAME@SIZE; an example: {example}")
    return tuple(
        Network(match["name"], int(match["size"]), match["mark"] == ":tuned", match["mark"] == ":stages")
        for match in found
        if match
    )


def name_of(networks: Sequence[Network]) -> str:
    return MIX_PREFIX + "+".join(map(str, networks))


class Float32Linear(nn.Linear):
    """A Linear that computes in float32, also where autocast is on: the sum of thousands of features needs it."""

    def forward(self, features: Tensor) -> Tensor:
        kind = features.device.type
        if not torch.is_autocast_enabled(kind):
            return super().forward(features.float())
        with torch.autocast(kind, enabled=False):
            return super().forward(features.float())


class WithStages(nn.Module):
    """A convolutional network without its head that gives the means over the maps of its last stages beside its own
    features: they still hold what the classes of its pretraining did not ask for (Evci et al. 2022, Head2Toe)."""

    def __init__(self, network: nn.Module, spec: ImageSpec) -> None:
        super().__init__()
        self.network = network
        was_training = network.training
        with torch.no_grad(), _pooled(parts(network).blocks[-STAGES:]) as pooled:
            network.eval()(torch.zeros(1, spec.in_channels, spec.image_size, spec.image_size))
        network.train(was_training)
        self.widths = tuple(each.size(1) for each in pooled)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, S, S) -> (B, D), its own features first"""
        with _pooled(parts(self.network).blocks[-STAGES:]) as pooled:
            features = self.network(images).float()
        return torch.cat([features, *pooled], dim=1)

    def find_parts(self) -> Parts:
        return parts(self.network)


@contextmanager
def _pooled(stages: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """Record in the list, while entered, the mean (B, D) over the map (B, D, H, W) of each stage. Raises OptionError: a
    stage makes no map."""
    pooled: list[Tensor] = []

    def record(stage: nn.Module, given: Any, made: Any) -> None:
        if not isinstance(made, Tensor) or made.dim() != 4:
            raise OptionError(f"{type(stage).__name__} makes no map: only a convolutional network has :stages")
        pooled.append(made.float().mean(dim=(2, 3)))

    with ExitStack() as hooks:
        for stage in stages:
            hooks.enter_context(stage.register_forward_hook(record))
        yield pooled


class View(nn.Module):
    """One network, headless, with what turns the common picture into its input."""

    rows: Tensor | None
    scale: Tensor
    shift: Tensor

    def __init__(self, network: nn.Module, spec: ImageSpec, picture: ImageSpec, *, stages: bool = False) -> None:
        super().__init__()
        self.spec = spec
        ends = parts(network).head
        self._place = _place_of(network, ends[-1])
        if len(ends) > 1:
            raise OptionError(f"{type(network).__name__} has more than one layer in its head: it cannot be mixed")
        self._head = (ends[-1],)  # in a tuple, so that it is no part of this module
        width = next(layer.in_features for layer in ends[-1].modules() if isinstance(layer, nn.Linear))
        setattr(*self._place, nn.Identity())
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
        seen = images[..., self.margin : end, self.margin : end]
        if self.rows is not None:
            seen = self.rows @ seen @ self.rows.T
        features: Tensor = self.network(seen * self.scale + self.shift)
        return features

    @contextmanager
    def whole(self) -> Iterator[tuple[nn.Module, nn.Linear]]:
        """Give the network its own head again while entered; both."""
        [head] = self._head
        setattr(*self._place, head)
        try:
            yield self.network, next(layer for layer in head.modules() if isinstance(layer, nn.Linear))
        finally:
            setattr(*self._place, nn.Identity())


def _place_of(network: nn.Module, module: nn.Module) -> tuple[nn.Module, str]:
    """The parent of a module in a network, and the name that it has there."""
    return next(
        (parent, name) for parent in network.modules() for name, child in parent.named_children() if child is module
    )


def resizing(before: int, after: int, interpolation: str) -> Tensor:
    """The matrix (after, before) that resizes a column of pixels, as a filter that covers what it shrinks.

    As a product it is the same in torch and in ONNX, to the last digits.
    """
    size, columns = (after, before), torch.eye(before, device="cpu")[None, None]
    if interpolation == "nearest":
        return F.interpolate(columns, size=size, mode="nearest")[0, 0]
    return F.interpolate(columns, size=size, mode=interpolation, align_corners=False, antialias=True)[0, 0]


def one_after_the_other(widths: Sequence[int]) -> tuple[slice, ...]:
    """Columns of blocks of these widths that stand side by side."""
    ends = [sum(widths[: place + 1]) for place in range(len(widths))]
    return tuple(slice(end - width, end) for end, width in zip(ends, widths, strict=True))


class Trained(NamedTuple):
    """The head that a network brought which was trained before: its place in the mixture, (K, d) and (K,)."""

    place: int
    weight: Tensor
    bias: Tensor


class SideBySide(nn.Module):
    """The features of several networks, one after the other, and one linear head on all of them."""

    def __init__(self, networks: Sequence[Network], views: Sequence[View], *, num_classes: int) -> None:
        super().__init__()
        self.names, self.views = tuple(networks), nn.ModuleList(views)
        self.widths = tuple(view.width for view in views)
        self.trained: list[Trained] = []
        self.head = Float32Linear(sum(self.widths), num_classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, S, S) -> logits (B, K)"""
        return self.head(torch.cat([view(images).float() for view in self.views], dim=1))

    def find_parts(self) -> Parts:
        return Parts(list(self.views), [], [self.head], block_name="networks")

    @property
    def columns(self) -> tuple[slice, ...]:
        """Columns of each network among all features."""
        return one_after_the_other(self.widths)

    @property
    def levels(self) -> tuple[slice, ...]:
        """Columns of each level: the last features of a network, or those of one of its stages."""
        return one_after_the_other([width for view in self.views for width in view.levels])  # type: ignore[union-attr]

    @contextmanager
    def taking_weights(self) -> Iterator[nn.Module]:
        """The next network that was trained here, whole, to load its weights into. The mixture begins with the heads of
        these networks, in equal shares."""
        tuned = [place for place, network in enumerate(self.names) if network.tuned]
        if len(self.trained) == len(tuned):
            raise OptionError("weights of a run are for a network that is marked `:tuned`, and there is none")
        place = tuned[len(self.trained)]
        view: Any = self.views[place]
        with view.whole() as (network, head):
            yield network
        with torch.no_grad():
            self.trained.append(Trained(place, head.weight.clone(), head.bias.clone()))
            self.head.weight[:, self.columns[place]] = head.weight / len(tuned)
            self.head.bias.add_(head.bias / len(tuned))


@dataclass(frozen=True)
class Mixed:
    """Interface of mixtures for the factory (`vit.factory.Library`); `blueprint` makes each of their networks."""

    blueprint: Any

    def _specs(self, config: ModelConfig) -> list[ImageSpec]:
        mixture = replace(config, weights=None if config.weights != "none" else "none")
        options = [replace(network.config(mixture), trainable="all") for network in networks_in(config.name)]
        # A run that is rebuilt has no files of weights: what they say of images belongs to the name.
        named = [replace(option, weights=default_weights(option.name)) for option in options]
        return [self.blueprint(option).image_spec for option in named]

    def image_spec(self, config: ModelConfig) -> ImageSpec:
        """The smallest picture that shows every network all that it wants to see, as sharp as it wants it."""
        specs = self._specs(config)
        largest = max(specs, key=lambda spec: spec.image_size / spec.crop_fraction)
        side = math.ceil(largest.image_size / largest.crop_fraction - 1e-6)
        values = HALF[:1] * config.in_channels
        return ImageSpec(side, values, values, largest.interpolation, in_channels=config.in_channels)

    def native_size(self, config: ModelConfig) -> int:
        return self.image_spec(config).image_size

    def build(self, config: ModelConfig, *, num_classes: int) -> SideBySide:
        refuse_options(config, _LACKS)
        picture = self.blueprint(config).image_spec
        specs = self._specs(config)
        if config.fit in ("pad", "squash"):  # the whole picture is there to be seen whole
            specs = [replace(spec, crop_fraction=1.0) for spec in specs]
        views = [
            View(
                self.blueprint(network.config(config)).build(num_classes=num_classes),
                spec,
                picture,
                stages=network.stages,
            )
            for network, spec in zip(networks_in(config.name), specs, strict=True)
        ]
        return SideBySide(networks_in(config.name), views, num_classes=num_classes)

    def weights_path(self, config: ModelConfig) -> Path | None:
        """The run whose network is the one that is marked `:tuned`; the others have weights of their own."""
        return Path(config.weights) if config.weights else None

    def one_by_one(self, config: ModelConfig) -> list[ModelConfig]:
        """The options with the weights of one run each. Raises OptionError: not as many runs as trained networks."""
        tuned = sum(network.tuned for network in networks_in(config.name))
        if config.weights in (None, "none") or tuned <= 1:
            return [config]
        runs = str(config.weights).split(os.pathsep)
        if len(runs) != tuned:
            raise OptionError(
                f"model {config.name!r} has {tuned} networks that are marked `:tuned`, and weights of {len(runs)}:"
                f" name as many runs, with {os.pathsep!r} between them"
            )
        return [replace(config, weights=run) for run in runs]
