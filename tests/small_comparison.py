"""Finished run directories made by hand, with the predictions that a test wants."""

import csv
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from small_run import CLASSES, META, SUMMARY, make_run

from comparison.results import Comparison, compared, judge, rows_of, tables_of
from comparison.runs import FinishedRun, read_run, scored_images
from trainers.storage.run_folder import RunFolder, read_json, write_json
from trainers.storage.run_result import SavedPredictions


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
    base = SUMMARY | {"epochs": 2, "seconds": 1.5 + seed, "images_seen": 10 * train_images, "best": best}
    base |= {"images": {"train": train_images, "val": 3, "test": len(labels)}}
    write_json(folder / "summary.json", base | (summary or {}))
    machine = {"processor": "P <1>", "device": "cpu", "platform": "Linux"}
    git = {"commit": "0123456789abcdef", "dirty": False}
    write_json(folder / "meta.json", META | machine | {"git": git, "class_names": list(classes)})
    history = [
        {"epoch": epoch, "step": 3 * epoch, "lr": "", "val_loss": 2 - 0.5 * epoch, "val_accuracy": 0.2 * epoch,
         "seconds": 0.5 * epoch, "memory_mb": 300 + epoch}
        for epoch in range(3)
    ]  # fmt: skip
    RunFolder(folder).write_history(history)
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


def arm_of(folder: Path, name: str, correct: np.ndarray, labels: Sequence[int], /, **options) -> list[FinishedRun]:
    """The runs of an arm, one per row of `correct` (K, N)."""
    stem = hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()[:8]
    folders = [
        finished_run(folder / f"{stem}_{seed}", labels=labels, correct=row, seed=seed, **options)
        for seed, row in enumerate(correct)
    ]
    return [replace(read_run(each), arm=name) for each in folders]


def arm_in_memory(
    name: str, correct: np.ndarray, labels: np.ndarray | None = None, *, passes: float = 1, history: Sequence = ({},)
) -> list[FinishedRun]:
    """The runs of an arm without files, which are right where `correct` (K, N) says so, else one class further."""
    classes, images = ("a", "b", "c"), correct.shape[1]
    labels = np.zeros(images, np.int64) if labels is None else labels
    costs = {
        "images_seen": passes * images,
        "images": {"train": images},
        "seconds": 1.0,
        "parameters": 1,
        "trainable": 1,
        "best": {"epoch": 1},
    }
    train = {"lr": 0.1, "epochs": 1, "start_head": None}
    known = {"config": {"train": train}, "summary": costs, "meta": {}, "history": list(history)}
    runs = []
    for seed, row in enumerate(correct):
        saved = (tuple(map(str, range(images))), labels, (labels + ~row) % 3, np.full((images, 3), 1 / 3), classes)
        table = scored_images(SavedPredictions(*saved), {})
        runs.append(FinishedRun(RunFolder(Path()), seed, **known, class_names=classes, predictions=table, arm=name))
    return runs


def runs_of(*conditions: tuple[int | None, Sequence[list[FinishedRun]]]) -> list[FinishedRun]:
    """The runs of arms under each condition (labels per class, arms)."""
    return [replace(run, labels_per_class=labels) for labels, arms in conditions for arm in arms for run in arm]


def pairs_in_memory(*conditions: Sequence[np.ndarray]) -> list:
    """The verdicts on the pairs of arms a, b, ... that are right where `correct` (K, N) of each says so."""
    arms = [[arm_in_memory(*named) for named in zip("abcd", condition, strict=False)] for condition in conditions]
    return rows_of(judge(*tables_of(runs_of(*enumerate(arms)))).assign(scored="test"))


def comparison_of(*conditions: tuple[int | None, Sequence[list[FinishedRun]]], **fields) -> Comparison:
    return compared(**({"data": "ants & bees", "runs": runs_of(*conditions)} | fields))
