"""One door to every model: `build_model` by name, and the preprocessing that belongs to it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from vit.checkpoints import load_weights, weights_image_spec, weights_layer_norm_eps
from vit.config import (
    EMBEDDED_WEIGHTS,
    HALF,
    HF_PREFIX,
    TORCHVISION_MODELS,
    VIT_SHAPES,
    ImageSpec,
    ModelConfig,
    ViTConfig,
)
from vit.model import VisionTransformer
from vit.parts import freeze
from vit.torchvision_models import (
    build_resnet18,
    build_vit_b_16,
    torchvision_image_spec,
    torchvision_weights,
    torchvision_weights_path,
)

log = logging.getLogger(__name__)


def build_vit(config: ModelConfig, *, num_classes: int) -> nn.Module:
    """Our VisionTransformer in one of the shapes of `VIT_SHAPES`, untrained."""
    return VisionTransformer(vit_config(config, num_classes=num_classes))


def vit_config(config: ModelConfig, *, num_classes: int) -> ViTConfig:
    shape = dict(VIT_SHAPES[config.name])
    if config.image_size is not None:
        shape["image_size"] = config.image_size
    return ViTConfig(
        **shape,
        num_classes=num_classes,
        in_channels=config.in_channels,
        pool=config.pool,
        patch_embedding=config.patch_embedding,
        representation_size=config.representation_size,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        stochastic_depth=config.stochastic_depth,
        attention=config.attention,
        layer_norm_eps=config.layer_norm_eps or 1e-6,
    )


Builder = Callable[..., nn.Module]
MODELS: dict[str, Builder] = {
    **dict.fromkeys(VIT_SHAPES, build_vit),
    "vit_b_16": build_vit_b_16,
    "resnet18": build_resnet18,
}


def build_model(
    name: str | ModelConfig, *, num_classes: int, class_names: Sequence[str] | None = None, **options: Any
) -> nn.Module:
    """Build a model by name, load its weights, give it a head of `num_classes` and freeze what shall not train.

    No wrapper: the scratch ViTs are `vit.model.VisionTransformer`, `vit_b_16` and `resnet18` torchvision's own classes.
    A new head is zero, so the first loss is ln(num_classes).

    Args:
        name: a name of `MODELS`, `hf:ID_OR_FOLDER`, or a whole ModelConfig.
        num_classes: outputs of the head.
        class_names: what they mean. Weights that were trained for others, and say so, then get a new head even where
            there are as many.
        options: the fields of ModelConfig: weights, image_size, trainable, dropout, in_channels, pool, ...

    Raises:
        ValueError: unknown name, or options that do not fit the model or each other.
        FileNotFoundError, WeightsError: weights that cannot be had, read or loaded.
    """
    config = name if isinstance(name, ModelConfig) else ModelConfig(name=name)
    config = dataclasses.replace(config, **options)
    if config.name == "auto":
        raise ValueError("model `auto` depends on the data; resolve it to a name first")
    if num_classes < 1:
        raise ValueError(f"num_classes={num_classes} must be at least 1")
    if config.name.startswith(HF_PREFIX):
        from vit.huggingface import build_huggingface  # imports transformers

        model = build_huggingface(config, num_classes=num_classes)
    else:
        model = MODELS[config.name](config, num_classes=num_classes)
        path = weights_path(config)
        if path is not None:
            report = load_weights(
                model, path, source=config.weights_source, layer_norm_eps=config.layer_norm_eps, class_names=class_names
            )
            log.info("%s", report)
    freeze(model, config.trainable)
    return model


def weights_path(config: ModelConfig) -> Path | None:
    """The file that `config.weights` means; None for training from scratch.

    Raises:
        ValueError: a name that no weights have.
        WeightsError: it had to be downloaded and could not be.
    """
    if config.weights == "none" or (config.weights is None and config.name not in TORCHVISION_MODELS):
        return None
    if config.weights in EMBEDDED_WEIGHTS:
        return embedded_weights_path(config)
    return torchvision_weights_path(config) if config.name in TORCHVISION_MODELS else Path(config.weights or "")


def embedded_weights_path(config: ModelConfig) -> Path:
    """The file of weights that come with the application (`vit/weights/README.md`)."""
    assert config.weights is not None
    owner = EMBEDDED_WEIGHTS[config.weights]
    if config.name != owner:
        raise ValueError(f"weights {config.weights!r} belong to {owner}, not to {config.name}; use --model {owner}")
    return Path(__file__).parent / "weights" / f"{owner}-{config.weights}.safetensors"


def resolve(config: ModelConfig) -> ModelConfig:
    """The same model with all that its weights decide written out, so that it can be rebuilt without their file.

    A run stores this in config.json: its checkpoints then load into `build_model(config, weights="none", ...)`.
    """
    spec = image_spec(config)
    path = None if config.name.startswith(HF_PREFIX) else weights_path(config)
    eps = config.layer_norm_eps
    if eps is None and path is not None and config.name != "resnet18":
        eps = weights_layer_norm_eps(path, source=config.weights_source)
    return dataclasses.replace(config, image_size=spec.image_size, mean=spec.mean, std=spec.std, layer_norm_eps=eps)


def image_spec(config: ModelConfig) -> ImageSpec:
    """The preprocessing that belongs to a model and its weights, at the requested size.

    torchvision weights bring `weights.transforms()`, foreign files the values of their family, our own runs what they
    were trained with; a model from scratch gets mean = std = .5. `config.mean` and `config.std` override.
    """
    if config.name == "auto":
        raise ValueError("model `auto` depends on the data; resolve it to a name first")
    if config.name.startswith(HF_PREFIX):
        from vit.huggingface import huggingface_image_spec

        spec = huggingface_image_spec(config)
    elif config.name in TORCHVISION_MODELS and (config.weights == "none" or torchvision_weights(config) is not None):
        spec = torchvision_image_spec(config)
    else:
        native = VIT_SHAPES[config.name].get("image_size", 224) if config.name in VIT_SHAPES else 224
        spec = ImageSpec(image_size=native, mean=HALF, std=HALF)
        path = weights_path(config)
        if path is not None:
            # The share of the picture that is kept travels with the weights; the size is the model's own.
            spec = dataclasses.replace(weights_image_spec(path, source=config.weights_source), image_size=native)
    channels = config.in_channels
    return dataclasses.replace(
        spec,
        image_size=config.image_size or spec.image_size,
        in_channels=channels,
        mean=_per_channel(config.mean or spec.mean, channels),
        std=_per_channel(config.std or spec.std, channels),
    )


def _per_channel(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """As many values as channels; where the counts differ, their mean (a grey image is the mean of its colours)."""
    if len(values) == channels:
        return tuple(values)
    return (sum(values) / len(values),) * channels
