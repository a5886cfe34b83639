"""Time the matrix products of a training step alone: what no ViT of this shape can do without.

    python -m benchmarks.matrix_products --dtype fp32 [--rounds 5]

Of this ViT and the four others of benchmarks/peers.py, one training step is recorded: every operation that multiplies
matrices (linear layers, convolutions, attention), with the shapes and layouts of what it takes. A round times some
steps of each contestant, then its recorded operations one after the other on numbers of the same shapes. What is left
of a step is its other work: norms, GELU, sums, the optimizer, Python; softmax, too, where attention is not one fused
kernel. `limit`: how many times as fast as the best other one a step would be that did nothing but products, the
fewest that any of the five needs.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from benchmarks.environment import describe, write_result
from benchmarks.peers import CONTESTANTS, OURS, PEERS
from benchmarks.step_throughput import CONFIGS, Runner

PRODUCTS = re.compile(r"^aten\.(mm|addmm|bmm|baddbmm|linear|convolution|_scaled_dot_product)|mkldnn.*linear")


class Recorder(TorchDispatchMode):
    """Keep the matrix products of what runs, as calls on numbers of the same shapes and layouts."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if PRODUCTS.search(str(func)):
            args_, kwargs_ = tree_map(alike, (args, kwargs or {}))
            self.calls.append(partial(func, *args_, **kwargs_))
        return func(*args, **kwargs or {})


def alike(value: Any) -> Any:
    """Return other numbers in a tensor's shape and layout; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    new = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return new.normal_() if value.is_floating_point() else new.copy_(value)


def products_of(runner: Runner) -> list[Callable[[], Any]]:
    with Recorder() as recorder:
        runner.train()
    return recorder.calls


def seconds_of(calls: list[Callable[[], Any]], *, times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        for call in calls:
            call()
    return (time.perf_counter() - start) / times


def measured(name: str, *, dtype: str, rounds: int) -> dict[str, Any]:
    """Return milliseconds of a step and of its products, for each contestant; medians over rounds."""
    config, batch = CONFIGS[name]
    runners = {
        peer: Runner(each, config, batch, dtype=dtype, device="cpu", compiled=False)
        for peer, each in CONTESTANTS.items()
    }
    for runner in runners.values():
        runner.choose_attention("train")
    calls = {peer: products_of(runner) for peer, runner in runners.items()}
    once = runners[OURS.name].seconds_per_step("train", steps=1)
    times = max(1, round(0.5 / once))
    found: dict[str, list[tuple[float, float]]] = {peer: [] for peer in runners}
    generator = np.random.default_rng(0)
    with torch.no_grad():
        for _ in range(rounds):
            for peer in generator.permutation(list(runners)):
                with torch.enable_grad():
                    step = runners[peer].seconds_per_step("train", steps=times)
                seconds_of(calls[peer], times=1)
                found[peer].append((step, seconds_of(calls[peer], times=times)))
    rows = {
        peer: dict(zip(("step_ms", "products_ms"), milliseconds(pairs), strict=True)) for peer, pairs in found.items()
    }
    for row in rows.values():
        row["share"] = round(row["products_ms"] / row["step_ms"], 3)
    best = min((peer.name for peer in PEERS), key=lambda peer: rows[peer]["step_ms"])
    ours, theirs = rows[OURS.name], rows[best]
    ratios = {
        "ratio": theirs["step_ms"] / ours["step_ms"],
        "limit": theirs["step_ms"] / min(row["products_ms"] for row in rows.values()),
    }
    return {"best_peer": best, **{key: round(value, 2) for key, value in ratios.items()}, "rows": rows}


def milliseconds(pairs: list[tuple[float, float]]) -> list[float]:
    return [round(1e3 * float(np.median(values)), 2) for values in zip(*pairs, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--configs", nargs="+", choices=CONFIGS, default=["micro", "small", "tiny"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dry-run", action="store_true", help="print, but keep no file under benchmarks/results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    result: dict[str, Any] = {"dtype": options.dtype, "rounds": options.rounds, "threads": options.threads}
    result["load_average_at_start"] = os.getloadavg()[0]
    for name in options.configs:
        result[name] = found = measured(name, dtype=options.dtype, rounds=options.rounds)
        print(name, {key: found[key] for key in ("best_peer", "ratio", "limit")}, found["rows"], file=sys.stderr)
    if not options.dry_run:
        write_result(f"matrix_products_{options.dtype}", result | describe("timm", "transformers", "vit-pytorch"))


if __name__ == "__main__":
    main()
