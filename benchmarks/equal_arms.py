"""Count how often two equal models on photographs are called different.

    python -m benchmarks.equal_arms FOLDER [--seeds 16] [--labels 50] [--epochs 6] [--out runs/equal_arms]

Trains a ViT from scratch and a pretrained one on FOLDER, each with many seeds at each learning rate that `compare`
tries, and keeps their predictions. Then it simulates comparisons of an arm with itself: a split draws the images that
are scored, 100 to choose a rate and 300 for the verdict, from all held-out ones; each side draws three seeds that the
other has not. A side is not tuned, or tuned: it takes at its first seed the rate that is best on the 100 images, by
accuracy or, as with `--minutes`, by log loss, and keeps it. Runs that are finished are read, not trained again.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.environment import describe, write_result
from comparison.planning import LARGE_GRID
from datasets.config import DataConfig
from trainers.config import OutputConfig, RunConfig, TrainConfig, rank_key
from trainers.run import train
from trainers.statistics import is_claim, paired_difference
from trainers.storage.run_folder import RunFolder
from trainers.storage.run_result import predictions_of
from vit import ModelConfig

ARMS = {"from scratch": "none", "pretrained": "tiny_imagenet"}
VAL, TEST, SEEDS = 100, 300, 3
USUAL = LARGE_GRID[1]
"""Rate of the arms that are not tuned."""


def held_out(options: argparse.Namespace, weights: str, seed: int, lr: float) -> Any:
    """Train a run unless it is there; return its hits and log losses (2, N)."""
    name = f"{weights}_s{seed}_{lr:g}"
    run = options.out / Path(options.folder).name / name
    if not RunFolder(run).is_finished:
        train(
            RunConfig(
                ModelConfig("vit_stem_16", weights=weights),
                DataConfig(str(options.folder), labels_per_class=options.labels),
                TrainConfig(epochs=options.epochs, lr=lr, seed=seed, device="cpu"),
                OutputConfig(output_dir=options.out, run_name=name, tb="scalars"),
            )
        )
    found = predictions_of(RunFolder(run), "test")
    of_truth = found.probabilities[np.arange(len(found.labels)), found.labels]
    return np.stack([found.predicted == found.labels, -np.log(np.maximum(of_truth, 1e-12))])


def share_told_apart(found: Any, *, tuned: str, times: int) -> float:
    """Return the share of simulated comparisons of a model with itself that name a winner.

    `found`: (rates, seeds, 2, N)."""
    generator, told = np.random.default_rng(0), 0
    right = found[:, :, 0].astype(bool)
    for _ in range(times):
        images = generator.permutation(right.shape[2])[: VAL + TEST]
        seeds = generator.permutation(right.shape[1])[: 2 * SEEDS].reshape(2, SEEDS)
        sides = []
        for side in seeds:
            runs = found[:, side[0]][:, :, images[:VAL]].mean(axis=2)
            scores = [{"accuracy": accuracy, "loss": loss} for accuracy, loss in runs]
            rate = scores.index(max(scores, key=rank_key(tuned))) if tuned else LARGE_GRID.index(USUAL)
            sides.append(right[rate][side][:, images[VAL:]])
        told += is_claim(paired_difference(*sides))
    return told / times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--labels", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--times", type=int, nargs="+", default=[300, 2000])
    parser.add_argument("--out", type=Path, default=Path("runs/equal_arms"))
    options = parser.parse_args()
    rows = []
    for arm, weights in ARMS.items():
        found = np.array([[held_out(options, weights, seed, lr) for seed in range(options.seeds)] for lr in LARGE_GRID])
        right = found[:, :, 0]
        of_rates = right.mean(axis=(1, 2)).round(4).tolist()
        spread = right.mean(axis=2).std(axis=1, ddof=1).round(4).tolist()
        for tuned in ("", "accuracy", "loss"):
            told = {times: share_told_apart(found, tuned=tuned, times=times) for times in options.times}
            rows.append({"arm": arm, "tuned": tuned, "told_apart": told, "accuracy": of_rates, "sd": spread})
    write_result("equal_arms", {"folder": options.folder.name, "images": right.shape[2], "rows": rows, **describe()})


if __name__ == "__main__":
    main()
