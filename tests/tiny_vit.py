"""A ViT of 10 tokens, with weights and pictures for it."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from vit.config import ViTConfig
from vit.model import VisionTransformer

TINY = ViTConfig(image_size=12, patch_size=4, num_classes=5, embed_dim=24, depth=3, num_heads=3)


def tiny(**options: Any) -> ViTConfig:
    return dataclasses.replace(TINY, **options)


def trained(config: ViTConfig = TINY) -> VisionTransformer:
    """A model none of whose parameters is zero or one any more, in evaluation mode."""
    torch.manual_seed(0)
    model = VisionTransformer(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


def pictures(config: ViTConfig = TINY, *, batch: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, config.in_channels, config.image_size, config.image_size, generator=generator)


def assert_close(mine: Any, theirs: Any, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(mine, theirs, atol=tolerance, rtol=tolerance)
