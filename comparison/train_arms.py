"""Train every model of a plan.

Each run is an ordinary run: a stopped one is resumed, a finished one is read.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from common.errors import TrainingError
from common.files import write_text
from common.shell import command
from comparison.plan import Cell, ComparisonPlan
from comparison.planning import with_labels
from comparison.runs import FinishedRun, read_run, require_same_data
from comparison.timing import Clock
from trainers.config import rank_key, to_dict
from trainers.multirun.runs import Outcome, Planned, TrainAll, training
from trainers.reporting import console
from trainers.storage.data_folder import claimed_folder, data_folder, features_folder, tuning
from trainers.storage.run_folder import RunFolder, write_json
from trainers.storage.run_result import RunResult, read_result

WIDTH = 80
"""Letters of a line while runs train."""


class ArmRun(NamedTuple):
    """One run of a comparison: its place among the others, and its learning rate."""

    cell: Cell
    seed: int
    lr: float | None


def folder_of(plan: ComparisonPlan, cell: Cell, seed: int) -> Path:
    """Return the directory of a run with the chosen rate."""
    return plan.folder / plan.arms[cell[1]].slug / str(plan.request.labels[cell[0]] or "all") / f"s{seed}"


def planned_run(plan: ComparisonPlan, run: ArmRun) -> Planned:
    """Return a run with its options, and the name by which it is found again."""
    cell, seed, lr = run
    labels, arm = plan.request.labels[cell[0]], plan.arms[cell[1]]
    settled, output = folder_of(plan, cell, seed), arm.config.output
    key = settled.relative_to(plan.folder).as_posix()
    name = plan.folder.relative_to(data_folder(output, arm.config.data.source)).as_posix()
    if len(plan.rates(arm)) > 1 and seed == plan.seeds[0]:
        key, output = f"{key}_lr{lr:g}", tuning(output)
    tb = output.tb if seed == plan.seeds[0] else "scalars"  # the pictures of every seed say the same
    budget = {"epochs": plan.passes(cell), "threads": plan.sharing.threads}
    config = arm.config.changed(
        data=vars(with_labels(arm.config.data, labels)) | {"split": plan.split_file},
        train={"seed": seed, "lr": lr, "select": plan.select, **budget},
        output={"output_dir": output.output_dir, "run_name": f"{name}/{key}", "tb": tb},
    )
    found = Planned(key, config)
    known = settled if holds(settled, lr) else found.run_dir
    return replace(found, earlier=known) if RunFolder(known).is_run else found


def holds(folder: Path, lr: float | None) -> bool:
    """Return whether a run with this learning rate has its place in the comparison already."""
    run = RunFolder(folder)
    return run.is_run and run.given.train.lr == lr


def train_arms(plan: ComparisonPlan) -> tuple[list[FinishedRun], list[dict[str, Any]]]:
    """Train every model; return the runs, and a row for each rate that was tried.

    Raises TrainingError, Interrupted: the same comparison can be continued."""
    slurm, folder, tracker = plan.slurm, plan.folder / "jobs", plan.request.base.output.tracker
    clock = None if plan.until is None else Clock(plan.sharing.jobs, plan.until, spare=not plan.continued)
    with training(
        plan.sharing,
        slurm=slurm,
        folder=folder,
        opened=plan.opened,
        tracker=tracker,
        may_diverge=True,
        begin=None if clock is None else clock.begin,
    ) as train:
        tried = train_all(plan, train, clock)
    return [run for place in range(len(plan.request.labels)) for run in finished_runs(plan, place)], tried


def write_commands(plan: ComparisonPlan) -> tuple[Path, list[str]]:
    """Write a config and a command for each run that can be trained now.

    Returns the file of commands, and its lines. If learning rates are tuned, these are the trials at first, and the
    other seeds when the trials are finished.
    """
    commands = []
    try:
        train_all(plan, finished_only)
    except NotFinished as waiting:
        for run in waiting.runs:
            path = plan.folder / "plan" / f"{run.name.replace('/', '_')}.json"
            path.parent.mkdir(exist_ok=True)
            write_json(path, to_dict(run.config))
            commands.append(command("train", "--config", path, "--auto-resume"))
    file = plan.folder / "commands.txt"
    write_text(file, "".join(f"{line}\n" for line in commands))
    return file, commands


class NotFinished(Exception):
    """Runs that the next step of a comparison waits for."""

    def __init__(self, runs: list[Planned]) -> None:
        super().__init__()
        self.runs = runs


def finished_only(plans: Sequence[Planned]) -> Iterator[tuple[Planned, Outcome]]:
    """Yield finished runs, and train none. Raises NotFinished: some are missing."""
    if left := [run for run in plans if not RunFolder(run.run_dir).is_finished]:
        raise NotFinished(left)
    for run in plans:
        yield run, Outcome(read_result(RunFolder(run.run_dir)))


def train_all(plan: ComparisonPlan, train: TrainAll, clock: Clock | None = None) -> list[dict[str, Any]]:
    """Train all runs by `train`; return a row for each rate that was tried.

    All rates are tried at the first seed, and the best run becomes the run of that seed. `clock`: it gives each run its
    end.
    """
    if any(arm.keeps_features for arm in plan.arms):  # all runs share them in a folder that is there
        base = plan.request.base
        claimed_folder(base.output, base.data.source)
        features_folder(base.output, base.data.source).mkdir(exist_ok=True)
    progress, rows = Progress(plan, clock), []
    seconds = [*(plan.seconds or [0.0] * plan.number_of_runs)]

    def trained(runs: Iterable[ArmRun]) -> Iterator[tuple[ArmRun, RunResult | None]]:
        plans = {run: planned_run(plan, run) for run in runs}
        by_name = {each.name: run for run, each in plans.items()}
        expected = dict(zip(by_name, seconds, strict=False))
        del seconds[: len(plans)]
        if clock is not None:
            left = [each.name for each in plans.values() if not RunFolder(each.run_dir).is_finished]
            clock.expect({name: expected[name] for name in left}, seconds)
        for each, outcome in train([*plans.values()]):
            progress.end(each.name, outcome, expected=expected[each.name])
            yield by_name[each.name], outcome.result

    searched, first, others = plan.searched, plan.seeds[0], plan.seeds[1:]
    of_one_rate = [ArmRun(cell, seed, *plan.rates(plan.arms[cell[1]])) for seed in plan.seeds for cell in plan.untuned]
    results: dict[Cell, dict[float | None, RunResult | None]] = {cell: {} for cell in searched}
    for run, result in trained([*of_one_rate, *(ArmRun(cell, first, lr) for lr in plan.grid for cell in searched)]):
        if run.cell in results:
            results[run.cell][run.lr] = result
        else:
            require_result(plan, run, result)
    chosen = {cell: choose_rate(plan, cell, results[cell]) for cell in searched}
    for cell in searched:
        of_arm = {"labels_per_class": plan.request.labels[cell[0]], "arm": plan.arms[cell[1]].name}
        for lr in plan.grid:
            result = results[cell][lr]
            scores = {f"val_{name}": result.val[name] if result else None for name in ("accuracy", "loss")}
            rows.append({**of_arm, "lr": lr, **scores, "chosen": lr == chosen[cell]})
    for run, result in trained([ArmRun(cell, seed, chosen[cell]) for seed in others for cell in searched]):
        require_result(plan, run, result)
    return rows


def require_result(plan: ComparisonPlan, run: ArmRun, result: RunResult | None) -> None:
    """Raise TrainingError where a run with the only rate of its model has diverged."""
    if result is None:
        raise TrainingError(f"{planned_run(plan, run)} diverged: choose other rates by --tune-lr, or lr=R of its model")


def choose_rate(plan: ComparisonPlan, cell: Cell, results: dict[float | None, RunResult | None]) -> float | None:
    """Return the rate of the best run on validation, and move it to its place."""
    usable = [(lr, result) for lr in plan.grid if (result := results[lr])]
    if not usable:
        tried = ", ".join(f"{lr:g}" for lr in plan.grid)
        raise TrainingError(f"{plan.arms[cell[1]].name} diverged at every learning rate of {tried}")
    lr, best = max(usable, key=lambda tried: rank_key(plan.select)(tried[1].val))
    settled = folder_of(plan, cell, plan.seeds[0])
    if best.run_dir != settled:
        settled.parent.mkdir(parents=True, exist_ok=True)
        best.run_dir.rename(settled)
    return lr


def finished_runs(plan: ComparisonPlan, place: int) -> list[FinishedRun]:
    """Read the runs under one label budget, by model and seed."""
    labels = plan.request.labels[place]
    runs = [
        replace(read_run(folder_of(plan, (place, number), seed)), arm=arm.name, labels_per_class=labels)
        for number, arm in enumerate(plan.arms)
        for seed in plan.seeds
    ]
    require_same_data(runs)
    return runs


class Progress:
    """Prints a line for each run that has ended, with the time that is left.

    That is the time of `clock`, or follows from the pace so far."""

    def __init__(self, plan: ComparisonPlan, clock: Clock | None = None) -> None:
        self.plan, self.clock, self.done, self.late = plan, clock, 0, False
        self.waiting = plan.all_seconds
        self.trained = self.taken = 0.0

    def end(self, name: str, outcome: Outcome, *, expected: float) -> None:
        result = outcome.result
        if self.clock is not None:
            self.clock.end(name)
        self.done, self.waiting = self.done + 1, self.waiting - expected
        if outcome.trained and result is not None:
            self.trained, self.taken = self.trained + expected, self.taken + outcome.seconds
        runs, left = self.plan.number_of_runs - self.done, 0.0
        if self.clock is not None:
            left = self.clock.left
        elif self.trained and runs:
            left = self.taken / self.trained * self.waiting / min(self.plan.sharing.jobs, runs)
        if self.done == 1:
            console.say(f"{'run':>7}  {'val acc':>8}  {'time':>6}  {'left':>6}")
        score = "diverged" if result is None else f"{result.val['accuracy']:.1%}"
        took = console.duration(outcome.seconds) if outcome.trained else "done"
        rest = console.duration(left) if left else ""
        row = f"{self.done:>3}/{self.plan.number_of_runs:<3}  {score:>8}  {took:>6}  {rest:>6}"
        console.say(f"{row}  {name}" if len(row) + len(name) <= WIDTH - 2 else f"{row}\n{'':>9}{name}")
