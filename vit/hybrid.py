"""The hybrid of Dosovitskiy et al. 2020 (section 3.1): a Vision Transformer on the map of a convolutional network.

The network, EfficientNet-Lite with its ImageNet weights, is frozen: its maps are computed once and cached. Each place
of a map, 32 pixels apart, is a patch of size 1 x 1; the transformer is the one of vit/model.py.
"""

import dataclasses
from pathlib import Path

import torch
from torch import Tensor, nn

from vit import timm_models
from vit.checkpoints import load_weights
from vit.config import HYBRIDS, ImageSpec, ModelConfig, ViTConfig, nearest_sizes, refuse_options
from vit.model import VisionTransformer
from vit.parts import Parts, parts
from vit.scratch_models import block_options

STRIDE = 32  # pixels of the image a place of the map stands for
_LACKS = ("patch_embedding", "trainable", "in_channels")


def build(config: ModelConfig, *, num_classes: int) -> nn.Module:
    """The network with its ImageNet weights, unless these are `none`, and a new transformer behind it."""
    refuse_options(config, _LACKS)
    image_size = config.image_size or native_size(config)
    if image_size % STRIDE:
        nearest = nearest_sizes(image_size, STRIDE)
        raise ValueError(
            f"image_size={image_size} is not divisible by {STRIDE}, a place of the map; nearest: {nearest}"
        )
    of_network = _of_network(config)
    network = timm_models.build(of_network, num_classes=1)
    weights = timm_models.weights_path(of_network)
    if weights is not None:
        load_weights(network, weights)
    network.reset_classifier(0)  # type: ignore[operator]
    vit_config = ViTConfig(
        **HYBRIDS[config.name] | {"image_size": image_size // STRIDE},
        num_classes=num_classes,
        pool=config.pool,
        **block_options(config),
    )
    return HybridViT(network, vit_config)


def native_size(config: ModelConfig) -> int:
    return timm_models.native_size(_of_network(config))


def image_spec(config: ModelConfig) -> ImageSpec | None:
    """What the network was trained with."""
    return timm_models.image_spec(_of_network(config))


def weights_path(config: ModelConfig) -> Path | None:
    """A run or a file of the whole; `build` reads the network's own."""
    return None if config.weights in (None, "none", "imagenet") else Path(config.weights)


def _of_network(config: ModelConfig) -> ModelConfig:
    weights = "none" if config.weights == "none" else "imagenet"
    return ModelConfig(name=config.name.removesuffix("_vit"), weights=weights, image_size=config.image_size)


class FeatureMap(nn.Module):
    """A convolutional network without its head, and always as it was trained: no gradient, no moving statistics."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network.requires_grad_(False)

    def train(self, mode: bool = True) -> "FeatureMap":
        return super().train(False)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, S, S) -> (B, 1280, S / 32, S / 32)."""
        return self.network.forward_features(images)  # type: ignore[operator]


class HybridViT(nn.Module):
    """Images (B, 3, S, S) -> logits (B, classes): a frozen feature map, then a Vision Transformer on it."""

    def __init__(self, network: nn.Module, config: ViTConfig) -> None:
        super().__init__()
        self.backbone = FeatureMap(network)
        self.transformer = VisionTransformer(config)

    def forward(self, images: Tensor) -> Tensor:
        return self.transformer(self.backbone(images))

    def forward_with_attention(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Logits (B, classes) and, per block, the attention weights (B, H, T, T) between the places of the map."""
        return self.transformer.forward_with_attention(self.backbone(images))

    def find_parts(self) -> Parts:
        return dataclasses.replace(parts(self.transformer), after_backbone=self.transformer)
