"""How much time cached features save: the same linear probe with and without them, from start of Python to exit.

    python -m benchmarks.linear_probe [--data-root data] [--epochs 3] [--rounds 3]

A random-weight vit_b_16 on hymenoptera at 96 pixels: the time does not depend on the weights. Both train on the same
fixed images and validate as often. The figures for 10 epochs are computed, not run: each side's own time, and its own
time per further epoch. Medians over rounds, in which the two take turns.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.environment import describe, write_result
from benchmarks.whole_process import seconds_of


def run(folder: Path, *, cache: str, epochs: int, data_root: str, amp: str) -> float:
    return seconds_of(
        "main.py", "train", "--data", "hymenoptera", "--data-root", data_root, "--model", "vit_b_16",
        "--weights", "none", "--trainable", "head", "--image-size", 96, "--augment", "none", "--epochs", epochs,
        "--cache-features", cache, "--output-dir", folder, "--run-name", cache, "--device", "cpu", "--amp", amp,
    )  # fmt: skip


def best_accuracy(run_dir: Path) -> float:
    with open(run_dir / "metrics.csv", newline="", encoding="utf-8") as file:
        return max(float(row["val_accuracy"]) for row in csv.DictReader(file))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--amp", choices=("auto", "off", "bf16"), default="auto")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    took: dict[tuple[str, int], list[float]] = defaultdict(list)
    accuracy = {}
    with tempfile.TemporaryDirectory() as name:
        for number in range(options.rounds):
            # One epoch as well: the difference is what a further epoch costs.
            for epochs in (1, options.epochs):
                for cache in ("on", "off"):
                    folder = Path(name) / f"{number}_{epochs}"
                    took[cache, epochs].append(
                        run(folder, cache=cache, epochs=epochs, data_root=options.data_root, amp=options.amp)
                    )
                    accuracy[cache] = best_accuracy(folder / "hymenoptera" / cache)
                    print(f"{epochs} epochs, cache {cache}: {took[cache, epochs][-1]:.1f} s", flush=True)
                    shutil.rmtree(folder / "hymenoptera" / cache / "checkpoints")
    seconds = {key: median(values) for key, values in took.items()}
    ratios = [off / on for on, off in zip(took["on", options.epochs], took["off", options.epochs], strict=True)]
    per_epoch = {
        cache: (seconds[cache, options.epochs] - seconds[cache, 1]) / (options.epochs - 1) for cache in ("on", "off")
    }
    ten = {cache: seconds[cache, options.epochs] + (10 - options.epochs) * per_epoch[cache] for cache in per_epoch}
    result: dict[str, Any] = {
        "model": "vit_b_16, random weights, 96 px",
        "data": "hymenoptera",
        "amp": options.amp,
        "epochs": options.epochs,
        "seconds_cached": round(seconds["on", options.epochs], 1),
        "seconds_uncached": round(seconds["off", options.epochs], 1),
        "times_faster": round(median(ratios), 2),
        "times_faster_in_each_round": [round(ratio, 2) for ratio in ratios],
        "times_faster_in_10_epochs_computed": round(ten["off"] / ten["on"], 2),
        "seconds_per_further_epoch": {cache: round(value, 2) for cache, value in per_epoch.items()},
        "best_val_accuracy": accuracy,
        "threads": torch.get_num_threads(),
        "load_average_at_start": load,
        **describe(),
    }
    write_result("linear_probe", result)


if __name__ == "__main__":
    main()
