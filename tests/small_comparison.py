"""Finished run directories made by hand, with the predictions that a test wants."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from small_run import CLASSES, META, SUMMARY, make_run

from comparison.runs import Arm, Comparison, Condition, FinishedRun, read_run
from trainers.storage.run_folder import read_json, write_json, write_metrics_csv


def finished_run(
    folder: Path,
    *,
    labels: Sequence[int],
    correct: Sequence[bool],
    seed: int = 0,
    classes: tuple[str, ...] = CLASSES,
    split: str = "test",
    source: str = "gone",
    paths: Sequence[str] | None = None,
    groups: Sequence[str] | None = None,
    train_images: int = 6,
    summary: dict | None = None,
    options: dict | None = None,
    **model_options,
) -> Path:
    """A run that is right about the scored images where `correct` says so, else one class further.

    Args:
        options: lr, batch_size, ... of config.json, whatever their section.
        model_options: fields of ModelConfig.
    """
    make_run(folder, classes=classes, seed=seed, **model_options)
    config = read_json(folder / "config.json")
    config["train"] |= {"seed": seed, "lr": 0.001}
    config["data"] |= {"source": source, "batch_size": 4}
    for name, value in (options or {}).items():
        next(section for section in config.values() if name in section)[name] = value
    write_json(folder / "config.json", config)
    best = {"epoch": 2, "accuracy": 0.5, "loss": 1.0}
    base = SUMMARY | {"epochs": 2, "seconds": 1.5 + seed, "images_seen": 2 * train_images, "best": best}
    write_json(folder / "summary.json", base | (summary or {}))
    machine = {"processor": "P <1>", "device": "cpu", "platform": "Linux"}
    git = {"commit": "0123456789abcdef", "dirty": False}
    write_json(folder / "meta.json", META | machine | {"git": git, "class_names": list(classes)})
    history = [
        {"epoch": epoch, "step": 3 * epoch, "lr": "", "val_loss": 2 - 0.5 * epoch, "val_accuracy": 0.2 * epoch,
         "seconds": 0.5 * epoch, "memory_mb": 300 + epoch}
        for epoch in range(3)
    ]  # fmt: skip
    write_metrics_csv(folder / "metrics.csv", history)
    names = paths or [f"{classes[label]}/{row:04d}.png" for row, label in enumerate(labels)]
    rows = [
        (name, classes[label], "test" if split == "test" else "val", f"h{name}", group)
        for name, label, group in zip(names, labels, groups or [""] * len(names), strict=True)
    ]
    rows += [(f"train/{row}.png", classes[row % len(classes)], "train", f"t{row}", "") for row in range(train_images)]
    _write_csv(folder / "split.csv", ("path", "label", "split", "content_hash", "group"), rows)
    (folder / "eval").mkdir()
    _write_csv(
        folder / "eval" / f"{split}_predictions.csv",
        ("path", "label", "predicted", "probabilities"),
        [_prediction(name, label, right, classes) for name, label, right in zip(names, labels, correct, strict=True)],
    )
    return folder


def _prediction(name: str, label: int, right: bool, classes: tuple[str, ...]) -> tuple[str, ...]:
    chosen = label if right else (label + 1) % len(classes)
    values = np.full(len(classes), 0.4 / max(1, len(classes) - 1))
    values[chosen] = 0.6
    return name, classes[label], classes[chosen], " ".join(f"{value:.7g}" for value in values)


def _write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    with open(path, "w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def arm_of(folder: Path, name: str, correct: np.ndarray, labels: Sequence[int], /, **options) -> Arm:
    """An arm with one run per row of `correct` (K, N)."""
    stem = hashlib.sha256(name.encode()).hexdigest()[:8]
    runs = [
        finished_run(folder / f"{stem}_{seed}", labels=labels, correct=row, seed=seed, **options)
        for seed, row in enumerate(correct)
    ]
    return Arm(name, tuple(map(read_run, runs)))


def arm_in_memory(name: str, correct: np.ndarray) -> Arm:
    """An arm without files, whose runs are right where `correct` (K, N) says so."""
    labels = np.zeros(correct.shape[1], np.int64)
    paths = tuple(map(str, range(len(labels))))
    common = {"run_dir": Path(), "config": {}, "summary": {"images_seen": 1}, "meta": {}, "history": [], "paths": paths}
    probabilities = np.zeros((len(labels), 2))
    return Arm(
        name,
        tuple(
            FinishedRun(
                seed=seed, labels=labels, predicted=(~row).astype(np.int64), probabilities=probabilities,
                class_names=("a", "b"), **common,
            )
            for seed, row in enumerate(correct)
        ),
    )  # fmt: skip


def comparison_of(*conditions: tuple[int | None, tuple[Arm, ...]], **fields) -> Comparison:
    defaults = {"data": "ants & bees", "protocol": (), "warnings": ()}
    return Comparison(conditions=tuple(Condition(*condition) for condition in conditions), **(defaults | fields))
