"""Images per second of `predict` against a loop that reads and classifies one image at a time.

    python -m benchmarks.predict_speed [--rounds 9] [--images 384]

vit_micro_4 at 32 px on the CPU, on JPEGs of 40 x 36 px, where the model is most of the work, and of 500 x 400 px, where
reading is. Both sides run in one process that is set up as `python main.py` is, and take turns; a ratio is the median
over rounds of the ratios within a round. `decoding` and `model` are the two parts of `predict`, each by itself.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch
from PIL import Image

from benchmarks.environment import describe, write_result
from benchmarks.photographs import blend, textures
from datasets.images import read_image
from datasets.transforms import Pipeline, preprocess
from inference.classifier import Classifier
from inference.images import ImageFile, read_pixels
from inference.predict import predict
from trainers.system import process
from vit import Blueprint, ModelConfig, build_model, image_spec

SIZES = {"40 x 36 px": (40, 36), "500 x 400 px": (500, 400)}
BATCH = 32  # what `predict` takes by default


def write_images(folder: Path, size: tuple[int, int], count: int) -> list[str]:
    rng, fields = np.random.default_rng(0), textures(8, 640)
    paths = [folder / f"{number}.jpg" for number in range(count)]
    for path in paths:
        Image.fromarray(blend(fields, *size, rng)).save(path, quality=90)
    return [str(path) for path in paths]


def ways(classifier: Classifier, paths: list[str]) -> dict[str, Callable[[], object]]:
    model, spec, names = classifier.model, classifier.spec, classifier.class_names
    pipeline = Pipeline(spec)
    images = torch.randn(BATCH, spec.in_channels, spec.image_size, spec.image_size)

    def one_by_one() -> list[str]:
        with torch.inference_mode():
            return [names[int(model(preprocess(read_image(path), spec)[None]).argmax())] for path in paths]

    return {
        "predict": lambda: [image.predicted for image in predict(classifier, map(ImageFile, paths), batch_size=BATCH)],
        "one_by_one": one_by_one,
        "decoding": lambda: [read_pixels(ImageFile(path), pipeline) for path in paths],
        "model": lambda: [classifier.logits(images) for _ in range(len(paths) // BATCH)],
    }


def measure(classifier: Classifier, size: tuple[int, int], *, images: int, rounds: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="predict-speed-") as folder:
        run = ways(classifier, write_images(Path(folder), size, images))
        if run["predict"]() != run["one_by_one"]():
            raise SystemExit("predict and the loop disagree about a class")
        seconds: dict[str, list[float]] = {name: [] for name in run}
        for _ in range(rounds):
            for name, work in run.items():
                start = time.perf_counter()
                work()
                seconds[name].append(time.perf_counter() - start)
    ratios = [loop / stream for loop, stream in zip(seconds["one_by_one"], seconds["predict"], strict=True)]
    return {
        "times_as_fast": round(median(ratios), 2),
        "lowest_and_highest": [round(min(ratios), 2), round(max(ratios), 2)],
        "ms_per_image": {name: round(1e3 * median(values) / images, 3) for name, values in seconds.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--images", type=int, default=384)
    options = parser.parse_args()
    process.settle()
    config = Blueprint(ModelConfig(name="vit_micro_4", weights="none", image_size=32)).resolved
    names = tuple("abcdefghij")
    model = build_model(config, num_classes=len(names)).eval()
    torch.nn.init.normal_(model.head.weight)  # zeros would call every image an "a"
    classifier = Classifier("vit_micro_4", model, image_spec(config), names, config)
    result = {
        "images": options.images,
        "rounds": options.rounds,
        "threads": torch.get_num_threads(),
        "results": {
            name: measure(classifier, size, images=options.images, rounds=options.rounds)
            for name, size in SIZES.items()
        },
    }
    write_result("predict_speed", result | {"environment": describe("pillow", "numpy")})


if __name__ == "__main__":
    main()
