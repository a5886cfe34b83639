"""Compare models, from a request or finished runs, to a verdict and a report."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from statistics import mean

from common.files import made_whole
from common.shell import watch
from comparison.announcement import announce_plan, known_problems, protocol
from comparison.plan import ComparisonPlan, Request
from comparison.planning import find_folder, plan_comparison, settle
from comparison.results import Comparison, compared
from comparison.runs import FinishedRun, cautions, group_into_arms, on_unseen, read_run, require_same_data
from comparison.train_arms import train_arms, write_commands
from comparison.verdict import last_screen
from datasets.split_csv import write_split
from trainers.config import OutputConfig, metric_of, rank_key, to_dict
from trainers.reporting import console
from trainers.storage.data_folder import claimed_folder, free_folder, free_in, home_of
from trainers.storage.run_folder import RunFolder, write_json
from trainers.storage.run_result import best_of_several, read_result
from trainers.system import folder_lock, process_state
from trainers.system.signals import signals


@signals.handled()
@process_state.restored()
@console.model_log()
def compare_arms(
    request: Request, *, jobs: int | None = None, slurm: dict[str, str] | None = None, began: float | None = None
) -> Comparison:
    """Train all models, seed by seed, and report who wins.

    The same request continues a comparison that was stopped. `jobs` runs train side by side; None: as
    many as this machine carries. `slurm`: they are jobs of its queue, with these options; `jobs` None is then all of
    them at once. They come out the same. `began`: the second of `time.monotonic` from which the minutes count, now if
    None. Raises OptionError, DataError, WeightsError: before anything is trained or written. TrainingError,
    Interrupted: the same request continues.
    """
    hint = "the same command continues where this one stopped"
    with signals.hinting(hint), planned(request, jobs, slurm, began) as plan:
        warnings = tuple(known_problems(plan))
        for line in warnings:
            console.say(line, label="warning")
        console.say()
        runs, tuning = train_arms(plan)
        metric = metric_of(plan.select)
        kept = keep_the_best(runs, select=metric)
        comparison = compared(
            request.base.data.source,
            runs,
            scored="held-out validation" if plan.split.halved else "test",
            protocol=tuple(protocol(plan)),
            warnings=warnings,
            tuning=tuple(tuning),
            folder=plan.folder,
            kept=kept,
        )
        show(comparison)
        console.say(f"{kept}: best validation {metric.replace('_', ' ')}", label="latest")
        # The report is there: from now on the same command starts another comparison.
        write_json(plan.folder / "compare.json", {"status": "finished", "requested": to_dict(request)})
    return comparison


@signals.handled()
@console.model_log()
def plan_arms(request: Request) -> tuple[Path, list[str]]:
    """Write a config for each run of a comparison, and train none.

    Returns a file of commands, and its lines. The same request to `compare_arms` collects the runs. Raises OptionError,
    DataError, WeightsError: before anything is written.
    """
    with planned(request, sys.maxsize) as plan:
        return write_commands(plan)


@contextmanager
def planned(
    request: Request, jobs: int | None, slurm: dict[str, str] | None = None, began: float | None = None
) -> Iterator[ComparisonPlan]:
    """Plan a comparison, print the plan, and hold its folder in the block."""
    with ExitStack() as holding:
        plan = take_folder(plan_comparison(request, jobs=jobs, slurm=slurm, began=began), holding, jobs=jobs)
        announce_plan(plan)
        yield plan


def take_folder(plan: ComparisonPlan, holding: ExitStack, *, jobs: int | None) -> ComparisonPlan:
    """Make the folder of a comparison, or take that of a stopped one.

    This process holds it until `holding` ends."""
    while not folder_lock.hold(plan.folder, holding):
        folder, continued = find_folder(plan.request)
        plan = settle(replace(plan, folder=folder, continued=continued), jobs=jobs)
    if not plan.continued:
        claimed_folder(plan.request.base.output, plan.request.base.data.source)
        with made_whole(plan.folder) as aside:
            write_json(aside / "compare.json", {"status": "running", "requested": to_dict(plan.request)} | plan.settled)
            write_split(aside / "split.csv", plan.split.samples)
    elif not plan.split_file.is_file():
        write_split(plan.split_file, plan.split.samples)
    return plan


def keep_the_best(runs: Sequence[FinishedRun], *, select: str) -> Path:
    """Record one run as the result of a comparison, and return its directory.

    It is, with the most labels, the best seed of the model whose mean validation score is best. The test images score
    the models; they choose no run."""
    richest = max(runs, key=lambda run: run.labels_per_class or math.inf).labels_per_class
    by_arm = groupby((run for run in runs if run.labels_per_class == richest), key=lambda run: run.arm)
    arms = [[read_result(run.folder) for run in of_arm] for _, of_arm in by_arm]
    means = [{name: mean(run.val[name] for run in runs) for name in (select, "loss")} for runs in arms]
    best = arms[max(range(len(arms)), key=lambda place: rank_key(select)(means[place]))]
    kept = best_of_several(best, select=select).folder
    kept.keep()
    return kept.path


def compare_runs(names: Sequence[str], output: OutputConfig, *, elsewhere: bool = False) -> Comparison:
    """Compare finished runs, and leave them unchanged.

    The report lies with the first of them, or `elsewhere`, where `output` says. Raises FileNotFoundError, DataError,
    CheckpointError: a run is missing, not whole, has no test images, or was given other ones."""
    folders = [RunFolder.find(name, output.output_dir) for name in names]
    unseen, seen = on_unseen([read_run(folder.path) for folder in folders])
    require_same_data(unseen, splits=("test",))
    runs = group_into_arms(unseen)
    for _, of_arm in groupby(runs, key=lambda run: run.arm):
        require_same_data([*of_arm])
    warnings = (*seen, *cautions(runs))
    for line in warnings:
        console.say(line, label="warning")
    home = None if elsewhere else home_of(folders[0].path)
    if home is None:
        folder = free_folder(output, folders[0].config.data.source, "compare")
    else:
        folder = free_in(home, output, "compare")
    comparison = compared(
        runs[0].config["data"]["source"],
        runs,
        protocol=(
            "These runs were trained on their own; nothing was tuned here. Scored on the test images, once per run, "
            "with the weights of the best validation epoch.",
            "They saw the same images but for what a warning says; whether their budgets were equal, the table tells.",
        ),
        warnings=warnings,
        folder=folder,
    )
    show(comparison)
    return comparison


def show(comparison: Comparison) -> None:
    """Write the report of a comparison, and print the answer."""
    # Only now: what matplotlib and scikit-learn take would count as memory of the runs before.
    from comparison.report import write_report

    write_report(comparison)
    folder, runs = comparison.folder, comparison.runs["folder"]
    shown = folder if runs.iloc[0].path.is_relative_to(folder) else folder.parent  # the finished runs are in it, too
    console.say("\n" + "\n".join(last_screen(comparison)) + "\n")
    console.say(f"{folder / 'report.html'}", label="report")
    console.say(watch(shown), label="watch")
