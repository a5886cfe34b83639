"""Train several runs of one request: `--seeds N`, or cross-validation by `--folds K`. Each is an ordinary run."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from common.files import write_text
from common.tables import frame_text
from common.text import format_table
from datasets.open import OpenedImages
from trainers.auto_resume import find_earlier
from trainers.config import RunConfig, metric_of
from trainers.multirun.runs import Planned, training
from trainers.multirun.sharing import sharing
from trainers.reporting.console import say
from trainers.storage.data_folder import data_folder
from trainers.storage.run_result import RunResult, best_of_several
from trainers.system import distributed
from trainers.system.signals import signals

if TYPE_CHECKING:
    import pandas as pd

SCORES = ("accuracy", "balanced_accuracy", "loss", "macro_f1", "ece")


@signals.handled()
def train_all(
    configs: Sequence[RunConfig], *, jobs: int | None = None, slurm: dict[str, str] | None = None
) -> list[RunResult]:
    """Train all runs, `jobs` at a time, or as jobs of a queue.

    `slurm`: options of its jobs. After an interruption the same command continues."""
    first = configs[0]
    shared = sharing(first.train.device, len(configs), jobs=jobs, threads=first.train.threads, slurm=slurm)
    folder, tracker = None if slurm is None else jobs_folder(first), first.output.tracker
    configs = [config.changed(train={"threads": shared.threads}) for config in configs]
    results, opened = {}, OpenedImages()
    with (
        distributed.joined(first.train.device),  # once: a second meeting would read the addresses of the first
        signals.hinting("the same command continues where this one stopped"),
        training(shared, slurm=slurm, folder=folder, opened=opened, tracker=tracker, aloud=shared.jobs == 1) as train,
    ):
        plans = plans_of(configs, opened)
        for planned, outcome in train(plans):
            assert outcome.result is not None, "a run that diverges is an error here"
            results[planned.name] = outcome.result
            if shared.jobs > 1 or not outcome.trained:
                say(f"{planned}: val {outcome.result.val['accuracy']:.1%}, epoch {outcome.result.best_epoch}")
    return [results[planned.name] for planned in plans]


def plans_of(configs: Sequence[RunConfig], opened: OpenedImages) -> list[Planned]:
    """Number a command's runs, and find those that it began in an earlier life."""
    begun = distributed.broadcast(lambda: [str(run or "") for run in find_earlier(configs, opened)])
    return [
        Planned(f"run {number} of {len(configs)}", config, Path(folder) if folder else None)
        for number, (config, folder) in enumerate(zip(configs, begun, strict=True), 1)
    ]


def jobs_folder(first: RunConfig) -> Path:
    """Return the folder of the files of the jobs that Slurm starts."""
    return data_folder(first.output, first.data.source) / f"{first.output.run_name}_jobs"


def of_seeds(config: RunConfig, count: int) -> list[RunConfig]:
    """Return the run at its seed and at the numbers that follow it."""
    first, name = config.train.seed, config.output.run_name
    return [
        config.changed(train={"seed": seed}, output={"run_name": name and f"{name}_s{seed}"})
        for seed in range(first, first + count)
    ]


def of_folds(config: RunConfig) -> list[RunConfig]:
    """Return fold 1 to K."""
    count, name = config.data.folds, config.output.run_name
    assert count is not None
    return [
        config.changed(data={"fold": fold}, output={"run_name": name and f"{name}_fold{fold}"})
        for fold in range(1, count + 1)
    ]


def kept_of(results: Sequence[RunResult]) -> tuple[RunResult, str]:
    """Return the run that stands for all, and why.

    Folds share no validation images by which one could be the best."""
    config = results[0].config
    if config.data.fold is not None:
        return results[0], "the first fold"
    select = metric_of(config.train.select)
    return best_of_several(results, select=select), f"the best seed by validation {select.replace('_', ' ')}"


def write_folds(results: Sequence[RunResult]) -> Path:
    """Write the table of validation scores: a row per fold, then mean and standard deviation."""
    import pandas as pd

    scores = scores_of_runs(results, "val")
    table: pd.DataFrame = pd.concat([scores, scores.agg(["mean", "std"])]).add_prefix("val_").astype(object)
    table.insert(0, "fold", [*range(1, len(results) + 1), "mean", "standard deviation"])
    table["run"] = [*(result.run_dir.name for result in results), "", ""]
    first = results[0].run_dir
    path = first.with_name(f"{first.name.replace('_fold1', '')}_folds.csv")
    write_text(path, frame_text(table))
    return path


def scores_of_runs(results: Sequence[RunResult], split: str) -> "pd.DataFrame":
    """Return a row per run and a column per score that all have.

    There is no column where a run has no such split."""
    import pandas as pd

    scores = pd.DataFrame([getattr(result, split) or {} for result in results])
    return scores[[score for score in SCORES if score in scores]].dropna(axis="columns")


def summarise_runs(results: Sequence[RunResult]) -> Iterator[str]:
    """Yield a table of mean (standard deviation) by split.

    That of folds, which share training images, says less."""
    rows = []
    for split in ("val", "test"):
        scores = scores_of_runs(results, split)
        if scores.empty:
            continue
        cells = [f"{split:>9}"]
        for name, row in scores.agg(["mean", "std"]).T.iterrows():
            form = ".1%" if "accuracy" in str(name) else ".2f"
            cells.append(f"{row['mean']:{form}} ({row['std']:{form}})")
        rows.append(cells)
    names = (str(name).replace("_accuracy", "").replace("_", " ") for name in scores_of_runs(results, "val"))
    return format_table([["    split", *names], *rows])
