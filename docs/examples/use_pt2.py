"""python use_pt2.py model.pt2 IMAGE...    Needs torch, numpy and Pillow; nothing of this project.

Opening a .pt2 file can run code that is in it: open only your own, or those of people you trust.
"""

import json
import sys

import numpy as np
import torch
from preprocess import preprocess

inside = {"class_names": "", "image_spec": ""}
model = torch.export.load(sys.argv[1], extra_files=inside).module()
spec, class_names = json.loads(inside["image_spec"]), json.loads(inside["class_names"])

images = torch.from_numpy(np.concatenate([preprocess(path, spec) for path in sys.argv[2:]]))  # any number at once
with torch.inference_mode():
    probabilities = model(images).softmax(dim=1)
for path, row in zip(sys.argv[2:], probabilities, strict=True):
    print(path, class_names[int(row.argmax())], f"{float(row.max()):.6f}")
