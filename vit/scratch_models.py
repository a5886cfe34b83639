"""Build the ViTs of `vit/model.py` from a name of `VIT_SHAPES` and the options of a run."""

from pathlib import Path

from torch import nn

from vit.anatomy import Anatomy
from vit.config import VIT_SHAPES, ModelConfig, ViTConfig, refuse_options
from vit.model import VisionTransformer


def build(config: ModelConfig, *, num_classes: int) -> nn.Module:
    shape = VIT_SHAPES[config.name]
    options = {name: getattr(config, name) for name in ViTConfig.__dataclass_fields__ if hasattr(config, name)}
    fixed = [name for name in ("pool", "patch_embedding") if shape.get(name, options[name]) != options[name]]
    refuse_options(config, fixed)
    given = {name: value for name, value in options.items() if value is not None and name not in fixed}
    return VisionTransformer(ViTConfig(**shape | given, num_classes=num_classes))


def native_size(config: ModelConfig) -> int:
    return VIT_SHAPES[config.name].get("image_size", 224)


def image_spec(config: ModelConfig) -> None:
    """Return None, for only a file of weights says it."""


def weights_path(config: ModelConfig) -> Path | None:
    return Path(config.weights) if config.weights else None


def anatomy(model: nn.Module) -> Anatomy | None:
    if not isinstance(model, VisionTransformer):
        return None
    before = [] if model.pre_logits is None else [model.pre_logits, nn.Tanh()]
    first, _ = next(model.embedding.patches.named_parameters())
    return Anatomy(
        blocks=[*model.blocks],
        norms=[model.norm],
        head=[*before, model.head],
        head_name="head",
        stem=f"embedding.patches.{first}",
        family="ours",
        positions="embedding.positions",
        num_heads=model.config.num_heads,
    )
