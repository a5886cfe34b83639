"""Tiny backbones of random weights, saved as repositories of the Hugging Face hub hold them: without a classifier."""

from pathlib import Path
from typing import Any

import torch
import transformers

VISION = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
VISION |= {"image_size": 16, "patch_size": 4}
DINO = {name: value for name, value in VISION.items() if name != "intermediate_size"} | {"mlp_ratio": 2}
WORDS = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 9}
BACKBONES = {  # what a hub repository without a classifier holds: the library's class, and its settings
    "dinov2": ("Dinov2Model", "Dinov2Config", DINO),
    "dinov2_with_registers": ("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", DINO),
    "dinov3_vit": ("DINOv3ViTModel", "DINOv3ViTConfig", VISION | {"num_register_tokens": 4}),
    "beit": ("BeitModel", "BeitConfig", VISION),
    "vit": ("ViTModel", "ViTConfig", VISION),
    "siglip": ("SiglipModel", "SiglipConfig", {"vision_config": VISION, "text_config": WORDS}),
    "clip": ("CLIPModel", "CLIPConfig", {"vision_config": VISION, "text_config": WORDS}),
}


def saved_backbone(kind: str, folder: Path) -> Any:
    """A model of random weights without a head, saved as a repository of the hub holds it."""
    torch.manual_seed(0)
    name, settings, values = BACKBONES[kind]
    model = getattr(transformers, name)(getattr(transformers, settings)(**values))
    model.save_pretrained(folder)
    return model.eval()
