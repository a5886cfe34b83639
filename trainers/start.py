"""How a run directory comes to be: in one step, with everything in it that the run starts from."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from datasets.bundle import samples_of
from datasets.files import folder_aside
from datasets.splits import fingerprint, write_split
from trainers import distributed, lock
from trainers.config import RunConfig, to_dict
from trainers.job import Job
from trainers.run_directory import (
    command_line,
    describe_environment,
    plan_run_directory,
    write_json,
    write_run_config,
)


@contextmanager
def new_run_directory(job: Job, *, requested: RunConfig) -> Iterator[Path]:
    """The folder of a new run, with config.json, meta.json and split.csv; this process holds it while the block runs.
    Raises ConfigError: `--run-name` is taken."""
    with ExitStack() as holding:
        yield distributed.broadcast(lambda: make_run_directory(job, requested, holding))


def make_run_directory(job: Job, requested: RunConfig, holding: ExitStack) -> Path:
    meta = describe_start(job, to_dict(requested))
    while not lock.hold(run_dir := plan_run_directory(job.config), holding):
        pass  # another process has made it meanwhile: the next name
    with made_whole(run_dir) as aside:
        write_inputs(aside, job, meta)
    return run_dir


@contextmanager
def made_whole(folder: Path) -> Iterator[Path]:
    """A hidden folder to fill, which becomes `folder` when the block ends well: no stop leaves half of it. The folder
    is this process's: it holds its lock, or nobody else knows of it."""
    with folder_aside(folder) as aside:
        yield aside
        os.rename(aside, folder)


def discard(folder: Path) -> None:
    """Remove a folder of this process's own making, in one step for all who look."""
    with folder_aside(folder) as aside:
        os.rename(folder, aside / folder.name)


def describe_start(job: Job, requested: dict[str, Any]) -> dict[str, Any]:
    """The content of meta.json."""
    meta = describe_environment(command_line(), job.device, fingerprint(job.data))
    meta |= {"processes": distributed.world_size()}
    return meta | {"skipped_images": list(samples_of(job.data).skipped), "requested": requested}


def write_inputs(folder: Path, job: Job, meta: dict[str, Any]) -> None:
    """What a run starts from: config.json, meta.json, split.csv."""
    write_run_config(folder, job.config)
    write_json(folder / "meta.json", meta)
    write_split(folder / "split.csv", job.data)
