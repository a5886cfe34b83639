"""torchvision's own `vit_b_16` and `resnet18`: its classes, unwrapped, with a new head and its preprocessing."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from torch import nn

from vit.config import HALF, IMAGENET_MEAN, IMAGENET_STD, ImageSpec, ModelConfig, nearest_sizes
from vit.weight_files import fetch

log = logging.getLogger(__name__)

PATCH_SIZE = 16
# What each model cannot do; asking for it is an error, because an option without effect misleads.
_UNSUPPORTED = {
    "vit_b_16": ("stochastic_depth", "pool", "patch_embedding", "attention"),
    "resnet18": (
        "stochastic_depth",
        "pool",
        "patch_embedding",
        "attention",
        "dropout",
        "attention_dropout",
        "representation_size",
        "layer_norm_eps",
    ),
}


def build_vit_b_16(config: ModelConfig, *, num_classes: int) -> nn.Module:
    """torchvision's `VisionTransformer` of ViT-B/16, untrained, with its zero head of `num_classes`.

    Raises:
        ValueError: an option this model does not have, or a size that its patches do not divide.
    """
    from torchvision.models import vit_b_16

    _refuse_unsupported(config)
    image_size = config.image_size or native_size(config)
    if image_size % PATCH_SIZE:
        nearest = nearest_sizes(image_size, PATCH_SIZE)
        raise ValueError(f"image_size={image_size} is not divisible by patch_size={PATCH_SIZE}; nearest: {nearest}")
    model = vit_b_16(
        num_classes=num_classes,
        image_size=image_size,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        representation_size=config.representation_size,
    )
    if config.in_channels != 3:
        model.conv_proj = nn.Conv2d(config.in_channels, model.hidden_dim, PATCH_SIZE, stride=PATCH_SIZE)
    if config.layer_norm_eps is not None:
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = config.layer_norm_eps
    return model


def build_resnet18(config: ModelConfig, *, num_classes: int) -> nn.Module:
    """torchvision's ResNet-18, untrained: the convolutional yardstick, for any image size. A zero head, as the ViTs."""
    from torchvision.models import resnet18

    _refuse_unsupported(config)
    model = resnet18(num_classes=num_classes)
    if config.in_channels != 3:
        model.conv1 = nn.Conv2d(config.in_channels, 64, kernel_size=7, stride=2, padding=3, bias=False)
    nn.init.zeros_(model.fc.weight)
    nn.init.zeros_(model.fc.bias)
    return model


def torchvision_weights(config: ModelConfig) -> Any | None:
    """The member of the weights enum that `config.weights` names, or whose file it is; None for any other file."""
    members = _members(config.name)
    name = "IMAGENET1K_V1" if config.weights is None else config.weights
    by_file = {weights.url.rsplit("/", 1)[-1]: weights for weights in members.values()}
    return members.get(name) or by_file.get(Path(name).name)


def torchvision_weights_path(config: ModelConfig) -> Path:
    """The file of `config.weights`, downloaded and verified if it is a name.

    Raises:
        ValueError: neither a name nor a file.
        WeightsError: no network; the line says which file to fetch and where to put it.
    """
    members = _members(config.name)
    weights = members.get("IMAGENET1K_V1" if config.weights is None else config.weights)
    if weights is not None:
        if "license" in weights.meta:
            log.warning("weights %s: %s (not for commercial use)", weights.name, weights.meta["license"])
        return fetch(weights.url, megabytes=weights.meta["_file_size"])
    assert config.weights is not None
    path = Path(config.weights).expanduser()
    if not path.exists() and not path.suffix:
        known = ", ".join(members)
        raise ValueError(f"{config.name} has no weights {config.weights!r}; known: {known}, none, or a file")
    return path


def _members(name: str) -> dict[str, Any]:
    from torchvision.models import ResNet18_Weights, ViT_B_16_Weights

    return dict({"vit_b_16": ViT_B_16_Weights, "resnet18": ResNet18_Weights}[name].__members__)


def native_size(config: ModelConfig) -> int:
    weights = torchvision_weights(config)
    return weights.transforms().crop_size[0] if weights is not None else 224


def torchvision_image_spec(config: ModelConfig) -> ImageSpec:
    """The values of `weights.transforms()`; without weights .5, as for every model that starts from scratch."""
    image_size = config.image_size or native_size(config)
    weights = torchvision_weights(config)
    if weights is None:
        return ImageSpec(image_size=image_size, mean=HALF, std=HALF)
    preset = weights.transforms()
    assert tuple(preset.mean) == IMAGENET_MEAN
    assert tuple(preset.std) == IMAGENET_STD
    return ImageSpec(
        image_size=image_size,
        mean=tuple(preset.mean),
        std=tuple(preset.std),
        interpolation=preset.interpolation.value,
        # At another size the same share of the picture is kept: the objects keep the scale the weights know.
        crop_fraction=preset.crop_size[0] / preset.resize_size[0],
    )


def _refuse_unsupported(config: ModelConfig) -> None:
    defaults = ModelConfig()
    for option in _UNSUPPORTED[config.name]:
        if getattr(config, option) != getattr(defaults, option):
            raise ValueError(
                f"{config.name} has no option {option} (got {getattr(config, option)!r}); the scratch ViTs do"
            )
