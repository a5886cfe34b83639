"""On paper: what a step of a ViT takes on 8, 64 and 512 GPUs, what it must read, decode and cost, and where that stops.

    python -m benchmarks.scale_model                 the tables of docs/evidence/scale.md
    torchrun --nproc-per-node 2 -m benchmarks.scale_model --check      two processes here against the same formula

FLOPs and parameters are counted in the models of this project. What is assumed of the machines is `ASSUMED`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import ignite.distributed as idist
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.environment import describe, write_result
from benchmarks.step_throughput import textbook_flops
from datasets.text import format_table
from vit.config import VIT_SHAPES, ViTConfig
from vit.fast import VisionTransformer

MODELS = ("vit_tiny_16", "vit_small_16", "vit_base_16", "vit_large_16", "vit_huge_14")
GPUS = (8, 64, 512)
NODE = 8
BUCKET = 25 * 2**20  # bytes of gradients that DistributedDataParallel sends at once


@dataclass(frozen=True)
class Assumed:
    """Quantities that are not measured here."""

    peak_flops: float = 989e12  # H100 SXM, bfloat16, dense
    of_peak: float = 0.5  # reached by matrix products
    memory: float = 2.7e12  # bytes/s: 80 % of 3.35e12
    passes: float = 3 * 34  # bytes moved per token and channel of a block: 34 kept (Korthikanti et al. 2022), thrice
    launches: float = 400e-6  # seconds a block at least: 80 kernels, forward and backward
    within_node: float = 360e9  # bytes/s of all-reduce among 8 GPUs: 80 % of NVLink's 450e9
    across_nodes: float = 320e9  # 80 % of eight adapters of 400 Gbit/s in every node
    latency: float = 30e-6  # seconds of each doubling of the number of GPUs, and of each bucket
    images_per_gpu: int = 128
    bytes_per_image: float = 110e3  # the mean JPEG of ImageNet
    decoded_per_core: float = 210.0  # images/s, measured: benchmarks/results/data_pipeline.json, 420 on two cores
    gpu_hour: float = 2.5  # dollars
    images_seen: float = 300 * 1.281e6  # 300 epochs of ImageNet


ASSUMED = Assumed()


@dataclass(frozen=True)
class Step:
    """Seconds of one step and its parts."""

    compute: float
    all_reduce: float
    step: float

    @property
    def efficiency(self) -> float:
        return self.compute / self.step


def step_of(compute: float, all_reduce: float, parts: int) -> Step:
    """Gradients are sent while the backward pass, two thirds of a step, makes the rest; the last part has to wait."""
    exposed = max(all_reduce / parts, all_reduce - 2 / 3 * compute)
    return Step(compute, all_reduce, compute + exposed)


def all_reduce_seconds(size: float, gpus: int, assumed: Assumed) -> float:
    """A ring: each process sends and receives 2 (n - 1) / n of the bytes."""
    rate = assumed.within_node if gpus <= NODE else assumed.across_nodes
    steps = (gpus - 1).bit_length() + -(-size // BUCKET)
    return 2 * (gpus - 1) / gpus * size / rate + steps * assumed.latency


def on_paper(name: str, gpus: int, assumed: Assumed = ASSUMED) -> dict[str, float | str]:
    config = ViTConfig(**VIT_SHAPES[name])
    with torch.device("meta"):
        size = 4 * sum(parameter.numel() for parameter in VisionTransformer(config).parameters())  # float32
    images, tokens = assumed.images_per_gpu, (config.image_size // config.patch_size) ** 2 + 1
    products = 3 * textbook_flops(config) * images / (assumed.peak_flops * assumed.of_peak)
    moved = assumed.passes * config.depth * config.embed_dim * tokens * images / assumed.memory
    compute = max(products + moved, assumed.launches * config.depth)
    step = step_of(compute, all_reduce_seconds(size, gpus, assumed), max(1, round(size / BUCKET)))
    rate = gpus * assumed.images_per_gpu / step.step
    of_node = rate * min(1, NODE / gpus)
    return {
        "model": name, "GPUs": gpus, "batch": gpus * assumed.images_per_gpu, "step, ms": 1e3 * step.step,
        "all-reduce, ms": 1e3 * step.all_reduce, "efficiency": step.efficiency, "images/s": rate,
        "read, GB/s": rate * assumed.bytes_per_image / 1e9, "cores/node": of_node / assumed.decoded_per_core,
        "hours": assumed.images_seen / rate / 3600,
        "dollars": assumed.images_seen / rate / 3600 * gpus * assumed.gpu_hour,
    }  # fmt: skip


def shown(row: dict[str, float | str]) -> list[str]:
    digits = {"step, ms": 1, "all-reduce, ms": 2, "efficiency": 2, "read, GB/s": 1, "hours": 2}
    return [cell if isinstance(cell, str) else f"{cell:,.{digits.get(name, 0)}f}" for name, cell in row.items()]


def check(rounds: int) -> None:
    """The formula for the step of two processes, from the parts measured apart, against that step: medians over rounds,
    in each of which all three are measured one after the other."""
    idist.initialize("gloo")
    torch.manual_seed(0)
    model = VisionTransformer(ViTConfig(**VIT_SHAPES["vit_tiny_16"]))
    wrapped = DistributedDataParallel(model)
    images, gradients = torch.randn(2, 3, 224, 224), [torch.zeros_like(p) for p in model.parameters()]
    size = 4 * sum(gradient.numel() for gradient in gradients)
    flat = torch.zeros(size // 4)

    def backward(network: nn.Module) -> None:
        network(images).square().mean().backward()

    def parts() -> Iterator[Callable[[], object]]:
        yield lambda: backward(model)
        yield lambda: torch.distributed.all_reduce(flat)
        yield lambda: backward(wrapped)

    found = []
    for _ in range(rounds + 1):
        compute, sent, whole = map(seconds, parts())
        paper = step_of(compute, sent, max(1, round(size / BUCKET))).step
        found.append({"compute": compute, "all_reduce": sent, "step": whole, "on_paper": paper, "ratio": whole / paper})
    if idist.get_rank() == 0:
        medians = {name: statistics.median(row[name] for row in found[1:]) for name in found[0]}
        spread = [min(row["ratio"] for row in found[1:]), max(row["ratio"] for row in found[1:])]
        write_result("scale_model_check", describe() | {"rounds": rounds, "spread_of_ratio": spread} | medians)
    idist.finalize()


def seconds(part: Callable[[], object]) -> float:
    torch.distributed.barrier()
    begun = time.perf_counter()
    part()
    torch.distributed.barrier()
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="measure two processes here")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    if options.check:
        check(options.rounds)
        return
    rows = [on_paper(name, gpus) for name in MODELS for gpus in GPUS]
    print("\n".join(format_table([list(rows[0]), *map(shown, rows)])))
    write_result("scale_model", {"assumed": asdict(ASSUMED), "rows": rows})


if __name__ == "__main__":
    main()
