"""Vision Transformers: written from scratch, torchvision's, and Hugging Face's, behind one door."""

from importlib import import_module
from typing import Any

# name -> module. Imported on first use (PEP 562), so that `python main.py --help` never imports torch.
_EXPORTS = {
    "ImageSpec": "config",
    "ModelConfig": "config",
    "ViTConfig": "config",
    "VisionTransformer": "model",
    "attention_path": "fast",
    "MODELS": "factory",
    "Blueprint": "factory",
    "build_model": "factory",
    "image_spec": "factory",
    "WeightsError": "errors",
    "load_weights": "checkpoints",
    "freeze": "parts",
    "attention_weights": "attention_maps",
    "relevance": "attention_maps",
    "rollout": "attention_maps",
}
__all__ = list(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)
