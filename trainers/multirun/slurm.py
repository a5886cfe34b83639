"""Do several runs of one command as jobs in Slurm's queue, through submitit.

A job that is warned of its end saves and puts itself into the queue again; one that Slurm moves starts again; either
continues where it stopped. The first process only waits for what they leave in a folder that all machines see.
"""

import os
import shlex
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from common.errors import Interrupted, OptionError, TrainingError, first_line, import_optional
from common.shell import EXTRAS
from trainers.multirun.sharing import Sharing
from trainers.multirun.worker_pool import WorkerPool, one_by_one
from trainers.reporting.console import say
from trainers.storage.run_folder import read_if_whole, write_json
from trainers.system import process
from trainers.system.distributed import as_text_and_code, attempt, raise_elsewhere
from trainers.system.signals import signals

Each = Callable[..., Iterator[tuple[Any, Any]]]
"""A function like `one_by_one`."""
SECONDS_BETWEEN_LOOKS = 2.0
LOOKS_UNTIL_LOST = 15
"""Looks at which a job is neither in the queue nor has left a result, for a network's disk may show a file late."""
WARNED = ("SIGUSR1", "SIGUSR2")
"""Signals that a job's time is almost over; SIGTERM comes where Slurm itself puts it back, or someone cancels it."""


def runner(sharing: Sharing, slurm: dict[str, str] | None, folder: Path | None) -> AbstractContextManager[Each]:
    """Give a function like `one_by_one` for this machine, or for the queue.

    `slurm`: options of sbatch; None: this machine. Each item of jobs has a `run_dir` of its own, from which `outcome()`
    reads what the run found. Their files lie in `folder`."""
    if slurm is None:
        torch.cuda.empty_cache()  # what this process needed to look at the models
        return nullcontext(one_by_one) if sharing.jobs == 1 else WorkerPool(sharing.jobs, sharing.gpus)
    assert folder is not None
    return nullcontext(on_slurm(folder, sharing.jobs, {"cpus-per-task": str(sharing.threads or 1)} | slurm))


def on_slurm(folder: Path, jobs: int, options: dict[str, str]) -> Each:
    """Return a function like `one_by_one` that does up to `jobs` items as jobs.

    Raises MissingPackage: no submitit. OptionError: no Slurm."""
    submitit = import_optional("submitit", f"--on slurm needs submitit: {EXTRAS}")
    try:
        executor = submitit.SlurmExecutor(folder)
    except RuntimeError as error:
        raise OptionError(f"--on slurm needs Slurm's commands, sbatch, srun, squeue: {first_line(error)}") from error
    home = Path(__file__).parents[__name__.count(".")]  # the jobs do not start at main.py
    path = os.pathsep.join(filter(None, (str(home), os.environ.get("PYTHONPATH"))))
    executor.update_parameters(
        job_name="vit",
        array_parallelism=jobs,
        additional_parameters={"requeue": True, "time": "1-00:00:00"} | options,
        setup=[f"export PYTHONPATH={shlex.quote(path)}"],
    )
    return partial(as_jobs, executor)


def as_jobs(executor: Any, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield each item with its result as they end.

    Jobs of an earlier command are taken up. Raises TrainingError: Slurm does not say which of those there are, or a job
    is gone."""
    todo = {str(item.run_dir): item for item in items}
    register = executor.folder / "jobs.json"
    known = read_if_whole(register) or {}
    queue = in_queue() if known else set()
    if queue is None:  # jobs would run twice
        raise TrainingError("squeue does not answer: which earlier jobs still run is not known; try again later")
    fresh = [key for key in todo if known.get(key) not in queue]
    if fresh:
        with signals.deferred():  # or nobody would know of these jobs
            submitted = executor.map_array(partial(run_as_job, function, executor.folder), [todo[key] for key in fresh])
            known |= {key: job.job_id for key, job in zip(fresh, submitted, strict=True)}
            write_json(register, known)
    waiting = {known[key]: item for key, item in todo.items()}
    if waiting:
        taken_up = len(todo) - len(fresh)
        say(f"{len(fresh)} jobs submitted, {taken_up} taken up; their output: {executor.folder}", label="slurm")
    try:
        for item in as_they_end(executor, waiting):
            yield item, item.outcome()
    except Interrupted:
        say(f"{len(waiting)} jobs go on; scancel {' '.join(waiting)} ends them", label="slurm")
        raise


def as_they_end(executor: Any, waiting: dict[str, Any]) -> Iterator[Any]:
    """Yield the items of `waiting` as they end, and take them out of it.

    Its keys are numbers of jobs. Raises TrainingError: a job is gone. FailedElsewhere: what the function raised in it.
    """
    missed: Counter[str] = Counter()
    while waiting:
        queue = in_queue()
        for number, item in list(waiting.items()):
            if (said := read_if_whole(executor.folder / f"{number}.json")) is not None:
                del waiting[number]
                raise_elsewhere([said["error"]])
                yield item
            elif queue is not None:
                missed[number] = 0 if number in queue else missed[number] + 1
                if missed[number] > LOOKS_UNTIL_LOST:
                    log = executor.folder / f"{number}_0_log.err"
                    raise TrainingError(f"job {number}, {item}, ended without a result; its output: {log}")
        time.sleep(SECONDS_BETWEEN_LOOKS)


def in_queue() -> set[str] | None:
    """Return the numbers of this user's jobs in the queue.

    None: Slurm does not answer now."""
    asked = subprocess.run(["squeue", "--me", "--noheader", "--array", "--format=%i"], capture_output=True, text=True)
    return set(asked.stdout.split()) if asked.returncode == 0 else None


def run_as_job(function: Callable[[Any], Any], folder: Path, item: Any) -> None:
    """Do an item in a job; write its error, or none, into a file.

    The file has the job's number. An interrupted job writes none; if it was warned, it queues itself again."""
    process.settle()
    os.environ["TQDM_DISABLE"] = "1"
    from submitit import JobEnvironment

    try:
        with signals.handled():
            _, error = attempt(partial(function, item))
        write_json(folder / f"{JobEnvironment().job_id}.json", {"error": as_text_and_code(error)})
    except Interrupted as stop:
        if signal.Signals(stop.signum).name in WARNED:
            subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=True)
        process.leave(stop.exit_code)
