"""python use_picture.py model.onnx IMAGE...    Needs onnxruntime, numpy and Pillow; no torch, none of this project."""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def decoded(path):
    """uint8 (H, W, 3): upright, transparent pixels over white, 16 bits, and floats from 0 to 1, scaled down."""
    image = ImageOps.exif_transpose(Image.open(path))
    if image.mode[0] in "IF":
        values, full = np.asarray(image).astype(np.float32), 1 if image.mode == "F" else 65_535
        image = Image.fromarray(np.rint(values * (255 / full)).clip(0, 255).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return np.asarray(image.convert("RGB"))


session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
names = json.loads(session.get_modelmeta().custom_metadata_map["class_names"])
judged = [output.name for output in session.get_outputs() if output.name in ("set", "unknown")]  # after `evaluate`
for path in sys.argv[2:]:
    outputs = ["probabilities", "label", *judged]
    found = dict(zip(outputs, session.run(outputs, {"picture": decoded(path)}), strict=True))
    print(path, found["label"][0], f"{found['probabilities'].max():.6f}", end="")
    if "set" in found:
        print(" one of " + " | ".join(name for name, held in zip(names, found["set"][0], strict=True) if held), end="")
    print("; unknown" if found.get("unknown") else "")
