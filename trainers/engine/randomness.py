"""Randomness as a function of position, so that a killed run can be resumed without saving any generator's state.

Whatever a training step draws (dropout, stochastic depth, MixUp) depends only on (seed, iteration, slice), where the
slice is the rank of the process or the number of the micro-batch. Evaluation may draw as it likes: the next step seeds
again.
"""

import hashlib
import random

import numpy as np
import torch


def derive_seed(*numbers: int) -> int:
    """Hash integers to 32 well-mixed bits. torch's CPU generator looks only at the low 32 bits of a seed, so shifting
    or adding them together would make different positions share a stream."""
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=4).digest(), "little")


def seed_everything(seed: int) -> None:
    """Seed what runs before the first step: initial weights, above all."""
    random.seed(derive_seed(seed, 0))
    np.random.seed(derive_seed(seed, 1))
    torch.manual_seed(derive_seed(seed, 2))


def seed_step(seed: int, iteration: int, slice_index: int, device: torch.device) -> None:
    """Seed the generator that dropout uses on `device`. torch.manual_seed would cost 100 times as much: it visits
    every device."""
    value = derive_seed(seed, 3, iteration, slice_index)
    torch.default_generator.manual_seed(value)
    if device.type == "cuda":
        number = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[number].manual_seed(value)
    elif device.type == "mps":
        torch.mps.manual_seed(value)


def step_generator(seed: int, iteration: int, slice_index: int) -> torch.Generator:
    """A generator on the CPU for what a step draws outside the model: MixUp and CutMix."""
    return torch.Generator().manual_seed(derive_seed(seed, 4, iteration, slice_index))
