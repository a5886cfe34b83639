"""The ViTs of `vit/model.py`: from a name of `VIT_SHAPES` and the options of a run to a model with new weights."""

from pathlib import Path

from torch import nn

from vit.config import VIT_SHAPES, ModelConfig, ViTConfig, refuse_options
from vit.model import VisionTransformer


def build(config: ModelConfig, *, num_classes: int) -> nn.Module:
    shape = VIT_SHAPES[config.name]
    own = {name: shape.get(name, getattr(config, name)) for name in ("pool", "patch_embedding")}
    refuse_options(config, tuple(name for name in own if getattr(config, name) != own[name]))
    return VisionTransformer(
        ViTConfig(
            **shape | own | {"image_size": config.image_size or native_size(config)},
            num_classes=num_classes,
            in_channels=config.in_channels,
            representation_size=config.representation_size,
            dropout=config.dropout,
            attention_dropout=config.attention_dropout,
            stochastic_depth=config.stochastic_depth,
            layer_norm_eps=config.layer_norm_eps or 1e-6,
            attention=config.attention,
        )
    )


def native_size(config: ModelConfig) -> int:
    return VIT_SHAPES[config.name].get("image_size", 224)


def image_spec(config: ModelConfig) -> None:
    """The file of weights says it, if there is one."""


def weights_path(config: ModelConfig) -> Path | None:
    return None if config.weights in (None, "none") else Path(config.weights)
