"""Seconds in which EfficientNet-Lite0 sees 1,000 images: eager PyTorch, as the application runs it, and ONNX Runtime.

    python -m benchmarks.frozen_backbone [--rounds 5] [--threads 1]

`eager` is timm's model as it comes, `channels last` what `build_model` returns, both in float32; `bf16` is the latter
under autocast, which is what a run takes where the processor computes in bfloat16. Batches of 32 random images; all
take turns in one process, and the figure is the median over rounds. The weights are random: the time does not depend on
them. Needs `pip install -r requirements-extras.txt`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import onnxruntime
import torch

from benchmarks.environment import describe, write_result
from vit import ImageSpec, ModelConfig, build_model
from vit.export import export_onnx

BATCH, SIZES = 32, (128, 224)


def ways(size: int, threads: int) -> dict[str, Callable[[], object]]:
    images = torch.randn(BATCH, 3, size, size)
    channels_last = build_model(ModelConfig(name="efficientnet_lite0", weights="none"), num_classes=1000).eval()
    eager = build_model(ModelConfig(name="efficientnet_lite0", weights="none"), num_classes=1000).eval()
    eager.to(memory_format=torch.contiguous_format)
    with tempfile.TemporaryDirectory(prefix="frozen-backbone-") as folder:
        file = Path(folder) / "model.onnx"
        export_onnx(eager, ImageSpec(image_size=size), file, metadata={})
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def in_bf16() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return channels_last(images)

    return {
        "eager": lambda: eager(images),
        "channels last": lambda: channels_last(images),
        "channels last, bf16": in_bf16,
        "ONNX Runtime": lambda: session.run(None, {"images": images.numpy()}),
    }


@torch.inference_mode()
def measure(size: int, *, rounds: int, threads: int) -> dict[str, dict[str, float]]:
    run = ways(size, threads)
    seconds: dict[str, list[float]] = {name: [] for name in run}
    for number in range(rounds + 1):
        for name, work in run.items():
            start = time.perf_counter()
            work()
            if number:  # the first round warms up
                seconds[name].append((time.perf_counter() - start) * 1000 / BATCH)
    return {
        name: {"median": round(median(times), 1), "lowest": round(min(times), 1), "highest": round(max(times), 1)}
        for name, times in seconds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    result = {
        **describe("timm", "onnxruntime"),
        "threads": arguments.threads,
        "seconds_per_1000_images": {
            f"{size} px": measure(size, rounds=arguments.rounds, threads=arguments.threads) for size in SIZES
        },
    }
    write_result("frozen_backbone", result)


if __name__ == "__main__":
    main()
