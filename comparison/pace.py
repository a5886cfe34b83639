"""What the same comparison on photographs takes on this machine: measured on one product, not on the model."""

import shlex
import time

import torch

from trainers.console import duration
from trainers.defaults import computes_in_bf16, resolve_device

BIGGER = ("compare", "--data", "hymenoptera", "--epochs", "10", "--tune-lr", "off")
"""The story of the bare command on photographs and with ImageNet's weights."""

SHARE_OF_PRODUCT = 0.6
"""Of the matrix product's rate: a training step of 65 tokens x 192 x 6 layers reached 0.76 in bf16 on two cores
(benchmarks/results/step_throughput_small_bf16.json); a real run also loads, validates and saves."""


def print_bigger_version(device_name: str) -> None:
    """Print the command, its downloads, and about how long it takes on a device."""
    # ViT-B/16 at 224 px: 35.1 GFLOPs forward, 3 times that a step; 244 images x 10 epochs x 3 seeds x 2 arms.
    device = resolve_device(device_name)
    dtype = torch.bfloat16 if computes_in_bf16(device) else torch.float32
    seconds = 3 * 35.1e9 * 244 * 10 * 3 * 2 / training_flops_per_second(torch.device(device), dtype)
    print(f"{'next':>9}  python main.py {shlex.join(BIGGER)}")
    print(f"{'':>9}  vit_b_16 from scratch and pretrained on ImageNet, 3 seeds each, about {duration(seconds)} on this")
    print(f"{'':>9}  machine; downloads 330 MB of weights and 47 MB of images")


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
