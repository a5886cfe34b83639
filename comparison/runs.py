"""Finished runs as they lie on disk, and what makes them comparable: the same data, and arms with the same seeds."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from datasets.errors import DataError
from datasets.text import some
from trainers.checkpoint import checkpoints
from trainers.errors import CheckpointError
from trainers.run_directory import read_json
from vit.config import TORCHVISION_MODELS

SPLITS = ("test", "val_last", "val")
SCORED = {"test": "test", "val_last": "validation (last epoch)", "val": "validation"}
"""What a sentence calls the images that were scored."""

# Where results are kept, what computes them, and what `require_same_data` compares by itself.
_IRRELEVANT = {
    "model": {"attention", "weights_source"},
    "data": {
        "source", "root", "split", "split_seed", "val_fraction", "test_fraction", "labels_per_class", "fraction",
        "on_bad_image", "cache", "workers",
    },
    "train": {
        "seed", "device", "save_every", "log_every", "checkpoint_activations", "compile", "cache_features", "loop",
    },
}  # fmt: skip
# In a name these follow from others: a pretrained model brings its own normalisation.
_DERIVED = {"mean", "std", "layer_norm_eps"}
_NAMING = ("weights", "trainable", "image_size", "lr", "augment", "epochs", "optimizer", "batch_size")


@dataclass(frozen=True)
class Run:
    """One finished run directory, read from its files. N scored images, sorted by path; C classes."""

    run_dir: Path
    seed: int
    config: dict[str, Any]
    summary: dict[str, Any]
    meta: dict[str, Any]
    history: list[dict[str, Any]]
    """metrics.csv: numbers, None where a cell is empty."""
    scored: str
    """test; val: the best epoch on the images that chose it; val_last: the last epoch on them."""
    paths: tuple[str, ...]
    labels: np.ndarray  # int64 (N,)
    predicted: np.ndarray  # int64 (N,)
    probabilities: np.ndarray  # float64 (N, C)
    class_names: tuple[str, ...]

    @property
    def correct(self) -> np.ndarray:
        """bool (N,)"""
        return self.labels == self.predicted

    @property
    def accuracy(self) -> float:
        return float(self.correct.mean())


@dataclass(frozen=True)
class Arm:
    """One way to train, with one run per seed, ordered by seed."""

    name: str
    runs: tuple[Run, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.seed for run in self.runs)

    @property
    def correct(self) -> np.ndarray:
        """bool (K, N)"""
        return np.stack([run.correct for run in self.runs])

    @property
    def accuracies(self) -> np.ndarray:
        """float64 (K,)"""
        return self.correct.mean(axis=1)


@dataclass(frozen=True)
class Condition:
    """Arms that trained on the same images: `labels_per_class` of each class, or all of them (None)."""

    labels_per_class: int | None
    arms: tuple[Arm, ...]

    @property
    def labels(self) -> str:
        """In a table and in a file's name."""
        return "all" if self.labels_per_class is None else str(self.labels_per_class)

    @property
    def title(self) -> str:
        count = self.labels_per_class
        return "all labels" if count is None else f"{count} label{'s' * (count != 1)} per class"

    @property
    def names(self) -> list[str]:
        return [arm.name for arm in self.arms]

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.arms[0].runs[0].class_names


@dataclass(frozen=True)
class Comparison:
    """Everything that a report is made from."""

    data: str
    conditions: tuple[Condition, ...]
    protocol: tuple[str, ...]
    warnings: tuple[str, ...]
    command: str
    tuning: tuple[dict[str, Any], ...] = ()
    """Rows with labels_per_class, arm, lr, val_accuracy, val_loss, chosen."""
    scored: str = ""
    """What the scored images are called, such as "held-out half of val"; by default the split of the runs."""

    @property
    def scored_images(self) -> str:
        return self.scored or SCORED[self.conditions[0].arms[0].runs[0].scored]


def read_run(run_dir: Path, *, split: str | None = None) -> Run:
    """Read a finished run: the predictions of `split`, or of the first of test, val_last and val that it has.

    Raises:
        FileNotFoundError: no run directory. DataError: it is not finished, or a file or its content is missing.
        CheckpointError: no weights, or a damaged file of them.
    """
    run_dir = Path(run_dir)
    if not (run_dir / "config.json").is_file():
        what = "has no config.json" if run_dir.is_dir() else "does not exist"
        raise FileNotFoundError(f"{run_dir} is not a run directory: it {what}")
    config, summary, meta = (_read_json(run_dir / f"{name}.json") for name in ("config", "summary", "meta"))
    status = summary.get("status")
    if status != "finished":
        raise DataError(f"{run_dir} is {status}, not finished; finish it with: python main.py resume {run_dir}")
    scored, predictions = _predictions_file(run_dir, split)
    names = class_names_of(run_dir)
    table = _read_table(predictions, ("path", "label", "predicted", "probabilities")).sort_values("path")
    number = {name: index for index, name in enumerate(names)}
    labels, predicted = (table[column].map(number) for column in ("label", "predicted"))
    if labels.isna().any() or predicted.isna().any():
        unknown = table["label"][labels.isna()].tolist() + table["predicted"][predicted.isna()].tolist()
        raise DataError(f"{predictions}: class {unknown[0]!r} is not one of the run's: {some(list(names), 20)}")
    probabilities = np.array(" ".join(table["probabilities"]).split(), dtype=np.float64)
    if probabilities.size != len(table) * len(names):
        raise DataError(f"{predictions} does not hold {len(names)} probabilities per image; evaluate the run again")
    return Run(
        run_dir=run_dir,
        seed=int(config["train"]["seed"]),
        config=config,
        summary=summary,
        meta=meta,
        history=_read_history(run_dir / "metrics.csv"),
        scored=scored,
        paths=tuple(table["path"]),
        labels=labels.to_numpy(np.int64),
        predicted=predicted.to_numpy(np.int64),
        probabilities=probabilities.reshape(len(table), len(names)),
        class_names=names,
    )


def class_names_of(run_dir: Path) -> tuple[str, ...]:
    """The classes in the order of the model's outputs, from its best checkpoint, whose tensors are not read."""
    found = checkpoints(run_dir / "checkpoints", "best")
    if not found:
        raise CheckpointError(f"{run_dir}/checkpoints has no best_*.pt, which names the classes")
    try:
        return tuple(torch.load(found[0], map_location="cpu", mmap=True, weights_only=True)["class_names"])
    except Exception as error:  # bytes that are no checkpoint provoke many kinds; none of them ran code
        raise CheckpointError(f"{found[0]} is not a checkpoint: {type(error).__name__} on opening it") from error


def require_same_data(runs: Sequence[Run], *, training: bool = True) -> None:
    """Refuse to compare runs that were given different images, classes or labels.

    Args:
        training: the training images must be the same, too; False across numbers of labels per class.

    Raises:
        DataError: how the first run that differs from the first of all does.
    """
    first = runs[0]
    for other in runs[1:]:
        found = differences(first, other, training=training)
        if found:
            raise DataError(f"{first.run_dir} and {other.run_dir} cannot be compared: {'; '.join(found)}")


def differences(first: Run, other: Run, *, training: bool = True) -> list[str]:
    """How the data of two runs differ, one phrase each, A being the first run and B the other."""
    if first.class_names != other.class_names:
        ours, theirs = set(first.class_names), set(other.class_names)
        if ours == theirs:
            return ["the same classes in another order"]
        return [
            f"{len(first.class_names)} classes in A, {len(other.class_names)} in B"
            + "".join(
                f"; only in {where}: {some(sorted(names), 5)}"
                for where, names in (("A", ours - theirs), ("B", theirs - ours))
                if names
            )
        ]
    found = []
    if first.scored != other.scored:
        found.append(f"A is scored on {SCORED[first.scored]} images, B on {SCORED[other.scored]} images")
    ours_table, their_table = split_of(first.run_dir), split_of(other.run_dir)
    used = ("test", "val", "train") if training else ("test", "val")
    for split in used:
        mine, theirs_ = (table[table["split"] == split] for table in (ours_table, their_table))
        found += _different_images(split, mine, theirs_)
    both = ours_table.index[ours_table["split"].isin(used)].intersection(their_table.index)
    for column, what in (("hash", "changed content"), ("label", "changed label")):
        changed = both[(ours_table.loc[both, column] != their_table.loc[both, column]).to_numpy()]
        if len(changed):
            found.append(f"{_count(len(changed))} {what}, first {changed[0]!r}")
    if not found and first.paths != other.paths:
        found.append(f"predictions for {len(first.paths):,} images in A, {len(other.paths):,} in B")
    return found


def _different_images(split: str, ours: pd.DataFrame, theirs: pd.DataFrame) -> list[str]:
    only = [("A", ours.index.difference(theirs.index)), ("B", theirs.index.difference(ours.index))]
    if not any(len(names) for _, names in only):
        return []
    parts = [f"{len(names):,} only in {where}, first {names[0]!r}" for where, names in only if len(names)]
    return [f"{len(ours):,} {split} images in A, {len(theirs):,} in B ({'; '.join(parts)})"]


def group_into_arms(runs: Sequence[Run]) -> tuple[Arm, ...]:
    """Runs of one configuration but for the seed are one arm, in the order of first appearance.

    Only the seeds that all arms have are kept (`left_out` says which are not). A second run of the same configuration
    and seed begins an arm of its own.

    Raises:
        DataError: fewer than two arms, or arms without a common seed.
    """
    groups: dict[tuple[str, int], dict[int, Run]] = {}
    for run in runs:
        text, copy = _comparable(run), 1
        while run.seed in groups.get((text, copy), {}):
            copy += 1
        groups.setdefault((text, copy), {})[run.seed] = run
    if len(groups) < 2:
        raise DataError(
            f"{len(runs)} run{'s' * (len(runs) != 1)} of one configuration are one arm, not a comparison; "
            "name runs that differ in more than their seed"
        )
    arms = list(groups.values())
    shared = set.intersection(*(set(arm) for arm in arms))
    names = arm_names([next(iter(arm.values())).config for arm in arms])
    if not shared:
        listed = "; ".join(f"{name}: {sorted(arm)}" for name, arm in zip(names, arms, strict=True))
        raise DataError(f"the arms share no seed ({listed}); train each with the same --seed values")
    return tuple(Arm(name, tuple(arm[seed] for seed in sorted(shared))) for name, arm in zip(names, arms, strict=True))


def left_out(runs: Sequence[Run], arms: Sequence[Arm]) -> tuple[str, ...]:
    """One line where runs were given that are in no arm, for want of the same seed in every arm."""
    kept = {id(run) for arm in arms for run in arm.runs}
    gone = [run for run in runs if id(run) not in kept]
    if not gone:
        return ()
    seeds = ", ".join(map(str, arms[0].seeds))
    names = some([run.run_dir.name for run in gone], 5)
    return (f"only seeds that every arm has are compared ({seeds}); left out: {names}",)


def arm_names(configs: Sequence[dict[str, Any]]) -> list[str]:
    """Short names that tell the arms apart: the model, what is unusual about it, and what differs beyond that."""
    names = [_short_name(config) for config in configs]
    plain = [_settings(config) for config in configs]
    for option in _ordered_options(plain):
        twins = {name for name in names if names.count(name) > 1}
        for name in twins:
            members = [index for index, other in enumerate(names) if other == name]
            if len({plain[index].get(option) for index in members}) > 1:
                for index in members:
                    names[index] = f"{name} {option}={plain[index].get(option)}"
    counted: dict[str, int] = {}
    for index, name in enumerate(names):
        counted[name] = counted.get(name, 0) + 1
        if counted[name] > 1:
            names[index] = f"{name} ({counted[name]})"
    return names


def settings_that_differ(configs: Sequence[dict[str, Any]]) -> list[tuple[str, list[str]]]:
    """(option, its value in each config) of every option that is not the same in all and matters to a result."""
    plain = [_settings(config) for config in configs]
    return [
        (option, [each.get(option, "-") for each in plain])
        for option in _ordered_options(plain, derived=True)
        if len({each.get(option) for each in plain}) > 1
    ]


def split_of(run_dir: Path) -> pd.DataFrame:
    """split.csv with the columns label, split, hash, indexed and sorted by path."""
    return _read_table(run_dir / "split.csv", ("path", "label", "split", "hash")).set_index("path").sort_index()


def _short_name(config: dict[str, Any]) -> str:
    model = config["model"]
    weights, usual = model["weights"], "IMAGENET1K_V1" if model["name"] in TORCHVISION_MODELS else "none"
    parts = [model["name"]]
    if weights is not None and weights != usual:
        parts.append(f"weights={Path(weights).name if '/' in weights else weights}")
    if model["trainable"] != "all":
        parts.append(f"trainable={model['trainable']}")
    return " ".join(parts)


def _settings(config: dict[str, Any]) -> dict[str, str]:
    """Every option that can change a result, as text; equal names of two sections do not occur."""
    return {
        ("model" if (section, name) == ("model", "name") else name): f"{value:g}"
        if isinstance(value, float)
        else str(value)
        for section, left in _IRRELEVANT.items()
        for name, value in config[section].items()
        if name not in left
    }


def _ordered_options(plain: Sequence[dict[str, str]], *, derived: bool = False) -> list[str]:
    names = list(dict.fromkeys(name for each in plain for name in each))
    rest = [name for name in names if name not in _NAMING and (derived or name not in _DERIVED)]
    return [name for name in ("model", *_NAMING) if name in names] + [name for name in rest if name != "model"]


def _comparable(run: Run) -> str:
    return json.dumps(_settings(run.config), sort_keys=True)


def _predictions_file(run_dir: Path, split: str | None) -> tuple[str, Path]:
    wanted = SPLITS if split is None else (split,)
    files = [(name, run_dir / "eval" / f"{name}_predictions.csv") for name in wanted]
    found = next(((name, path) for name, path in files if path.is_file()), None)
    if found is None:
        raise DataError(f"{run_dir} has no {' and no '.join(path.name for _, path in files)} in eval/")
    return found


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except FileNotFoundError:
        raise DataError(f"{path.parent} has no {path.name}: the run is not finished, or not whole") from None
    except ValueError as error:
        raise DataError(f"{path} is not readable JSON: {error}") from None


def _read_table(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    if not path.is_file():
        raise DataError(f"{path.parent} has no {path.name}: the run is not finished, or not whole")
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8", encoding_errors="surrogateescape")
    except ValueError as error:  # pandas' own errors are ValueErrors
        raise DataError(f"{path} is not a readable table: {error}") from None
    missing = [column for column in columns if column not in table]
    if missing or table.empty:
        raise DataError(f"{path} has no {', '.join(missing) if missing else 'rows'}")
    return table


def _read_history(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise DataError(f"{path.parent} has no {path.name}: the run is not finished, or not whole")
    number: Callable[[str], float | None] = lambda text: float(text) if text else None  # noqa: E731
    with open(path, newline="", encoding="utf-8") as file:
        return [{name: number(text) for name, text in row.items()} for row in csv.DictReader(file)]


def _count(images: int) -> str:
    return f"{images:,} image{'s' * (images != 1)}"
