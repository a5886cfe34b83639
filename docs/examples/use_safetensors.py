"""python use_safetensors.py model.safetensors IMAGE...    Needs torch, torchvision, safetensors, numpy and Pillow.

The scratch ViTs are exported in the names of torchvision's class, which computes the same from the same tensors.
"""

import json
import re
import sys

import numpy as np
import torch
from preprocess import preprocess
from safetensors import safe_open
from torchvision.models import VisionTransformer

with safe_open(sys.argv[1], "pt") as file:
    weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
    inside = file.metadata()
spec, class_names = json.loads(inside["image_spec"]), json.loads(inside["class_names"])

width, _, patch, _ = weights["conv_proj.weight"].shape
depth = 1 + max(int(found[1]) for name in weights if (found := re.search(r"encoder_layer_(\d+)", name)))
mlp = next(len(tensor) for name, tensor in weights.items() if re.search(r"layer_0\.mlp\.(0|linear_1)\.weight", name))
model = VisionTransformer(
    spec["image_size"], patch, depth, int(inside["num_heads"]), width, mlp, num_classes=len(class_names),
    norm_layer=lambda size: torch.nn.LayerNorm(size, eps=float(inside["layer_norm_eps"])),
).eval()  # fmt: skip
model.load_state_dict(weights)

images = torch.from_numpy(np.concatenate([preprocess(path, spec) for path in sys.argv[2:]]))
with torch.inference_mode():
    probabilities = model(images).softmax(dim=1)
for path, row in zip(sys.argv[2:], probabilities, strict=True):
    print(path, class_names[int(row.argmax())], f"{float(row.max()):.6f}")
