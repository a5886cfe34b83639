"""Measure what `export --int8` is worth for each model: times as fast as float32 in ONNX Runtime, and how often both
agree.

    python -m benchmarks.int8 FOLDER [--models resnet18 vit_stem_16 ...] [--threads 2] [--images 128]

FOLDER holds pictures. Each model has its own pretrained weights and a head that tells ten of them apart by nothing but
chance (random numbers), so that its answers lie as close together as they may: agreement is of the class it names.
Both networks take turns, one picture at a time and 32 at a time; a ratio is the median of 9 rounds. Every row is
written as it comes.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.environment import describe, write_result
from datasets.transforms import Pipeline
from inference.images import find_images, read_pixels
from quantization.int8 import BATCH, quantised, ratio
from trainers.system import process
from vit import Blueprint, ModelConfig
from vit.config import DEFAULT_WEIGHTS
from vit.export import OnnxModule, export_onnx, open_session
from vit.parts import parts

MODELS = ("vit_stem_16", "efficientnet_lite0", "resnet18", "vit_b_16")
WEIGHTS = DEFAULT_WEIGHTS | {"vit_stem_16": "tiny_imagenet"}


def measure(name: str, folder: Path, count: int, *, pretrained: bool) -> dict[str, Any]:
    weights = WEIGHTS[name] if pretrained else "none"
    blueprint = Blueprint(ModelConfig(name=name, weights=weights))
    model, spec = blueprint.build(num_classes=10).eval(), blueprint.image_spec
    torch.manual_seed(0)
    for head in parts(model).head:
        for parameter in head.parameters():
            torch.nn.init.normal_(parameter, std=0.05)
    pipeline = Pipeline(spec)
    read = (read_pixels(file, pipeline) for file in find_images([str(folder)]))
    pixels = [each for each in read if isinstance(each, np.ndarray)][:count]
    images = pipeline.normalise(torch.from_numpy(np.stack(pixels)))
    with tempfile.TemporaryDirectory() as place:
        files = Path(place, "float.onnx"), Path(place, "int8.onnx")
        export_onnx(model, spec, files[0], metadata={})
        kept: list[Any] = []
        quantise = {"calibration": images[: count // 2].numpy(), "kept": kept}
        export_onnx(model, spec, files[1], metadata={}, change=lambda proto: quantised(proto, **quantise))
        networks = [OnnxModule(open_session(file)) for file in files]
        first, second = (
            np.concatenate([network(batch).argmax(1).numpy() for batch in images.split(BATCH)]) for network in networks
        )
        alone, together = (ratio(networks, images[:size]) for size in (1, BATCH))
        megabytes = [round(file.stat().st_size / 1e6, 1) for file in files]
    return {
        "weights": weights, "image_size": spec.image_size, "times_as_fast_at_1": round(alone, 2),
        f"times_as_fast_at_{BATCH}": round(together, 2), "same_class": round(float((first == second).mean()), 4),
        "images": len(images), "megabytes": megabytes,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--random-weights", action="store_true", help="for speed alone, where weights are not at hand")
    options = parser.parse_args()
    process.settle()
    torch.set_num_threads(options.threads)
    rows: dict[str, Any] = {}
    for name in options.models:
        rows[name] = measure(name, options.folder, options.images, pretrained=not options.random_weights)
        write_result("int8", {"threads": options.threads, "models": rows} | describe("onnx", "onnxruntime"))


if __name__ == "__main__":
    main()
