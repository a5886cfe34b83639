"""One run of a plan: its time, its options, and the line that says what it gave."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from common.text import pluralise
from trainers.auto_resume import find_same_options
from trainers.budget.deadline import LATE, ending_at
from trainers.config import RunConfig
from trainers.reporting import console
from trainers.run import Handler
from trainers.storage.data_folder import named_folder
from trainers.storage.run_folder import RunFolder
from trainers.storage.run_result import RunResult

TRAINING = 20.0
"""Seconds that are enough to train a network."""
UNUSED = 0.05
"""Share of the time that may stay unused without a word."""

Start = Callable[[RunConfig, Sequence[Handler]], RunResult]
"""Trains one run and returns its result."""


@dataclass(frozen=True)
class Budget:
    """Minutes that a person gave, and when they end by `time.monotonic`.

    A rehearsal takes none of the time."""

    minutes: float
    until: float
    rehearsed: bool = False

    @property
    def left(self) -> float:
        """Return the seconds that are left."""
        return 60 * self.minutes if self.rehearsed else self.until - time.monotonic()

    @property
    def late(self) -> float:
        """Return the seconds that it may be late."""
        return LATE * 60 * self.minutes

    def less(self, seconds: float) -> "Budget":
        """Return the budget that ends so many seconds earlier."""
        return replace(self, until=self.until - seconds)


def with_deadline(
    config: RunConfig, passes: float, until: float, *, most: float = math.inf
) -> tuple[RunConfig, list[Handler]]:
    """Return options of about so many passes, and the handler that ends them."""
    config = options_begun(config.changed(train={"epochs": rounded(passes)}))
    return config, [ending_at(until, most=most)]


def rounded(epochs: float) -> int | float:
    """Round to whole epochs, or to hundredths where the run is short."""
    return int(epochs) if epochs >= 20 else max(0.01, int(100 * epochs) / 100)


def part_of_plan(config: RunConfig, kind: str, *, pictures: bool = True) -> RunConfig:
    """Return the options of one of several runs.

    It has a name of its own where one was given, and no pictures where another run has them."""
    output: dict[str, Any] = {} if pictures or config.output.tb != "standard" else {"tb": "scalars"}
    if config.output.run_name is not None and kind:
        output["run_name"] = f"{config.output.run_name}_{kind}"
    return config.changed(output=output)


def options_begun(config: RunConfig) -> RunConfig:
    """Return the options with which this very command began a run, else these.

    It is found by its name, or by its options but for the epochs."""
    output = config.output
    if not output.auto_resume:
        return config
    run = find_same_options(config, planned=True) if output.run_name is None else RunFolder(named_folder(config))
    begun = run.requested if run is not None and run.is_of_this_command else None
    return config if begun is None else replace(begun, output=output)


def say_unused(budget: Budget, why: str) -> None:
    """Say how much of the time stays unused, and why, unless that is little."""
    if budget.left > UNUSED * 60 * budget.minutes and not budget.rehearsed:
        console.say(f"{console.duration(budget.left)} stay unused: {why}", label="plan")


def say_result(label: str, result: RunResult, more: Iterable[str] = ()) -> None:
    """Say what a run of the plan gave, and more lines about it."""
    for line in more:
        console.say(line, label="")
    accuracy, loss = console.percent(result.val["accuracy"]), result.val["loss"]
    images = pluralise(result.images["val"], "validation image")
    console.say(f"{accuracy} of {images} right, log loss {loss:.3f}: {result.run_dir}", label=label)
