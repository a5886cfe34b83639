"""Train every arm of a plan. Each run is an ordinary run; what was stopped goes on, what was finished is read."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from comparison.arms import PlannedArm
from comparison.plan import Plan
from comparison.protocol import labels_text, rates_text
from comparison.runs import Arm, Condition, read_run, require_same_data
from trainers import console, process
from trainers.config import data_folder
from trainers.errors import Diverged, TrainingError
from trainers.result import RunResult, read_result
from trainers.resume import read_summary, resume
from trainers.run import train
from trainers.run_directory import read_json, read_run_config


def train_arms(plan: Plan) -> tuple[list[Condition], list[dict[str, Any]]]:
    """Train condition by condition, arm by arm; also returns what each learning rate was chosen from, a row per rate.

    Raises:
        TrainingError, Interrupted: the same comparison goes on where this one stopped.
    """
    progress = Progress(plan.number_of_runs, plan.all_work)
    conditions: list[Condition] = []
    tuning: list[dict[str, Any]] = []
    for place, labels in enumerate(plan.request.labels):
        arms = []
        for arm in plan.arms:
            run_dirs, rates_tried = train_arm(plan, arm, place, progress)
            arms.append(Arm(arm.name, tuple(read_run(run_dir, split="test") for run_dir in run_dirs)))
            tuning += rates_tried
        require_same_data([run for arm in arms for run in arm.runs])
        conditions.append(Condition(labels, tuple(arms)))
    return conditions, tuning


def train_arm(
    plan: Plan, arm: PlannedArm, condition: int, progress: Progress
) -> tuple[list[Path], list[dict[str, Any]]]:
    """All rates at the first seed, then the other seeds at the best of them: one run per seed, and the rates tried."""
    first, *others = plan.seeds
    tried = [(lr, one_run(plan, arm, condition, first, lr, progress)) for lr in plan.rates(arm)]
    usable = [(lr, result) for lr, result in tried if result is not None]
    if not usable:
        raise TrainingError(f"{arm.name} diverged at every learning rate of {rates_text(plan.rates(arm))}")
    best_lr, best = max(usable, key=lambda pair: _score(pair[1], plan.select))
    run_dirs = [kept(plan, best).run_dir]
    for seed in others:
        result = one_run(plan, arm, condition, seed, best_lr, progress)
        if result is None:
            raise TrainingError(f"{arm.name} diverged at lr {best_lr}, which was the best rate at seed {first}")
        run_dirs.append(result.run_dir)
    if len(tried) == 1:
        return run_dirs, []
    of_arm = {"labels_per_class": plan.request.labels[condition], "arm": arm.name}
    return run_dirs, [of_arm | _tuning_row(lr, result) | {"chosen": lr == best_lr} for lr, result in tried]


def kept(plan: Plan, result: RunResult) -> RunResult:
    """The run with the best of the rates that were tried, beside those of the other seeds."""
    folder = beside_other_seeds(plan, result.run_dir)
    if folder != result.run_dir:
        folder.parent.mkdir(parents=True, exist_ok=True)
        result.run_dir.rename(folder)
    return replace(result, run_dir=folder)


def beside_other_seeds(plan: Plan, run_dir: Path) -> Path:
    """<compare>/<arm>/<labels>/s0 for any <compare>/<arm>/<labels>/s0_lr0.001."""
    return plan.folder.joinpath(*run_dir.parts[-3:-1], run_dir.name.partition("_")[0])


def _score(result: RunResult, select: str) -> tuple[float, float]:
    value = result.val[select]
    return (-value if select == "loss" else value), -result.val["loss"]


def _tuning_row(lr: float | None, result: RunResult | None) -> dict[str, Any]:
    return {"lr": lr} | {f"val_{name}": result.val[name] if result else None for name in ("accuracy", "loss")}


class Progress:
    """One line per run, and how long the rest takes at the pace of what was trained so far."""

    def __init__(self, runs: int, work: float) -> None:
        self.runs, self.work = runs, work
        self.done, self.work_done, self.work_trained = 0, 0.0, 0.0
        self.started = time.perf_counter()

    def line(self, text: str, *, work: float, trained: bool) -> None:
        self.done += 1
        self.work_done += work
        self.work_trained += work if trained else 0
        left = ""
        if self.work_trained and self.done < self.runs:
            pace = (time.perf_counter() - self.started) / self.work_trained
            left = f", about {console.duration(pace * (self.work - self.work_done))} left"
        console.say(f"{self.done:>3}/{self.runs}  {text}{left}")


def one_run(
    plan: Plan, arm: PlannedArm, condition: int, seed: int, lr: float | None, progress: Progress
) -> RunResult | None:
    """Train one run, take it up where it stopped, or read its result; None when it diverged."""
    config = plan.run_config(arm, condition, seed=seed, lr=lr)
    folder = data_folder(config.output, config.data.source) / str(config.output.run_name)
    best = beside_other_seeds(plan, folder)
    if (best / "config.json").is_file() and read_run_config(best).train.lr == lr:
        folder = best
    title = f"{arm.name}, {labels_text(plan.request.labels[condition])}, seed {seed}"
    title += f", lr {lr:g}" if lr is not None else ""
    known, work = (folder / "config.json").is_file(), plan.work(arm, condition)
    try:
        if known and read_summary(folder)["status"] == "finished":
            result, trained = read_result(folder), False
        else:
            process.give_back_freed_memory()
            with console.quiet():
                result, trained = (resume(folder) if known else train(config)), True
    except TrainingError as error:
        if not isinstance(error.__cause__, Diverged):
            raise
        progress.line(f"{title}: diverged", work=work, trained=True)
        return None
    seconds = read_json(folder / "summary.json")["seconds"]
    text = f"{title}: val {result.val['accuracy']:.1%}, epoch {result.best_epoch}, {seconds:.0f} s"
    progress.line(text if trained else f"{text} (was finished)", work=work, trained=trained)
    return result
