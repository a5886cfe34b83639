"""Cost of scoring a large split: memory and time of a pass without a model, and of writing its predictions.

python -m benchmarks.many_classes --images 192000 --classes 1000
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import torch
from ignite.engine import Engine

from benchmarks.environment import describe, write_result
from trainers.engine.evaluation import scores_of, write_predictions
from trainers.engine.handlers import peak_memory_mb, reset_peak_memory
from trainers.engine.metrics import attach_metrics

BATCH = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=192_000)
    parser.add_argument("--classes", type=int, default=1_000)
    options = parser.parse_args()
    cpu, generator = torch.device("cpu"), torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(BATCH, options.classes, generator=generator)
    labels = torch.randint(options.classes, (BATCH,), generator=generator)
    evaluator = Engine(lambda engine, batch: (logits.roll(engine.state.iteration, 1), labels))
    attach_metrics(evaluator)
    names = [f"n{number:08d}" for number in range(options.classes)]
    images = SimpleNamespace(path=lambda row: f"{names[row % options.classes]}/{row}.JPEG")
    reset_peak_memory(cpu)
    before, begun = peak_memory_mb(cpu), time.perf_counter()
    evaluator.run([None] * (options.images // BATCH))
    scored = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        scores = scores_of(evaluator.state.outputs, evaluator.state.metrics)
        size = write_predictions(Path(folder), "test", scores, images, names).stat().st_size
    result = {
        "images": options.images,
        "classes": options.classes,
        "seconds_scored": round(scored - begun, 1),
        "seconds_written": round(time.perf_counter() - scored, 1),
        "megabytes_more": round((peak_memory_mb(cpu) or 0) - (before or 0)),
        "file_megabytes": round(size / 1e6, 1),
    }
    write_result(f"many_classes_{options.classes}", describe("numpy") | result)


if __name__ == "__main__":
    main()
