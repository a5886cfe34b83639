"""`train --folds K`: cross-validation. Every fold is an ordinary run; their scores are summed up beside them."""

from __future__ import annotations

import csv
import dataclasses
import io
import statistics
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from trainers import process
from trainers.config import RunConfig
from trainers.console import say
from trainers.result import RunResult
from trainers.resume import train_or_resume
from trainers.run import train
from trainers.run_directory import write_text

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


def cross_validate(config: RunConfig) -> CrossValidation:
    """Train fold 1 to K one after the other, each in its own run directory."""
    assert config.data.folds is not None
    name = config.output.run_name or f"{datetime.now():%Y%m%d-%H%M%S}_{config.model.name}_s{config.train.seed}"
    results = []
    for fold in range(1, config.data.folds + 1):
        say(f"fold {fold} of {config.data.folds}")
        one = dataclasses.replace(
            config,
            data=dataclasses.replace(config.data, fold=fold),
            output=dataclasses.replace(config.output, run_name=f"{name}_fold{fold}"),
        )
        process.give_back_freed_memory()
        results.append(train_or_resume(one) if config.output.auto_resume else train(one))
        say()
    table = results[0].run_dir.parent / f"{name}_folds.csv"
    found = CrossValidation(tuple(results), table)
    write_table(found)
    return found


def write_table(found: CrossValidation) -> None:
    """One row per fold, then mean and standard deviation."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["fold", *(f"val_{score}" for score in SCORES), "run"])
    for fold, result in enumerate(found.results, start=1):
        writer.writerow([fold, *(result.val[score] for score in SCORES), result.run_dir.name])
    writer.writerow(["mean", *(found.mean(score) for score in SCORES), ""])
    writer.writerow(["standard deviation", *(found.spread(score) for score in SCORES), ""])
    write_text(found.table, text.getvalue())
