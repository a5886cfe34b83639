"""Randomness as a function of position, so that resuming needs no generator's state.

The random numbers of a training step (dropout, stochastic depth, MixUp) depend only on (seed, iteration, slice), where
the slice is the rank of the process or the index of the micro-batch. Evaluation may use random numbers freely: the next
step seeds again.
"""

import hashlib
import random

import numpy as np
import torch


def derive_seed(*numbers: int) -> int:
    """Hash integers to 32 well-mixed bits.

    torch's CPU generator uses only the low 32 bits of a seed, so shifting or adding the numbers would make different
    positions share a stream.
    """
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=4).digest(), "little")


def seed_everything(seed: int) -> None:
    """Seed the code before the first step, above all the initial weights."""
    random.seed(derive_seed(seed, 0))
    np.random.seed(derive_seed(seed, 1))
    torch.manual_seed(derive_seed(seed, 2))


def seed_step(seed: int, iteration: int, slice_index: int, device: torch.device) -> None:
    """Seed the generator of dropout on `device`.

    torch.manual_seed would take 100 times as long: it visits every device."""
    value = derive_seed(seed, 3, iteration, slice_index)
    torch.default_generator.manual_seed(value)
    if device.type == "cuda":
        number = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[number].manual_seed(value)
    elif device.type == "mps":
        torch.mps.manual_seed(value)


def step_generator(seed: int, iteration: int, slice_index: int) -> torch.Generator:
    """Return a CPU generator for random numbers outside the model: MixUp, CutMix."""
    return torch.Generator().manual_seed(derive_seed(seed, 4, iteration, slice_index))
