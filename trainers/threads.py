"""How many threads a run computes with: as many as help on a machine that others use too. Recorded in config.json.

PyTorch's threads wait for each other by spinning. Where another process holds one of the processors, two threads took
1,167 ms for a step that one takes in 63. Results depend on the number in their last bits, so a run keeps its own.
"""

import math
import os
from collections.abc import Callable
from dataclasses import replace

import torch

from datasets.image_dataset import cpu_count
from trainers import console
from trainers.config import RunConfig
from trainers.job import Job
from trainers.pace import first_batches, read, seconds_of

BUSY = 0.7
"""Processes waiting for a processor, on the average of a minute, from which a machine counts as shared."""
GIVEN_UP = 4.0
"""A number of threads that is so much slower at its first pass is not tried again."""
GAIN = 1.3
"""Fewer threads are taken only where they are so much faster: on a quiet machine the number never changes."""


def shared_machine() -> bool:
    """Whether the number of threads is worth a measurement: others compute here, and nobody has chosen it."""
    chosen = "OMP_NUM_THREADS" in os.environ or torch.get_num_threads() < cpu_count()
    return not chosen and hasattr(os, "getloadavg") and os.getloadavg()[0] > BUSY


def with_threads(config: RunConfig, trial: Callable[[], Job]) -> RunConfig:
    """The options with the number of threads written out, and this process set to it; `trial` gives a job like
    theirs where something has to be measured."""
    threads = config.train.threads
    if threads is None:
        threads = quickest(trial()) if shared_machine() else torch.get_num_threads()
    torch.set_num_threads(threads)
    return replace(config, train=replace(config.train, threads=threads))


@torch.inference_mode()
def quickest(job: Job) -> int:
    """The number of threads with which a forward pass is fastest; all of them unless fewer are much faster."""
    most, number = torch.get_num_threads(), 1
    if job.device.type != "cpu":
        return most
    images = read(first_batches(job.data).dataloaders["train"])[1][0][0]
    seconds: dict[int, float] = {}
    while most not in seconds:
        torch.set_num_threads(number)
        passes = [seconds_of(lambda: job.model(images))]
        while len(passes) < 4 and passes[0] < GIVEN_UP * min(seconds.values(), default=math.inf):
            passes.append(seconds_of(lambda: job.model(images)))
        seconds[number] = min(passes)
        number = min(2 * number, most)
    return chosen(seconds)


def chosen(seconds: dict[int, float]) -> int:
    """From the seconds of a pass by the number of threads; says so where it is not all of them."""
    best, most = min(seconds, key=seconds.__getitem__), max(seconds)
    if seconds[most] < GAIN * seconds[best]:
        return most
    passes = f"a forward pass takes {1000 * seconds[best]:.0f} ms, {1000 * seconds[most]:.0f} with {most}"
    console.say(f"{'threads':>9}  {best}, for others compute here: {passes}")
    return best
