"""python use_safetensors.py model.safetensors IMAGE...    Needs torch, torchvision, safetensors, numpy and Pillow.

Scratch ViTs with a class token are exported in the names of torchvision's class, which computes the same from the same
tensors; torchvision's own models keep theirs. Any other (a stem of convolutions, the mean of the patches, hf:, timm:)
is built by this project, so for these it must be importable: PYTHONPATH=path/to/the/project.
"""

import json
import re
import sys
from pathlib import Path

import numpy as np
import torch
import torchvision
from preprocess import preprocess
from safetensors import safe_open


def as_torchvisions_vit(weights, inside, spec, classes):
    """Build the class that a scratch ViT with a class token is exported for."""
    width, _, patch, _ = weights["conv_proj.weight"].shape
    depth = 1 + max(int(found[1]) for name in weights if (found := re.search(r"encoder_layer_(\d+)", name)))
    mlp = next(len(tensor) for name, tensor in weights.items() if re.search(r"r_0\.mlp\.(0|linear_1)\.weight", name))
    return torchvision.models.VisionTransformer(
        spec["image_size"], patch, depth, int(inside["num_heads"]), width, mlp, num_classes=classes,
        norm_layer=lambda size: torch.nn.LayerNorm(size, eps=float(inside["layer_norm_eps"])),
    )  # fmt: skip


def open_model(file):
    """(model in evaluation mode, its image spec, its class names)"""
    with safe_open(file, "pt") as opened:
        weights = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  # no mapping
        inside = opened.metadata()
    spec, class_names, config = (json.loads(inside[name]) for name in ("image_spec", "class_names", "config"))
    if inside["names"] == "torchvision":
        model = as_torchvisions_vit(weights, inside, spec, len(class_names))
    elif (name := config["model"]["name"]) in torchvision.models.list_models():
        size = {"image_size": spec["image_size"]} if "conv_proj.weight" in weights else {}
        model = torchvision.models.get_model(name, weights=None, num_classes=len(class_names), **size)
    else:
        sys.path.append(str(Path(__file__).resolve().parents[2]))  # this project, unless the example was copied
        from inference.classifier import open_classifier

        return open_classifier(file, device="cpu").model, spec, class_names
    model.load_state_dict(weights)
    return model.eval(), spec, class_names


model, spec, class_names = open_model(sys.argv[1])
images = torch.from_numpy(np.concatenate([preprocess(path, spec) for path in sys.argv[2:]]))
with torch.inference_mode():
    probabilities = model(images).softmax(dim=1)
for path, row in zip(sys.argv[2:], probabilities, strict=True):
    print(path, class_names[int(row.argmax())], f"{float(row.max()):.6f}")
