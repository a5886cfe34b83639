"""Share a machine between the runs of one command: how many at a time, and with how many threads each."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from datasets.processes import cpu_count
from trainers.options.defaults import require_known_device, resolve_device
from trainers.system.process import launched, require_whole


@dataclass(frozen=True)
class Sharing:
    """Share of a machine that each of several runs has.

    Results depend on `threads` alone, and those not on `jobs`."""

    jobs: int
    """Runs at a time."""
    threads: int | None
    """Threads of each run; None: torch's default."""
    gpus: tuple[str, ...] = ()
    """Names of the GPUs as CUDA_VISIBLE_DEVICES has them, where there are several."""


def sharing(
    device: str,
    runs: int,
    *,
    jobs: int | None = None,
    threads: int | None = None,
    slurm: Mapping[str, str] | None = None,
) -> Sharing:
    """Plan one run for each processor or GPU, with equal parts of the processors.

    `jobs` and `threads` are the user's own. Jobs of Slurm start all at once, each with the processors that these
    options of sbatch give it. Raises OptionError: no such device."""
    require_whole()
    if slurm is not None:
        require_known_device(device)
        given = slurm.get("cpus-per-task", "1")
        return Sharing(
            min(jobs or runs, runs), threads or (int(given) if given.isdecimal() else 1)
        )  # sbatch refuses it
    if launched() > 1:  # started by torchrun: each run has all processes
        return Sharing(1, threads)
    kind, _, number = resolve_device(device).partition(":")
    cores = cpu_count()
    if kind == "cpu":
        if threads is None:
            chosen = torch.get_num_threads() if "OMP_NUM_THREADS" in os.environ else None
            threads = chosen or cores // min(runs, cores)
        return Sharing(min(jobs or max(1, cores // threads), runs), threads)
    count = torch.cuda.device_count() if kind == "cuda" and not number else 1
    if count == 1:
        return Sharing(min(jobs or 1, runs), threads)
    names = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")
    return Sharing(min(jobs or count, runs), threads or max(1, cores // min(runs, count)), tuple(names[:count]))
