"""Number of threads of a run: as many as help on a machine that others use too. Recorded in config.json.

PyTorch's threads wait for each other by spinning, unless others compute when the command starts (`choose_waiting` in
trainers/system/process.py). Where another process holds one of the processors, two threads that spin may take many
times as long for a step as one (docs/evidence/benchmarks.md, "Beside other processes"). Results depend on the number in
their last bits, so a run keeps its own.
"""

import math
import os
import time
from collections.abc import Callable

import torch

from datasets.image_dataset import cpu_count
from trainers.budget.pace import few_batches, read, seconds_of
from trainers.config import RunConfig
from trainers.reporting import console
from trainers.setup import RunSetup

BUSY = 0.7
"""Processes waiting for a processor, on the average of a minute, from which a machine counts as shared, where half as
many processors work at the moment."""
GIVEN_UP = 4.0
"""A number of threads that is so much slower at its first pass is not tried again."""
GAIN = 1.3
"""Fewer threads are taken only where they are so much faster: on a quiet machine the number never changes."""


def shared_machine() -> bool:
    """Return whether the number of threads is worth a measurement: others compute here, and nobody has chosen it."""
    chosen = "OMP_NUM_THREADS" in os.environ or torch.get_num_threads() < cpu_count()
    return not chosen and hasattr(os, "getloadavg") and os.getloadavg()[0] > BUSY and processors_at_work() > BUSY / 2


def processors_at_work(seconds: float = 0.2) -> float:
    """Count the processors at work while this process waits: the average of a minute still counts a command that has
    ended. Infinite where the system does not say (it is not Linux)."""
    try:
        before = ticks()
        time.sleep(seconds)
        idle, total = (now - then for now, then in zip(ticks(), before, strict=True))
    except (OSError, ValueError):
        return math.inf
    return (os.cpu_count() or 1) * (1 - idle / max(1, total))


def ticks() -> tuple[int, int]:
    """Read the ticks of all processors since the start of the machine: idle, and in all (proc_stat(5))."""
    with open("/proc/stat", encoding="ascii") as file:
        counts = [int(count) for count in file.readline().split()[1:9]]
    return counts[3] + counts[4], sum(counts)


def with_threads(config: RunConfig, trial: Callable[[], RunSetup]) -> RunConfig:
    """The options with the number of threads written out, and this process set to it; `trial` gives a setup like
    theirs where something has to be measured."""
    threads = config.train.threads
    if threads is None:
        threads = quickest(trial()) if shared_machine() else torch.get_num_threads()
    torch.set_num_threads(threads)
    return config.changed(train={"threads": threads})


@torch.inference_mode()
def quickest(setup: RunSetup) -> int:
    """The number of threads with which a forward pass is fastest; all of them unless fewer are much faster."""
    most, number = torch.get_num_threads(), 1
    if setup.device.type != "cpu":
        return most
    images = read(few_batches(setup.data).dataloaders["train"])[1][0][0]
    seconds: dict[int, float] = {}
    while most not in seconds:
        torch.set_num_threads(number)
        passes = [seconds_of(lambda: setup.model(images))]
        while len(passes) < 4 and passes[0] < GIVEN_UP * min(seconds.values(), default=math.inf):
            passes.append(seconds_of(lambda: setup.model(images)))
        seconds[number] = min(passes)
        number = min(2 * number, most)
    return chosen(seconds)


def chosen(seconds: dict[int, float]) -> int:
    """Choose from the seconds of a pass by the number of threads; say so where it is not all of them."""
    best, most = min(seconds, key=seconds.__getitem__), max(seconds)
    if seconds[most] < GAIN * seconds[best]:
        return most
    passes = f"{1000 * seconds[best]:.0f} ms per forward pass, {1000 * seconds[most]:.0f} ms with {most}"
    console.say(f"{best} (machine busy: {passes})", label="threads")
    return best
