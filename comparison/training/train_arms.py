"""Train every arm of a plan. Each run is an ordinary run; what was stopped goes on, what was finished is read."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from common.errors import Diverged, TrainingError
from comparison.analysis.runs import Arm, Condition, labels_text, read_run, require_same_data
from comparison.request.plan import ComparisonPlan, PlannedArm
from comparison.request.protocol import rates_text
from comparison.request.timing import REPORT
from comparison.training.progress import Cell, Progress
from comparison.training.run_lines import RunLines
from datasets.opened import OpenedImages
from trainers.config import RunConfig
from trainers.engine.handlers import metric_of
from trainers.multirun.slurm import runner
from trainers.reporting import console
from trainers.resume import is_finished, resume
from trainers.run import train
from trainers.storage.data_folder import claimed_folder, data_folder
from trainers.storage.finished_run import read_run_config
from trainers.storage.run_folder import read_json
from trainers.storage.run_result import RunResult
from trainers.system import process

LATE = 0.1
"""Fraction of `--minutes` by which the end may be late before that is said."""
Done = tuple[RunResult | None, bool, float]
"""Outcome of a task: its result (None: it diverged), whether it was trained now and not before, and the seconds it took
now."""


@dataclass(frozen=True)
class Task:
    """One run of a comparison, as another process can be told to do it."""

    cell: Cell
    seed: int
    lr: float | None
    config: RunConfig
    settled: Path
    """Directory of the run if its rate is the chosen one."""
    title: str

    def __str__(self) -> str:
        return self.title

    @property
    def key(self) -> str:
        return str(self.config.output.run_name)

    @property
    def run_dir(self) -> Path:
        """Directory in which its run lies, or will lie."""
        if (self.settled / "config.json").is_file() and read_run_config(self.settled).train.lr == self.lr:
            return self.settled
        return data_folder(self.config.output, self.config.data.source) / self.key

    def result(self) -> Done:
        """Return what a job has left of it; a job that ended without a result has diverged."""
        if not is_finished(self.run_dir):
            return None, True, 0.0
        return one_run(self)[0], True, read_json(self.run_dir / "summary.json", seconds=(int, float))["seconds"]


def train_arms(
    plan: ComparisonPlan, slurm: dict[str, str] | None = None
) -> tuple[list[Condition], list[dict[str, Any]]]:
    """Train every arm under every condition, as jobs with the options `slurm` where these are given; also returns what
    each learning rate was chosen from, a row per rate. Raises TrainingError, Interrupted: the same comparison goes on
    where this one stopped."""
    share_features(plan)
    with runner(plan.sharing, slurm, plan.folder / "jobs") as each:
        training = Training(plan, each)
        training.do_all()
    return [training.condition(place) for place in range(len(plan.request.labels))], training.tuning


def share_features(plan: ComparisonPlan) -> None:
    """Make the folder in which features are kept, where an arm does: then all of its runs look once."""
    if any(arm.resolved.train.cache_features == "on" for arm in plan.arms):
        base = plan.request.base
        (claimed_folder(base.output, base.data.source) / "features").mkdir(parents=True, exist_ok=True)


class Training:
    """The runs of a plan as they are trained, by `each` of `trainers.multirun.worker_pool`."""

    def __init__(self, plan: ComparisonPlan, each: Callable[..., Iterator[tuple[Task, Done]]]) -> None:
        self.plan, self.each = plan, each
        self.cells = [(place, number) for place in range(len(plan.request.labels)) for number in range(len(plan.arms))]
        self.rates = {cell: plan.rates(self.arm(cell))[0] for cell in self.cells if not plan.searches(self.arm(cell))}
        self.folders: dict[Cell, dict[int, Path]] = {cell: {} for cell in self.cells}
        self.tuning: list[dict[str, Any]] = []
        self.progress, self.lines = Progress(plan, self.cells), RunLines(plan)
        self.late = False
        """True once it was said that the end is later than `--minutes`."""

    def do_all(self) -> None:
        self.choose_rates()
        self.add_seeds(self.cells, self.plan.seeds)

    def arm(self, cell: Cell) -> PlannedArm:
        return self.plan.arms[cell[1]]

    def choose_rates(self) -> None:
        """Try all rates at the first seed, where there are several; the best run there serves as that of the seed."""
        searched = [cell for cell in self.cells if cell not in self.rates]
        seed, select, results = self.plan.seeds[0], metric_of(self.plan.select), {}
        sign = -1 if select == "loss" else 1
        for task, result in self.run([self.task(c, seed, lr) for lr in self.plan.grid for c in searched]):
            results[task.cell, task.lr] = result
        for cell in searched:
            tried = [(lr, results[cell, lr]) for lr in self.plan.grid]
            usable = [(lr, result) for lr, result in tried if result is not None]
            if not usable:
                rates = rates_text(self.plan.grid)
                raise TrainingError(f"{self.arm(cell).name} diverged at every learning rate of {rates}")
            best_lr, best = max(usable, key=lambda pair: (sign * pair[1].val[select], -pair[1].val["loss"]))
            settled = self.task(cell, seed, best_lr).settled
            if best.run_dir != settled:
                settled.parent.mkdir(parents=True, exist_ok=True)
                best.run_dir.rename(settled)
            self.rates[cell], self.folders[cell][seed] = best_lr, settled
            of_arm = {"labels_per_class": self.plan.request.labels[cell[0]], "arm": self.arm(cell).name}
            for lr, result in tried:
                scores = {f"val_{name}": result.val[name] if result else None for name in ("accuracy", "loss")}
                self.tuning.append({**of_arm, "lr": lr, **scores, "chosen": lr == best_lr})

    def add_seeds(self, cells: Sequence[Cell], seeds: Iterable[int]) -> None:
        """Train these arms at these seeds, but for those that are there."""
        missing = [(cell, seed) for seed in seeds for cell in cells if seed not in self.folders[cell]]
        for task, result in self.run([self.task(cell, seed, self.rates[cell]) for cell, seed in missing]):
            if result is None:
                raise TrainingError(f"{task.title} diverged: choose other rates by --lr-grid, or lr=R of its arm")
            self.folders[task.cell][task.seed] = result.run_dir

    def condition(self, place: int) -> Condition:
        """The runs under one condition, of the seeds that are there."""
        arms = []
        for number, arm in enumerate(self.plan.arms):
            folders = self.folders[place, number]
            arms.append(Arm(arm.name, tuple(read_run(folders[seed], split="test") for seed in sorted(folders))))
        require_same_data([run for arm in arms for run in arm.runs])
        return Condition(self.plan.request.labels[place], tuple(arms))

    def task(self, cell: Cell, seed: int, lr: float | None) -> Task:
        (place, _), arm = cell, self.arm(cell)
        config = self.plan.run_config(arm, place, seed=seed, lr=lr)
        name = Path(str(config.output.run_name))
        settled = self.plan.folder.joinpath(*name.parts[1:-1], name.name.partition("_")[0])
        title = f"{arm.name}, {labels_text(self.plan.request.labels[place])}, seed {seed}"
        title += f", lr {lr:g}" if lr is not None else ""
        return Task(cell, seed, lr, config, settled, title)

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, RunResult | None]]:
        """Do all tasks, with a line for each when it is done."""
        work = partial(one_run, images=self.plan.images)
        for task, (result, trained, seconds) in self.each(work, self.in_turn(tasks)):
            self.progress.end(task.key, seconds if trained and result is not None else None)
            left = self.progress.left_in_words() if trained else "done"
            self.lines.say(task.cell, task.seed, task.lr, result, number=self.progress.done, left=left)
            self.say_if_late()
            yield task, result

    def say_if_late(self) -> None:
        """Say once how late a machine that is slower than measured ends."""
        left = self.progress.left()
        if self.plan.until is None or self.late or not left:
            return
        over = time.monotonic() + left + REPORT - self.plan.until
        self.late = over > LATE * 60 * (self.plan.request.minutes or 0)
        if self.late:
            late = console.duration(over)
            console.say(f"the machine is slower than measured: the end is about {late} late", label="plan")

    def in_turn(self, tasks: Iterable[Task]) -> Iterator[Task]:
        """Yield each task when its turn has come."""
        for task in tasks:
            self.progress.start(task.key, task.cell)
            yield task


def one_run(task: Task, images: OpenedImages | None = None) -> Done:
    """Train one run, take it up where it stopped, or read its result. `images`: those that are opened already."""
    folder, began = task.run_dir, time.perf_counter()
    known, trained = (folder / "config.json").is_file(), not is_finished(folder)
    try:
        if trained:
            process.give_back_freed_memory()
        with console.quiet():
            result = resume(folder, images=images) if known else train(task.config, images=images)
            return result, trained, time.perf_counter() - began
    except TrainingError as error:
        if not isinstance(error.__cause__, Diverged):
            raise
        return None, True, time.perf_counter() - began
