"""Sharing of a machine by several runs: how many train side by side, and with how many threads each."""

import os
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from datasets.cache import available_memory, total_memory
from datasets.processes import cpu_count
from trainers.engine.engines import autocast
from trainers.setup import RunSetup

OF_A_PROCESS = 7 * 2**27
"""Bytes allowed for what a run holds beside model and batch: libraries, images, pictures, what malloc keeps."""

WORTH_A_PROCESS = 1e12
"""Operations of all runs, about half a minute of one processor, from which another process is worth its start."""


@dataclass(frozen=True)
class Sharing:
    """Share of a machine that each of several runs has. Results depend on `threads` alone, and those not on `jobs`."""

    jobs: int
    """Runs side by side."""
    threads: int | None
    """Threads of each run; None on a GPU."""
    gpus: tuple[str, ...] = ()
    """Names of the GPUs as CUDA_VISIBLE_DEVICES has them, where there are several."""


def sharing(
    device: str, need: int, runs: int, work: float, *, jobs: int | None = None, threads: int | None = None
) -> Sharing:
    """Plan how to share the machine between so many runs, each of which needs so many bytes at most, and all of them so
    much `work` in operations; `jobs` and `threads` are a person's own.

    Each has an equal share of the processors: of as many runs as there are, or as the machine's memory carries.
    """
    kind, _, number = device.partition(":")
    if kind == "cuda":
        count = 1 if number else torch.cuda.device_count()
        names = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")
        return Sharing(min(jobs or count, runs), threads, tuple(names[:count]) if count > 1 else ())
    if kind != "cpu":
        return Sharing(min(jobs or 1, runs), threads)
    if threads is None:
        carried = max(1, min(runs, total_memory() // need))
        threads = torch.get_num_threads() if "OMP_NUM_THREADS" in os.environ else max(1, cpu_count() // carried)
    fitting = max(1, min(cpu_count() // threads, available_memory() // need)) if work > WORTH_A_PROCESS else 1
    return Sharing(min(jobs or fitting, runs), threads)


def memory_of(setup: RunSetup) -> int:
    """Bytes that a run holds, roughly: four times the weights, and what a step keeps for its backward pass."""
    images = -(-(setup.config.data.batch_size or 1) // setup.config.train.accumulate)
    of_one, of_two = kept_for_backward(setup, 1), kept_for_backward(setup, 2)  # casts of weights are in both
    weights = sum(parameter.nbytes for parameter in setup.model.parameters())
    return OF_A_PROCESS + 4 * weights + of_one + (images - 1) * (of_two - of_one)


def kept_for_backward(setup: RunSetup, images: int) -> int:
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    side, was_training = setup.spec.image_size, setup.model.training
    setup.model.eval()
    with torch.enable_grad(), autocast(setup.device, setup.amp_dtype), saved_tensors_hooks(note, lambda tensor: tensor):
        logits = setup.model(torch.zeros(images, setup.spec.in_channels, side, side, device=setup.device))
        total = sum(kept.values())
    del logits  # only now: memory that is free again would stand for two tensors
    setup.model.train(was_training)
    return total
