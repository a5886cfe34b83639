"""How a run directory comes to be: in one step, with everything in it that the run starts from."""

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from datasets import skipped
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


def make_run_directory(job: Job, *, requested: RunConfig) -> Path:
    """The folder of a new run, with config.json, meta.json and split.csv. This process holds its lock.

    Raises:
        ConfigError: `--run-name` is taken.
    """
    meta = describe_start(job, to_dict(requested))
    while True:
        run_dir = plan_run_directory(job.config)
        try:
            with made_whole(run_dir) as aside:
                lock.take(aside)
                write_inputs(aside, job, meta)
            return run_dir
        except FileExistsError:  # another process took the name meanwhile
            continue


@contextmanager
def made_whole(folder: Path) -> Iterator[Path]:
    """A hidden folder to fill, which becomes `folder` when the block ends well: no stop leaves half of it.

    Raises:
        FileExistsError: there is such a folder by now.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_dead_starts(folder.parent)
    aside = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
    aside.mkdir()
    try:
        yield aside
        if folder.exists():  # an empty one would be replaced without a word
            raise FileExistsError(folder)
        os.rename(aside, folder)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise FileExistsError(folder) from error
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def remove_dead_starts(parent: Path) -> None:
    """Remove the hidden folders of processes that were killed while they filled or emptied them."""
    for aside in parent.glob(".*.tmp"):
        if aside.is_dir() and lock.is_left(aside):
            shutil.rmtree(aside, ignore_errors=True)


def discard(folder: Path) -> None:
    """Remove a folder of this process's own making, in one step for all who look."""
    aside = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
    os.rename(folder, aside)
    shutil.rmtree(aside, ignore_errors=True)


def describe_start(job: Job, requested: dict[str, Any]) -> dict[str, Any]:
    """The content of meta.json."""
    meta = describe_environment(command_line(), job.device, fingerprint(job.data))
    meta |= {"processes": distributed.world_size()}
    return meta | {"skipped_images": list(skipped(job.data)), "requested": requested}


def write_inputs(folder: Path, job: Job, meta: dict[str, Any]) -> None:
    """What a run starts from: config.json, meta.json, split.csv."""
    write_run_config(folder, job.config)
    write_json(folder / "meta.json", meta)
    write_split(folder / "split.csv", job.data)
