"""Vision Transformers: written from scratch, torchvision's, timm's and Hugging Face's, each built by its name."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from common.errors import WeightsError
from common.image_spec import ImageSpec
from vit.config import ModelConfig

if TYPE_CHECKING:  # for type checkers, to which `as` says that a name is handed on
    from vit.checkpoints import load_weights as load_weights
    from vit.factory import Blueprint as Blueprint
    from vit.factory import build_model as build_model
    from vit.factory import image_spec as image_spec
    from vit.model import VisionTransformer as VisionTransformer

_HOMES = {
    "Blueprint": "factory", "build_model": "factory", "image_spec": "factory", "VisionTransformer": "model",
    "load_weights": "checkpoints",
}  # fmt: skip
__all__ = ["ImageSpec", "ModelConfig", "WeightsError", *_HOMES]


def __getattr__(name: str) -> Any:
    """Import a name that needs torch at first use (PEP 562), so that `--help` stays fast."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
