"""Run `train`: one model, one run directory."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from commands.arguments import DEFAULT_MINUTES, TrainOptions
from commands.output import report, say_what_next, say_what_was_seen
from commands.parser import UsageError
from common.options import InFits, InPlans
from datasets.built_in import BUILT_IN
from trainers.config import RunConfig, run_options
from trainers.options.recipes import RECIPES, card
from trainers.reporting import console
from vit.config import embedded_weights

if TYPE_CHECKING:
    from ignite.engine import Engine

    from datasets.open import OpenedImages
    from trainers.budget.planned_run import Budget
    from trainers.run import Handler
    from trainers.storage.run_result import RunResult


Options = TrainOptions

AS_IN_A_FIT = (None, "auto", "fit", "on")
"""Values that say nothing else than what a fitted head has: `start_head = "fit"`, `cache_features = "on"`."""
SHOWN = 3
"""Options that are named where more say how to train."""


def main(options: TrainOptions) -> int:
    began = time.monotonic()
    own = options.minutes is None and options.data.source not in BUILT_IN
    how = how_to_train(options) if own else []
    minutes = DEFAULT_MINUTES if own and not how else options.minutes
    refuse_without_effect(options, planned=minutes is not None)
    if own and not how:
        print(
            f"Nothing says how to train: looking for the best model in {minutes:g} minutes (--minutes M changes it).\n"
        )
    from datasets.open import OpenedImages  # torch takes seconds to import; --help should not

    opened = OpenedImages()
    config = with_weights(options.run, opened)
    if options.config in RECIPES:
        console.say(f"{card(options.config)}\n")
    if minutes is not None and config.train.start_head == "fit":
        console.say("--minutes has no effect: a head that is fitted takes the time that it takes", label="note")
        minutes = None
    if minutes is not None:
        from trainers.budget.planned_run import Budget

        budget = Budget(minutes, began + 60 * minutes, rehearsed=options.dry_run)
        return (rehearse_planned if options.dry_run else train_planned)(config, budget, opened, options.with_)
    fitted = options.train.start_head == "fit"
    say_what_trains(config, how, idle_in_a_fit(options) if fitted else [])
    if options.dry_run or options.find_lr:
        return rehearse(config, opened, find_lr=options.find_lr)
    if several_runs(options):
        return train_several(config, options.seeds, **options.placed)
    return train(config, opened)


def several_runs(options: TrainOptions) -> bool:
    """Return whether the command trains a run for each seed or fold."""
    data = options.data
    return options.seeds > 1 or (data.folds is not None and data.fold is None)


def how_to_train(options: TrainOptions) -> list[str]:
    """List what is given that says how to train, which else a plan decides."""
    several = {
        "torchrun": "WORLD_SIZE" in os.environ,
        f"--config {options.config}": options.config in RECIPES,
        "--seeds": options.seeds > 1,
        "--folds": options.data.folds is not None,
    }
    found = [name for name, holds in several.items() if holds]
    own = RECIPES[options.config].options if options.config in RECIPES else {}
    for option in run_options():
        if option.name in own.get(option.section, {}):
            continue  # the recipe is named itself
        value = option.of(options)
        is_open = value == option.default and value in (None, "auto")
        says_how = option.section in ("model", "train") and option not in run_options(InPlans)
        if option.flag in options.given and says_how and not is_open:
            found.append(option.said)
    return found


def idle_in_a_fit(options: TrainOptions, *, section: str = "train") -> list[str]:
    """List the given options of a section that change nothing where a head is fitted."""
    of_section = [o for o in run_options() if o.section == section and o not in run_options(InFits)]
    return [o.said for o in of_section if o.flag in options.given and o.of(options) not in AS_IN_A_FIT]


def say_what_trains(config: RunConfig, how: Sequence[str], idle: Sequence[str]) -> None:
    """Say which options keep `train PATH` from planning, and which are `idle`.

    And that a model starts from random weights although some come with it."""
    from trainers.system.distributed import is_main_process

    if not is_main_process():
        return
    if how:
        named = ", ".join(how[:SHOWN]) + (f" and {len(how) - SHOWN} more" if len(how) > SHOWN else "")
        console.say(f"none, because of {named}: one model trains", label="plan")
    if idle:
        console.say(f"a head that is fitted at once leaves without effect: {', '.join(idle)}", label="note")
    if weights := embedded_weights(config.model):
        left = f"--weights {weights} starts from those that come with it, --weights none leaves this line out"
        console.say(f"{config.model.name} starts from random weights; {left}", label="note")


def refuse_without_effect(options: TrainOptions, *, planned: bool) -> None:
    """Raise UsageError for an option that has no effect on what is trained."""
    if (options.jobs != "auto" or options.on) and not several_runs(options):
        given = "--on slurm" if options.on else f"--jobs {options.jobs}"
        raise UsageError(f"{given}: one run is one process; of --seeds and --folds several train at a time")
    if options.with_ and not (planned and options.model.name == "auto" and options.model.weights is None):
        raise UsageError(f"--with {options.with_[0]}: only a plan (--minutes, no --model) uses several networks")
    if options.dry_run and options.find_lr:
        raise UsageError("--dry-run and --find-lr: give one of them")
    if (options.dry_run or options.find_lr) and several_runs(options):
        raise UsageError("--dry-run and --find-lr try one run: leave out --seeds and --folds")
    others = ["--augment"] if options.data.augment not in ("auto", "none") else []
    others += [f"--config {options.config}"] if options.config in RECIPES else []
    idle = [*idle_in_a_fit(options, section="model"), *others, *idle_in_a_fit(options)]
    if options.model.weights == "auto" and idle:
        raise UsageError(f"--weights auto fits a head to frozen networks: leave out {', '.join(idle)}")
    if planned and options.find_lr:
        how = "leave out --minutes" if options.minutes else "name it with --model, or give --epochs"
        raise UsageError(f"--find-lr is for one model, and a plan has its own rates: {how}")


def train_planned(config: RunConfig, budget: Budget, opened: OpenedImages, more: Sequence[str]) -> int:
    """Train the best model for the time and report it.

    `more`: networks to use, as `--with` names them."""
    from trainers.auto_resume import train_or_resume
    from trainers.budget.plan import best_in
    from trainers.system.signals import signals

    def start(config: RunConfig, handlers: Sequence[Handler]) -> RunResult:
        with nullcontext() if handlers else console.quiet():  # the plan says what a fitted head gave
            return train_or_resume(config, handlers=handlers, opened=opened)

    with signals.hinting("the same command with --auto-resume continues the plan"):
        kept = best_in(budget, config, start, opened=opened, more=more)
    kept.folder.keep()
    report(kept)
    return 0


def rehearse_planned(config: RunConfig, budget: Budget, opened: OpenedImages, more: Sequence[str]) -> int:
    """Try every run of a plan on two batches, in a temporary folder."""
    from trainers.budget.plan import best_in
    from trainers.rehearsal import dry_run

    say_untracked(config)
    numbers = itertools.count(1)
    with TemporaryDirectory() as folder:
        config = config.changed(output={"output_dir": Path(folder)})

        def start(config: RunConfig, handlers: Sequence[Handler]) -> RunResult:
            return dry_run(config, opened=opened, number=next(numbers))

        best_in(budget, config, start, opened=opened, more=more)
    return 0


def with_weights(config: RunConfig, opened: OpenedImages) -> RunConfig:
    """Resolve `--weights auto`, which looks at the images."""
    if config.model.weights != "auto":
        return config
    from trainers.budget.networks import all_local

    return all_local(config, opened)


def train(config: RunConfig, opened: OpenedImages) -> int:
    from trainers.auto_resume import train_or_resume
    from trainers.budget.pace import say_forecast
    from trainers.system.distributed import is_main_process

    def forecast(trainer: Engine) -> None:
        run = trainer.state.run
        resumed = run.folder.checkpoints("step")  # and has less to do
        if not resumed and not run.setup.config.train.compile:  # else a copy would be compiled first
            say_forecast(run.setup)

    result = train_or_resume(config, handlers=[forecast], opened=opened)
    if is_main_process():
        report(result)
    return 0


def rehearse(config: RunConfig, opened: OpenedImages, *, find_lr: bool) -> int:
    """Do what `--find-lr` and `--dry-run` do instead of a run."""
    from trainers import rehearsal
    from trainers.system import distributed

    if not distributed.is_main_process():  # one process is enough
        return 0
    say_untracked(config)
    if find_lr:
        rehearsal.find_lr(config)
    else:
        rehearsal.dry_run(config, opened=opened)
    return 0


def say_untracked(config: RunConfig) -> None:
    """Say that a rehearsal sends nothing. Raises MissingPackage: the tracker is not installed."""
    from trainers.reporting import trackers

    if config.output.tracker is not None:
        trackers.require(config.output.tracker)
        console.say(f"--tracker {config.output.tracker}: nothing is sent, for nothing is trained", label="note")


def train_several(config: RunConfig, seeds: int, *, jobs: int | None, slurm: dict[str, str] | None) -> int:
    """Train runs of several folds or seeds, and print mean and spread of their scores."""
    from trainers.multirun import seeds_and_folds
    from trainers.system.distributed import is_main_process

    if seeds > 1 and config.data.folds is not None:
        raise UsageError("--seeds trains ordinary runs: leave out --folds")
    if slurm is not None and (config.output.run_name is None or "WORLD_SIZE" in os.environ):
        raise UsageError("--on slurm needs --run-name, by which the same command finds its jobs again, and no torchrun")
    configs = seeds_and_folds.of_folds(config) if seeds == 1 else seeds_and_folds.of_seeds(config, seeds)
    results = seeds_and_folds.train_all(configs, jobs=jobs, slurm=slurm)
    if not is_main_process():
        return 0
    print(f"{len(results)} {'folds' if seeds == 1 else 'seeds'}: mean (standard deviation)")
    print("\n".join(seeds_and_folds.summarise_runs(results)))
    say_what_was_seen(results)
    if seeds == 1:
        console.say(str(seeds_and_folds.write_folds(results)), label="table")
    kept, why = seeds_and_folds.kept_of(results)
    kept.folder.keep()
    console.say(f"{kept.run_dir}: {why}", label="latest")
    say_what_next(kept.run_dir)
    return 0
