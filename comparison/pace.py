"""How fast a device will train a model it has not trained yet: measured on one product, not on the model."""

from __future__ import annotations

import time

import torch

SHARE_OF_PRODUCT = 0.6
"""Of the matrix product's rate: a training step of 65 tokens x 192 x 6 layers reached 0.76 in bf16 on two cores
(benchmarks/results/step_throughput_small_bf16.json); a real run also loads, validates and saves."""


def training_flops_per_second(device: torch.device, dtype: torch.dtype, *, seconds: float = 0.3) -> float:
    """The rate at which training steps of a large ViT should run: a share of what a large matrix product does."""
    side = 1024
    a, b = (torch.ones(side, side, device=device, dtype=dtype) for _ in range(2))
    _synchronise(a @ b)
    products, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        _synchronise(a @ b)
        products += 1
    return SHARE_OF_PRODUCT * products * 2 * side**3 / (time.perf_counter() - started)


def _synchronise(result: torch.Tensor) -> None:
    if result.device.type == "cuda":
        torch.cuda.synchronize(result.device)
