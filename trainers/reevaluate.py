"""Score the best weights of a finished run again, from its directory and its data."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import torch

from datasets import build_dataloaders
from datasets.bundle import DataError
from datasets.splits import fingerprint
from trainers.checkpoint import checkpoints, read_checkpoint
from trainers.evaluation import score_split, write_predictions
from trainers.job import AMP_DTYPES
from trainers.run import load
from trainers.run_directory import read_json, read_run_config


@dataclass(frozen=True)
class Reevaluation:
    """Metrics of one split as fractions, and what training logged for the same weights (empty when it did not)."""

    run_dir: Path
    epoch: int
    n: int
    metrics: dict[str, float]
    logged: dict[str, float]
    predictions: Path


def evaluate_run(run_dir: Path, *, split: str) -> Reevaluation:
    """Evaluate as training did: same evaluator, batch size, precision and thread count give the same bits.

    Raises:
        DataError: the data set changed since the run, or has no such split.
    """
    config = read_run_config(run_dir)
    model, spec, class_names = load(run_dir)
    epoch = read_checkpoint(checkpoints(run_dir / "checkpoints", "best")[0])["epoch"]
    data = build_dataloaders(config.data, spec, seed=config.train.seed)
    if data.class_names != class_names:
        raise DataError(f"the classes changed since the run: it has {class_names}, the data {data.class_names}")
    trained_on, found = read_json(run_dir / "meta.json")["data_fingerprint"], fingerprint(data)
    if trained_on != found:
        raise DataError(
            f"the images of {config.data.source} changed since the run: fingerprint {found}, not {trained_on}"
        )
    if split not in data.dataloaders:
        raise DataError(f"{config.data.source} has no {split} split; it has {', '.join(data.dataloaders)}")
    device = torch.device(config.train.device)
    loader = data.dataloaders[split]
    scores = score_split(
        model.to(device), loader, num_classes=len(class_names), device=device, amp_dtype=AMP_DTYPES[config.train.amp]
    )
    predictions = run_dir / "eval" / f"{split}_predictions.csv"
    write_predictions(predictions, scores, loader.dataset, class_names)
    return Reevaluation(
        run_dir, epoch, data.dataset_sizes[split], scores.metrics, logged_metrics(run_dir, split, epoch), predictions
    )


def logged_metrics(run_dir: Path, split: str, epoch: int) -> dict[str, float]:
    """What the run wrote down for its best epoch: metrics.csv for val, summary.json for test."""
    if split == "test":
        test = read_json(run_dir / "summary.json")["test"] or {}
        return {name: value for name, value in test.items() if name != "n"}
    with open(run_dir / "metrics.csv", newline="", encoding="utf-8") as file:
        rows = {int(row["epoch"]): row for row in csv.DictReader(file)}
    return {name.removeprefix("val_"): float(value) for name, value in rows[epoch].items() if name.startswith("val_")}
