"""Train several runs of one command: seeds, folds, models of a comparison, learning rates that it tries.

Each is an ordinary run. A finished one is read, a stopped one continues, one after the other here, side by side in
worker processes, or as jobs in a queue.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from common.errors import Diverged, TrainingError
from datasets.open import OpenedImages
from trainers.auto_resume import train_or_resume
from trainers.budget.deadline import ending_at
from trainers.config import RunConfig
from trainers.multirun.sharing import Sharing
from trainers.multirun.slurm import runner
from trainers.reporting.console import quiet, say
from trainers.storage.data_folder import named_folder
from trainers.storage.run_folder import RunFolder
from trainers.storage.run_result import RunResult, read_result
from trainers.system import process


@dataclass(frozen=True)
class Outcome:
    """What became of a run."""

    result: RunResult | None
    """None: it diverged."""
    trained: bool = False
    """It was trained by this command, not read."""
    seconds: float = 0.0


@dataclass(frozen=True)
class Planned:
    """One run of several, as another process gets it."""

    name: str
    """What is shown of it, such as `run 2 of 3` or `pretrained/10/s0`."""
    config: RunConfig
    earlier: Path | None = None
    """Run that it continues."""
    until: float | None = None
    """When it shall be over, by `time.monotonic`; it then takes as many steps as there is time for."""

    def __str__(self) -> str:
        return self.name

    @property
    def run_dir(self) -> Path:
        """Return the directory of a run with a name or one that continues.

        It may not exist yet."""
        return named_folder(self.config) if self.earlier is None else self.earlier

    def outcome(self) -> Outcome:
        """Read what a job of a queue has left; without a result it has diverged."""
        run = RunFolder(self.run_dir)
        if not run.is_finished:
            return Outcome(None, trained=True)
        return Outcome(read_result(run), trained=True, seconds=run.summary["seconds"])


TrainAll = Callable[[Sequence[Planned]], Iterator[tuple[Planned, Outcome]]]
"""Trains runs, and yields each with its outcome as they end."""


@contextmanager
def training(
    sharing: Sharing,
    *,
    slurm: dict[str, str] | None = None,
    folder: Path | None = None,
    opened: OpenedImages | None = None,
    tracker: str | None = None,
    aloud: bool = False,
    may_diverge: bool = False,
    begin: Callable[[Planned], Planned] | None = None,
) -> Iterator[TrainAll]:
    """Give a function that trains several runs, here or as jobs of a queue.

    `slurm`: options of sbatch for jobs, which have their files in `folder`. `opened`: images that this process has
    opened. `may_diverge`: a run that diverges is an outcome, no error. `begin`: makes a run another one
    at its start."""
    if tracker is not None:
        from trainers.reporting import trackers

        trackers.prepare_for_several(tracker)
    opened = opened or OpenedImages() if slurm is None and sharing.jobs == 1 else None
    train = partial(train_one, opened=opened, aloud=aloud, may_diverge=may_diverge)
    with runner(sharing, slurm, folder) as each:

        def train_all(plans: Sequence[Planned]) -> Iterator[tuple[Planned, Outcome]]:
            done = [planned.earlier is not None and RunFolder(planned.earlier).is_finished for planned in plans]
            for planned, finished in zip(plans, done, strict=True):
                if finished:
                    yield planned, Outcome(read_result(RunFolder(planned.run_dir)))
            left = [planned for planned, finished in zip(plans, done, strict=True) if not finished]
            if left:
                yield from each(train, map(begin or (by_itself if slurm is not None else as_planned), left))

        yield train_all


def as_planned(planned: Planned) -> Planned:
    return planned


def by_itself(planned: Planned) -> Planned:
    """Return a run whose job finds what it did before the queue moved it."""
    return replace(planned, config=planned.config.changed(output={"auto_resume": True}))


def train_one(planned: Planned, *, opened: OpenedImages | None, aloud: bool, may_diverge: bool) -> Outcome:
    """Train one run or go on with it. `opened` None: a worker has its own."""
    process.give_back_freed_memory()
    began = time.perf_counter()
    with nullcontext() if aloud else quiet():
        say(str(planned))
        try:
            opened = opened or of_this_worker()
            ends = [] if planned.until is None else [ending_at(planned.until)]
            result = train_or_resume(planned.config, earlier=planned.earlier, opened=opened, handlers=ends)
        except TrainingError as error:
            if not (may_diverge and isinstance(error.__cause__, Diverged)):
                raise
            return Outcome(None, trained=True, seconds=time.perf_counter() - began)
        say()
    return Outcome(result, trained=True, seconds=time.perf_counter() - began)


@cache
def of_this_worker() -> OpenedImages:
    """Return the images that a worker process has opened, for all of its runs."""
    return OpenedImages()
