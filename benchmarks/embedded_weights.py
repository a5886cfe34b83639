"""Which pretraining makes the best embedded weights: digits with 10 labels per class, judged on validation images.

    python -m benchmarks.embedded_weights RUN [RUN ...] [--labels 10] [--seeds 3]

Each RUN is a finished `train --data fashion_mnist --model vit_nano_8 ...`. Its best weights, and none at all, are
fine-tuned on digits under the protocol of `compare`: the same images seen, every rate of the grid. Every try is kept in
benchmarks/results/embedded_weights.json; the test images of digits are not looked at.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from benchmarks.environment import describe, write_result
from comparison.plan import SMALL_GRID
from datasets.config import DataConfig
from trainers import console
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.run import train
from trainers.run_directory import read_json, read_run_config
from vit.config import ModelConfig

IMAGES_SEEN = 6_000


def judge(weights: str, *, labels: int, seeds: int, folder: Path) -> dict[str, Any]:
    """Validation accuracy by learning rate: mean and standard deviation over seeds, in percent."""
    rows = {}
    for lr in SMALL_GRID:
        accuracies = []
        for seed in range(seeds):
            config = RunConfig(
                model=ModelConfig(name="vit_nano_8", weights=weights),
                data=DataConfig(source="digits", labels_per_class=labels, workers=0),
                train=TrainConfig(lr=lr, seed=seed, epochs=IMAGES_SEEN // (10 * labels)),
                output=OutputConfig(output_dir=folder),
            )
            with console.quiet():
                accuracies.append(100 * train(config).val["accuracy"])
        rows[f"{lr:g}"] = {"val_accuracy": round(mean(accuracies), 2), "sd": round(stdev(accuracies), 2)}
    best = max(rows, key=lambda lr: rows[lr]["val_accuracy"])
    print(f"{weights}: {rows[best]['val_accuracy']} % at lr {best}; all: {rows}", flush=True)
    return {"best_lr": float(best), **rows[best], "by_lr": rows}


def pretraining(run: Path) -> dict[str, Any]:
    config, summary = read_run_config(run), read_json(run / "summary.json")
    return {
        "augment": config.data.augment, "epochs": config.train.epochs, "lr": config.train.lr,
        "batch_size": config.data.batch_size, "mixup": config.train.mixup, "seconds": summary["seconds"],
        "fashion_mnist_test_accuracy": summary["test"]["accuracy"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--labels", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        tries: list[dict[str, Any]] = [
            {"weights": "none"} | judge("none", labels=options.labels, seeds=options.seeds, folder=Path(name))
        ]
        for run in options.runs:
            scores = judge(str(run), labels=options.labels, seeds=options.seeds, folder=Path(name))
            tries.append({"weights": run.name, "pretraining": pretraining(run), **scores})
    result = {
        "data": f"digits, {options.labels} labels per class, val accuracy of the best epoch",
        "images_seen": IMAGES_SEEN, "seeds": options.seeds, "threads": torch.get_num_threads(), "tries": tries,
    }  # fmt: skip
    write_result("embedded_weights", {**result, **describe()})


if __name__ == "__main__":
    main()
