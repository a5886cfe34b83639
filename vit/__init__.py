"""Vision Transformers: written from scratch, torchvision's, and Hugging Face's, behind one door."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from common.errors import WeightsError
from common.image_spec import ImageSpec

if TYPE_CHECKING:  # for type checkers and editors
    from vit.attention_maps import attention_weights, relevance, rollout
    from vit.checkpoints import load_weights
    from vit.config import ModelConfig, ViTConfig
    from vit.factory import MODELS, Blueprint, build_model, image_spec
    from vit.fast import VisionTransformer, attention_path
    from vit.freezing import freeze

# Module -> names, imported on first use (PEP 562), so that `python main.py --help` never imports torch.
_EXPORTS = {
    "config": ("ModelConfig", "ViTConfig"),
    "fast": ("VisionTransformer", "attention_path"),
    "factory": ("MODELS", "Blueprint", "build_model", "image_spec"),
    "checkpoints": ("load_weights",),
    "freezing": ("freeze",),
    "attention_maps": ("attention_weights", "relevance", "rollout"),
}
__all__ = ["ImageSpec", "WeightsError", *(name for names in _EXPORTS.values() for name in names)]


def __getattr__(name: str) -> Any:
    for home, names in _EXPORTS.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
