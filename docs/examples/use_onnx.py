"""python use_onnx.py model.onnx IMAGE...    Needs onnxruntime, numpy and Pillow; no torch, nothing of this project."""

import json
import sys

import numpy as np
import onnxruntime
from preprocess import preprocess

session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
inside = session.get_modelmeta().custom_metadata_map
spec, class_names = json.loads(inside["image_spec"]), json.loads(inside["class_names"])

images = np.concatenate([preprocess(path, spec) for path in sys.argv[2:]])  # any number at once
(logits,) = session.run(["logits"], {"images": images})
exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
for path, row in zip(sys.argv[2:], probabilities, strict=True):
    print(path, class_names[row.argmax()], f"{row.max():.6f}")
