"""Train every arm of a plan. Each run is an ordinary run: a stopped one is resumed, a finished one is read."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from common.errors import Diverged, TrainingError
from common.files import write_text
from common.shell import command
from comparison.plan import REPORT, Cell, ComparisonPlan, PlannedArm
from comparison.runs import Arm, Condition, labels_text, read_run, require_same_data
from datasets.opened import OpenedImages
from trainers.config import RunConfig, to_dict
from trainers.engine.handlers import metric_of
from trainers.multirun.slurm import runner
from trainers.reporting import console
from trainers.resume import is_finished, resume
from trainers.run import train
from trainers.storage.data_folder import claimed_folder, data_folder
from trainers.storage.finished_run import read_run_config
from trainers.storage.run_folder import read_json, write_json
from trainers.storage.run_result import RunResult
from trainers.system import process

LATE = 0.1
"""Fraction of `--minutes` by which the end may be late without a line about it."""
Done = tuple[RunResult | None, bool, float]
"""Outcome of a task: its result (None: it diverged), whether it was trained now, and its seconds."""


@dataclass(frozen=True)
class Task:
    """One run of a comparison, as another process gets it."""

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
        """Directory of its run, which may not exist yet."""
        if (self.settled / "config.json").is_file() and read_run_config(self.settled).train.lr == self.lr:
            return self.settled
        return data_folder(self.config.output, self.config.data.source) / self.key

    def result(self) -> Done:
        """Return what a job of a queue has left; a job that ended without a result has diverged."""
        if not is_finished(self.run_dir):
            return None, True, 0.0
        return one_run(self)[0], True, read_json(self.run_dir / "summary.json", seconds=(int, float))["seconds"]


def train_arms(
    plan: ComparisonPlan, slurm: dict[str, str] | None = None
) -> tuple[list[Condition], list[dict[str, Any]]]:
    """Train every arm under every condition; return the conditions, and a row for each learning rate that was tried.

    `slurm`: options of the jobs that train. Raises TrainingError, Interrupted: the same comparison can be continued.
    """
    share_features(plan)
    with runner(plan.sharing, slurm, plan.folder / "jobs") as each:
        training = Training(plan, each)
        training.do_all()
    return [training.condition(place) for place in range(len(plan.request.labels))], training.tuning


def write_commands(plan: ComparisonPlan) -> tuple[Path, list[str]]:
    """Write a config and a command for each run that can be trained now; return the file of commands, and its lines.

    If learning rates are tuned, these are the trials at first, and the other seeds when the trials are finished.
    """
    share_features(plan)
    todo: list[Task] = []
    try:
        Training(plan, finished_only).do_all()
    except NotFinished as waiting:
        todo = waiting.tasks
    commands = []
    for task in todo:
        path = plan.folder / "plan" / f"{'_'.join(Path(task.key).parts[1:])}.json"
        path.parent.mkdir(exist_ok=True)
        write_json(path, to_dict(task.config))
        commands.append(command("train", "--config", path, "--auto-resume"))
    file = plan.folder / "commands.txt"
    write_text(file, "".join(f"{line}\n" for line in commands))
    return file, commands


class NotFinished(Exception):
    """Runs that the next step of a comparison waits for."""

    def __init__(self, tasks: list[Task]) -> None:
        super().__init__()
        self.tasks = tasks


def finished_only(function: Callable[[Task], Done], tasks: Iterable[Task]) -> Iterator[tuple[Task, Done]]:
    """Yield finished runs, and train none. Raises NotFinished: some are missing."""
    tasks = [*tasks]
    if todo := [task for task in tasks if not is_finished(task.run_dir)]:
        raise NotFinished(todo)
    for task in tasks:
        yield task, function(task)


def share_features(plan: ComparisonPlan) -> None:
    """Make the folder of cached features if an arm caches them, so that all of its runs share them."""
    if any(arm.keeps_features for arm in plan.arms):
        base = plan.request.base
        (claimed_folder(base.output, base.data.source) / "features").mkdir(parents=True, exist_ok=True)


class Training:
    """The runs of a plan; `each` of `trainers.multirun.worker_pool` trains them."""

    def __init__(self, plan: ComparisonPlan, each: Callable[..., Iterator[tuple[Task, Done]]]) -> None:
        self.plan, self.each = plan, each
        self.rates = {cell: plan.rates(self.arm(cell))[0] for cell in plan.cells if not self.searches(cell)}
        self.folders: dict[Cell, dict[int, Path]] = {cell: {} for cell in plan.cells}
        self.tuning: list[dict[str, Any]] = []
        self.progress = Progress(plan)

    def do_all(self) -> None:
        self.choose_rates()
        missing = [
            (cell, seed) for seed in self.plan.seeds for cell in self.plan.cells if seed not in self.folders[cell]
        ]
        for task, result in self.run([self.task(cell, seed, self.rates[cell]) for cell, seed in missing]):
            if result is None:
                raise TrainingError(f"{task} diverged: choose other rates by --lr-grid, or lr=R of its arm")
            self.folders[task.cell][task.seed] = result.run_dir

    def arm(self, cell: Cell) -> PlannedArm:
        return self.plan.arms[cell[1]]

    def searches(self, cell: Cell) -> bool:
        return len(self.plan.rates(self.arm(cell))) > 1

    def choose_rates(self) -> None:
        """Try all rates at the first seed; the best run becomes the run of that seed."""
        searched = [cell for cell in self.plan.cells if self.searches(cell)]
        seed, grid, select = self.plan.seeds[0], self.plan.grid, metric_of(self.plan.select)
        sign = -1 if select == "loss" else 1
        tasks = [self.task(cell, seed, lr) for lr in grid for cell in searched]
        results = {(task.cell, task.lr): result for task, result in self.run(tasks)}
        for cell in searched:
            arm, tried = self.arm(cell).name, [(lr, results[cell, lr]) for lr in grid]
            usable = [(lr, result) for lr, result in tried if result is not None]
            if not usable:
                raise TrainingError(f"{arm} diverged at every learning rate of {', '.join(f'{lr:g}' for lr in grid)}")
            best_lr, best = max(usable, key=lambda pair: (sign * pair[1].val[select], -pair[1].val["loss"]))
            settled = self.task(cell, seed, best_lr).settled
            if best.run_dir != settled:
                settled.parent.mkdir(parents=True, exist_ok=True)
                best.run_dir.rename(settled)
            self.rates[cell], self.folders[cell][seed] = best_lr, settled
            of_arm = {"labels_per_class": self.plan.request.labels[cell[0]], "arm": arm}
            for lr, result in tried:
                scores = {f"val_{name}": result.val[name] if result else None for name in ("accuracy", "loss")}
                self.tuning.append({**of_arm, "lr": lr, **scores, "chosen": lr == best_lr})

    def condition(self, place: int) -> Condition:
        """Read the runs under one condition."""
        arms = []
        for number, arm in enumerate(self.plan.arms):
            folders = self.folders[place, number]
            arms.append(Arm(arm.name, tuple(read_run(folders[seed]) for seed in sorted(folders))))
        require_same_data([run for arm in arms for run in arm.runs])
        return Condition(self.plan.request.labels[place], tuple(arms))

    def task(self, cell: Cell, seed: int, lr: float | None) -> Task:
        config = self.plan.run_config(cell, seed=seed, lr=lr)
        name = Path(str(config.output.run_name))
        settled = self.plan.folder.joinpath(*name.parts[1:-1], name.name.partition("_")[0])
        title = f"{self.arm(cell).name}, {labels_text(self.plan.request.labels[cell[0]])}, seed {seed}"
        return Task(cell, seed, lr, config, settled, title + (f", lr {lr:g}" if lr is not None else ""))

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, RunResult | None]]:
        """Do all tasks, and print a line for each when it is done."""
        for task, done in self.each(partial(one_run, images=self.plan.images), tasks):
            self.progress.end(task, done)
            yield task, done[0]


class Progress:
    """Prints a line for each run that has ended, with the time that the rest takes at the pace so far."""

    def __init__(self, plan: ComparisonPlan) -> None:
        self.plan, self.done, self.late = plan, 0, False
        self.waiting = plan.all_work
        self.trained = self.seconds = 0.0

    def end(self, task: Task, done: Done) -> None:
        result, trained, seconds = done
        work = self.plan.work(task.cell)
        self.done, self.waiting = self.done + 1, self.waiting - work
        if trained and result is not None:
            self.trained, self.seconds = self.trained + work, self.seconds + seconds
        if self.done == 1:
            console.say(f"{'run':>7}  {'val acc':>8}  {'time':>6}  {'left':>6}")
        left, name = self.left(), "/".join(Path(task.key).parts[1:])
        score = "diverged" if result is None else f"{result.val['accuracy']:.1%}"
        took = console.duration(seconds) if trained else "done"
        rest = console.duration(left) if left else ""
        console.say(f"{self.done:>3}/{self.plan.number_of_runs:<3}  {score:>8}  {took:>6}  {rest:>6}  {name}")
        self.say_if_late(left)

    def left(self) -> float:
        """Estimate the seconds until the last run ends; 0 if no run was trained yet."""
        runs = self.plan.number_of_runs - self.done
        if not self.trained or not runs:
            return 0.0
        return self.seconds / self.trained * self.waiting / min(self.plan.sharing.jobs, runs)

    def say_if_late(self, left: float) -> None:
        """Print once how late a machine that is slower than measured ends."""
        if self.plan.until is None or self.late or not left:
            return
        over = time.monotonic() + left + REPORT - self.plan.until
        self.late = over > LATE * 60 * (self.plan.request.minutes or 0)
        if self.late:
            console.say(f"the machine is slower than measured: {console.duration(over)} late at the end", label="time")


def one_run(task: Task, images: OpenedImages | None = None) -> Done:
    """Train one run, resume it, or read its result. `images`: the data set if it is open already."""
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
