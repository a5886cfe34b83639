"""python quantise.py model.onnx FOLDER small.onnx    Needs onnx, onnxruntime, numpy and Pillow; no torch.

Compute in 8 bits what `export RUN --format onnx --input tensor` wrote, by ONNX Runtime's static quantisation. Every
second picture of the folder gives the ranges; on the others both files are compared. Some networks are no faster in 8
bits, and some, such as EfficientNet, name other classes: read the last line before you use the file.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnxruntime import quantization
from preprocess import preprocess


class Ranges(quantization.CalibrationDataReader):
    def __init__(self, images):
        self.rows = iter([{"images": image[None]} for image in images])

    def get_next(self):
        return next(self.rows, None)


def answers(file, images):
    """Return the class of each image, and the seconds that all took one by one."""
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    start = time.perf_counter()
    classes = [session.run(["logits"], {"images": image[None]})[0].argmax() for image in images]
    return np.array(classes), time.perf_counter() - start


source, folder, target = sys.argv[1:]
model = onnx.load(source)
spec = json.loads(next(each.value for each in model.metadata_props if each.key == "image_spec"))
pictures = sorted(path for path in Path(folder).rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
images = np.concatenate([preprocess(path, spec) for path in pictures])
quantization.quant_pre_process(source, target, skip_symbolic_shape=True)
quantization.quantize_static(
    target,
    target,
    Ranges(images[::2]),
    per_channel=True,
    reduce_range=True,  # 7 bits: sums of 8 bits overflow on processors without VNNI
    op_types_to_quantize=["Conv", "Gemm", "MatMul"],
)
small = onnx.load(target)
del small.metadata_props[:]
# Not the hash of the other file, nor what `evaluate` fitted to the other network.
small.metadata_props.extend(each for each in model.metadata_props if each.key not in ("sha256", "answers"))
onnx.save(small, target)
(ours, seconds), (theirs, fewer) = (answers(file, images[1::2]) for file in (source, target))
print(f"the same class for {np.mean(ours == theirs):.1%} of {len(ours)} pictures, {seconds / fewer:.2f} times as fast")
