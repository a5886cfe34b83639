"""torchvision's own `vit_b_16` and `resnet18`: its classes, unwrapped, with a new head and its preprocessing."""

import logging
from pathlib import Path
from typing import Any

from torch import nn
from torchvision import models

from common.errors import OptionError
from common.image_spec import ImageSpec
from vit.config import ModelConfig, nearest_sizes, refuse_options
from vit.parts import set_layer_norm_eps
from vit.weight_files import fetch

log = logging.getLogger(__name__)

PATCH_SIZE = 16
_VIT_LACKS = ("stochastic_depth", "pool", "patch_embedding", "attention")
_RESNET_LACKS = (*_VIT_LACKS, "dropout", "attention_dropout", "representation_size", "layer_norm_eps")


def build(config: ModelConfig, *, num_classes: int) -> nn.Module:
    """The model, untrained, for any number of channels, with a zero head of `num_classes`."""
    return (_build_vit_b_16 if config.name == "vit_b_16" else _build_resnet18)(config, num_classes)


def _build_vit_b_16(config: ModelConfig, num_classes: int) -> nn.Module:
    refuse_options(config, _VIT_LACKS)
    image_size = config.image_size or native_size(config)
    if image_size % PATCH_SIZE:
        nearest = nearest_sizes(image_size, PATCH_SIZE)
        raise OptionError(f"image_size={image_size} is not divisible by patch_size={PATCH_SIZE}; nearest: {nearest}")
    model = models.vit_b_16(
        num_classes=num_classes,
        image_size=image_size,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        representation_size=config.representation_size,
    )
    if config.in_channels != 3:
        model.conv_proj = nn.Conv2d(config.in_channels, model.hidden_dim, PATCH_SIZE, stride=PATCH_SIZE)
    set_layer_norm_eps(model, config.layer_norm_eps)
    return model


def _build_resnet18(config: ModelConfig, num_classes: int) -> nn.Module:
    refuse_options(config, _RESNET_LACKS)
    model = models.resnet18(num_classes=num_classes)
    if config.in_channels != 3:
        model.conv1 = nn.Conv2d(config.in_channels, 64, kernel_size=7, stride=2, padding=3, bias=False)
    nn.init.zeros_(model.fc.weight)
    nn.init.zeros_(model.fc.bias)
    return model


def native_size(config: ModelConfig) -> int:
    weights = _enumerated(config)
    return 224 if weights is None else weights.transforms().crop_size[0]


def image_spec(config: ModelConfig) -> ImageSpec | None:
    """The values of `weights.transforms()`; None for the weights of others and for none."""
    weights = _enumerated(config)
    if weights is None:
        return None
    preset = weights.transforms()
    return ImageSpec(
        image_size=preset.crop_size[0],
        mean=tuple(preset.mean),
        std=tuple(preset.std),
        interpolation=preset.interpolation.value,
        # At another size the same share of the picture is kept: the objects keep the scale the weights know.
        crop_fraction=preset.crop_size[0] / preset.resize_size[0],
    )


def weights_path(config: ModelConfig) -> Path:
    """The file of `config.weights`, downloaded and verified if it is a name."""
    members = _members(config)
    weights = members.get(config.weights or "IMAGENET1K_V1")
    if weights is not None:
        if "license" in weights.meta:
            log.warning("weights %s: %s (not for commercial use)", weights.name, weights.meta["license"])
        return fetch(weights.url, megabytes=weights.meta["_file_size"])
    path = Path(config.weights or "")
    if not path.expanduser().exists() and not path.suffix:
        known = ", ".join(members)
        raise OptionError(f"{config.name} has no weights {config.weights!r}; known: {known}, none, or a file")
    return path


def _enumerated(config: ModelConfig) -> Any | None:
    """The member of the weights enum that `config.weights` names, or whose file it is; None for any other file."""
    members, name = _members(config), config.weights or "IMAGENET1K_V1"
    by_file = {weights.url.rsplit("/", 1)[-1]: weights for weights in members.values()}
    return members.get(name) or by_file.get(Path(name).name)


def _members(config: ModelConfig) -> dict[str, Any]:
    return dict(models.get_model_weights(config.name).__members__)
