"""`train --folds K`: cross-validation. Every fold is an ordinary run; their scores are summed up beside them."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from datasets.files import write_text
from datasets.text import csv_text
from trainers import defaults, process
from trainers.config import RunConfig, data_folder
from trainers.console import say
from trainers.interruption import signals
from trainers.result import RunResult
from trainers.resume import train_or_resume, was_asked_for
from trainers.run_directory import plan_run_directory

SCORES = ("accuracy", "loss", "macro_f1", "ece")


@dataclass(frozen=True)
class CrossValidation:
    """One result per fold, and the table of their validation scores."""

    results: tuple[RunResult, ...]
    table: Path

    def mean(self, score: str) -> float:
        return statistics.mean(result.val[score] for result in self.results)

    def spread(self, score: str) -> float:
        """Standard deviation over folds. The folds share training images: it says less than one over seeds."""
        return statistics.stdev(result.val[score] for result in self.results)


@signals.heeded()
def cross_validate(config: RunConfig) -> CrossValidation:
    """Train fold 1 to K one after the other, each in its own run directory. Raises Interrupted: a signal;
    `--auto-resume` goes on."""
    with signals.hinting("the same command with --auto-resume goes on where this one stopped"):
        return train_folds(config)


def train_folds(config: RunConfig) -> CrossValidation:
    assert config.data.folds is not None
    name = config.output.run_name or (name_of_earlier_folds(config) if config.output.auto_resume else None)
    name = name or plan_run_directory(defaults.resolve_model(config)).name
    results = []
    for fold in range(1, config.data.folds + 1):
        say(f"fold {fold} of {config.data.folds}")
        of_fold = fold_config(config, fold, name)
        process.give_back_freed_memory()
        results.append(train_or_resume(of_fold))
        say()
    cross_validation = CrossValidation(tuple(results), results[0].run_dir.parent / f"{name}_folds.csv")
    write_table(cross_validation)
    return cross_validation


def fold_config(config: RunConfig, fold: int, name: str) -> RunConfig:
    """The options of one fold: an ordinary run called `<name>_fold<k>`."""
    data = dataclasses.replace(config.data, fold=fold)
    return dataclasses.replace(
        config, data=data, output=dataclasses.replace(config.output, run_name=f"{name}_fold{fold}")
    )


def name_of_earlier_folds(config: RunConfig) -> str | None:
    """What the newest folds with these same options are called, for `--auto-resume` without `--run-name`."""
    folds = data_folder(config.output, config.data.source).glob("*_fold1/meta.json")
    for path in sorted(folds, key=lambda path: path.stat().st_mtime_ns, reverse=True):
        name = path.parent.name.removesuffix("_fold1")
        if was_asked_for(fold_config(config, 1, name), path.parent):
            return name
    return None


def write_table(folds: CrossValidation) -> None:
    """One row per fold, then mean and standard deviation."""
    rows: list[Sequence[object]] = [
        *([fold, *map(result.val.get, SCORES), result.run_dir.name] for fold, result in enumerate(folds.results, 1)),
        ["mean", *map(folds.mean, SCORES), ""],
        ["standard deviation", *map(folds.spread, SCORES), ""],
    ]
    write_text(folds.table, csv_text(["fold", *(f"val_{score}" for score in SCORES), "run"], rows))
