"""Build torchvision's `vit_b_16` and `resnet18`, unwrapped, with a new head."""

import logging
import os
from http.client import HTTPException
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torchvision import models

from common.errors import OptionError, WeightsError
from common.image_spec import ImageSpec
from common.network import impatient
from vit.anatomy import Anatomy, set_layer_norm_eps, zero_
from vit.config import ModelConfig, nearest_sizes, refuse_options
from vit.weight_files import require_digest

log = logging.getLogger(__name__)

PATCH_SIZE = 16
_VIT_LACKS = ("stochastic_depth", "pool", "patch_embedding")
_RESNET_LACKS = (*_VIT_LACKS, "dropout", "attention_dropout", "representation_size", "layer_norm_eps")


def build(config: ModelConfig, *, num_classes: int) -> nn.Module:
    """Build the untrained model, for any number of channels, with a zero head of `num_classes`."""
    if config.name == "resnet18":
        refuse_options(config, _RESNET_LACKS)
        resnet = models.resnet18(num_classes=num_classes)
        if config.in_channels != 3:
            resnet.conv1 = nn.Conv2d(config.in_channels, 64, kernel_size=7, stride=2, padding=3, bias=False)
        zero_(resnet.fc)
        return resnet.to(memory_format=torch.channels_last)  # predicts in four fifths of the time on a processor
    refuse_options(config, _VIT_LACKS)
    image_size = config.image_size or native_size(config)
    if image_size % PATCH_SIZE:
        nearest = nearest_sizes(image_size, PATCH_SIZE)
        raise OptionError(f"image_size={image_size} is not divisible by patch_size={PATCH_SIZE}; nearest: {nearest}")
    vit = models.vit_b_16(
        num_classes=num_classes,
        image_size=image_size,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        representation_size=config.representation_size,
    )
    if config.in_channels != 3:
        vit.conv_proj = nn.Conv2d(config.in_channels, vit.hidden_dim, PATCH_SIZE, stride=PATCH_SIZE)
    set_layer_norm_eps(vit, config.layer_norm_eps)
    return vit


def native_size(config: ModelConfig) -> int:
    spec = image_spec(config)
    return spec.image_size if spec else 224


def image_spec(config: ModelConfig) -> ImageSpec | None:
    """Return the values of `weights.transforms()` for torchvision's own weights, by name or file; else None."""
    members, name = _members(config), config.weights or "IMAGENET1K_V1"
    by_file = {Path(weights.url).name: weights for weights in members.values()}
    weights = members.get(name) or by_file.get(Path(name).name)
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
    """Return the file of `config.weights`; one of torchvision is downloaded and verified."""
    members = _members(config)
    weights = members.get(config.weights or "IMAGENET1K_V1")
    if weights is not None:
        if "license" in weights.meta:
            log.warning("%s: %s (not for commercial use)", weights.name, weights.meta["license"])
        return fetch(weights.url, megabytes=weights.meta["_file_size"])
    path = Path(config.weights or "")
    if not os.path.exists(os.path.expanduser(path)) and not path.suffix:
        known = ", ".join(members)
        raise OptionError(f"{config.name} has no weights {config.weights!r}; known: {known}, none, or a file")
    return path


def anatomy(model: nn.Module) -> Anatomy | None:
    """Return the parts of a ViT, or of a ResNet, whose four stages are its blocks."""
    if isinstance(model, models.ResNet):
        stages = [model.layer1, model.layer2, model.layer3, model.layer4]
        return Anatomy(stages, [], [model.fc], "fc", block_name="stages", stem="conv1.weight")
    if not isinstance(model, models.VisionTransformer):
        return None
    return Anatomy(
        blocks=[*model.encoder.layers],
        norms=[model.encoder.ln],
        head=[model.heads],
        head_name="heads.head",
        stem="conv_proj.weight",
        family="torchvision",
        positions="encoder.pos_embedding",
        num_heads=model.encoder.layers[0].num_heads,
    )


def fetch(url: str, *, megabytes: float) -> Path:
    """Return the file behind `url` in torch's cache ($TORCH_HOME/hub/checkpoints), downloaded if it is not there.

    Its name carries the first digits of its SHA-256 (`vit_b_16-c867db91.pth`), which torch checks only while it
    downloads. Raises WeightsError: no network, or a file with another SHA-256.
    """
    name = url.rsplit("/", 1)[-1]
    digits = name.rsplit("-", 1)[-1].split(".")[0]
    path = Path(torch.hub.get_dir()) / "checkpoints" / name
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with impatient():
                torch.hub.download_url_to_file(url, str(path), digits)
        except (OSError, RuntimeError, HTTPException) as error:
            raise WeightsError(
                f"cannot download {name} ({getattr(error, 'reason', error)}); "
                f"fetch {url} ({megabytes:.0f} MB) and put it at {path}"
            ) from None
    require_digest(path, digits, remedy=f"delete it and fetch {url}")
    return path


def _members(config: ModelConfig) -> dict[str, Any]:
    """Return torchvision's weights by name; `imagenet` means the first ones."""
    members = dict(models.get_model_weights(config.name).__members__)
    return {"imagenet": members["IMAGENET1K_V1"], **members}
