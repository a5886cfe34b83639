"""Train several runs of one request: `--seeds N`, or cross-validation by `--folds K`. Each is an ordinary run."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from common.files import write_text
from common.tables import frame_text
from common.text import format_table
from datasets.opened import OpenedImages
from trainers.auto_resume import train_or_resume
from trainers.config import RunConfig, metric_of
from trainers.multirun.sharing import sharing
from trainers.multirun.slurm import runner
from trainers.reporting.console import quiet, say
from trainers.storage.data_folder import data_folder
from trainers.storage.finished_run import read_result, read_run_config
from trainers.storage.run_result import RunResult, best_of_several
from trainers.system import distributed, process
from trainers.system.signals import signals

if TYPE_CHECKING:
    import pandas as pd

SCORES = ("accuracy", "balanced_accuracy", "loss", "macro_f1", "ece")


@dataclass(frozen=True)
class RunRequest:
    """One run of several, as it is sent to another process."""

    number: int
    of: int
    config: RunConfig

    def __str__(self) -> str:
        return f"run {self.number} of {self.of}"

    @property
    def run_dir(self) -> Path:
        assert self.config.output.run_name is not None, "jobs find their runs again by name"
        return data_folder(self.config.output, self.config.data.source) / self.config.output.run_name

    def result(self) -> RunResult:
        return read_result(self.run_dir)


@signals.heeded()
def train_all(
    configs: Sequence[RunConfig], *, jobs: int | None = None, slurm: dict[str, str] | None = None
) -> list[RunResult]:
    """Train all runs, `jobs` at a time or as jobs with the options `slurm` of its queue.

    After an interruption `--auto-resume` goes on; jobs do so by themselves."""
    first, jobs = configs[0].train, jobs if slurm is None else jobs or len(configs)
    if configs[0].output.tracker is not None:
        from trainers.reporting import trackers

        trackers.prepare_for_several(configs[0].output.tracker)
    shared = sharing(first.device, len(configs), jobs=jobs, threads=first.threads)
    train, output = {"threads": shared.threads}, {} if slurm is None else {"auto_resume": True}
    configs = [config.changed(train=train, output=output) for config in configs]
    parts = [RunRequest(number, len(configs), config) for number, config in enumerate(configs, 1)]
    results, folder, images = {}, None if slurm is None else Path(f"{parts[0].run_dir}_jobs"), OpenedImages()
    with (
        distributed.joined(first.device),  # once: a second meeting would read the addresses of the first
        signals.hinting("the same command with --auto-resume goes on where this one stopped"),
        runner(shared, slurm, folder) as each,
    ):
        for part, result in each(partial(train_part, aloud=shared.jobs == 1, images=images), parts):
            results[part.number] = result
            if shared.jobs > 1:
                say(f"{part}: val {result.val['accuracy']:.1%}, epoch {result.best_epoch}")
    return [results[part.number] for part in parts]


def train_part(part: RunRequest, *, aloud: bool, images: OpenedImages) -> RunResult:
    """Train one run; where several train side by side, none speaks."""
    process.give_back_freed_memory()
    with nullcontext() if aloud else quiet():
        say(str(part))
        result = train_or_resume(part.config, images=images)
        say()
    return result


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
    """Return the run that stands for all, and why: folds share no validation images by which one could be the best."""
    config = read_run_config(results[0].run_dir)
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
    """Return a row per run and a column per score that all of them have; no column where a run has no such split."""
    import pandas as pd

    scores = pd.DataFrame([getattr(result, split) or {} for result in results])
    return scores[[score for score in SCORES if score in scores]].dropna(axis="columns")


def summarise_runs(results: Sequence[RunResult]) -> Iterator[str]:
    """Yield a table of mean (standard deviation) by split; that of folds, which share training images, says less."""
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
