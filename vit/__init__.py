"""Vision Transformers: written from scratch, torchvision's, and Hugging Face's, behind one door."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers and editors
    from common.errors import WeightsError
    from common.image_spec import ImageSpec
    from vit.attention_maps import attention_weights, relevance, rollout
    from vit.checkpoints import load_weights
    from vit.config import ModelConfig, ViTConfig
    from vit.factory import MODELS, Blueprint, build_model, image_spec
    from vit.fast import VisionTransformer, attention_path
    from vit.freezing import freeze

# Module -> names, imported on first use (PEP 562), so that `python main.py --help` never imports torch.
_EXPORTS = {
    "common.image_spec": ("ImageSpec",),
    "vit.config": ("ModelConfig", "ViTConfig"),
    "vit.fast": ("VisionTransformer", "attention_path"),
    "vit.factory": ("MODELS", "Blueprint", "build_model", "image_spec"),
    "common.errors": ("WeightsError",),
    "vit.checkpoints": ("load_weights",),
    "vit.freezing": ("freeze",),
    "vit.attention_maps": ("attention_weights", "relevance", "rollout"),
}
__all__ = [name for names in _EXPORTS.values() for name in names]


def __getattr__(name: str) -> Any:
    for home, names in _EXPORTS.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
