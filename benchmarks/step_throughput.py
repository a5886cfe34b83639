"""Time a training step and inference of this ViT and four others, in one process.

    python -m benchmarks.step_throughput --config small --dtype bf16 [--compile] [--rounds 12]

The rules are the same for all: float32 master weights, the same autocast, fused AdamW, the same inputs, dropout 0, and
each library at its own fastest attention setting, found out first. The contestants take turns, one turn each per round
and a new order every round, so that a busy moment of the machine falls on all of them; a ratio is the median over
rounds of the ratios within a round, with its 95 % bootstrap interval. GFLOP/s count the forward pass of the textbook
model (2 FLOPs per multiply-add, every block working on all tokens), a training step as three of them, for all alike;
the matrix-multiply rate of the same dtype is measured between the rounds. Peak memory is the maximum resident set of a
fresh process that takes training steps; `added` leaves out what its imports alone hold.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import bootstrap
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.environment import describe, write_result
from benchmarks.peers import CONTESTANTS, OURS, PEERS, Peer
from trainers.engine.handlers import peak_memory_mb
from vit.config import VIT_SHAPES, ViTConfig
from vit.model import VisionTransformer

# name -> shape, batch size. micro: what a plain `python main.py` trains; small: 65 tokens x 192 x 6 layers.
CONFIGS: dict[str, tuple[ViTConfig, int]] = {
    "micro": (ViTConfig(**VIT_SHAPES["vit_micro_2"], num_classes=10), 64),
    "tiny": (ViTConfig(**VIT_SHAPES["vit_tiny_16"]), 8),
    "small": (ViTConfig(image_size=32, patch_size=4, embed_dim=192, depth=6, num_heads=3), 64),
    "base": (ViTConfig(**VIT_SHAPES["vit_base_16"]), 4),
}
MODES = ("train", "infer")
# With one thread, CPU seconds are what wall-clock seconds would be if nobody else used the processor.
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
TURN_SECONDS = 0.4  # a turn is as many steps as fit in, at least one


def textbook_flops(config: ViTConfig) -> int:
    """Count the operations of one image's forward pass, every block working on all tokens."""
    side = config.image_size
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        VisionTransformer(config).forward_with_attention(torch.empty(1, config.in_channels, side, side))
    return counter.get_total_flops()


class Runner:
    """Hold a contestant with its optimizer: what a turn times."""

    def __init__(self, peer: Peer, config: ViTConfig, batch: int, *, dtype: str, device: str, compiled: bool) -> None:
        torch.manual_seed(0)
        self.clock = CLOCKS["wall"]
        self.peer, self.device, self.dtype = peer, device, dtype
        self.plain = peer.build(config).to(device)
        self.model: Callable[..., Any] = torch.compile(self.plain) if compiled else self.plain
        self.optimizer = torch.optim.AdamW(self.plain.parameters(), lr=1e-4, fused=True)
        self.loss_fn = nn.CrossEntropyLoss()
        self.images = torch.randn(batch, 3, config.image_size, config.image_size, device=device)
        self.labels = torch.randint(config.num_classes, (batch,), device=device)
        self.batch = batch
        self.setting = dict.fromkeys(MODES, peer.settings[0])

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.dtype == "bf16")

    def train(self) -> None:
        with self.autocast():
            loss = self.loss_fn(self.model(self.images), self.labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    @torch.inference_mode()
    def infer(self) -> None:
        with self.autocast():
            self.model(self.images)

    def seconds_per_step(self, mode: str, *, steps: int) -> float:
        """Time one turn, after a step that brings the contestant's weights back into the caches."""
        self.plain.train(mode == "train")
        self.peer.set_attention(self.plain, self.setting[mode])
        step = getattr(self, mode)
        step()
        self._wait()
        start = self.clock()
        for _ in range(steps):
            step()
        self._wait()
        return (self.clock() - start) / steps

    def choose_attention(self, mode: str) -> dict[str, float]:
        """Time every setting the library offers, keep the fastest; images per second of each."""
        seconds = dict.fromkeys(self.peer.settings, float("inf"))
        for _ in range(2):
            for setting in seconds:
                self.setting[mode] = setting
                seconds[setting] = min(seconds[setting], self.seconds_per_step(mode, steps=2))
        self.setting[mode] = min(seconds, key=lambda setting: seconds[setting])
        return {setting: round(self.batch / value, 2) for setting, value in seconds.items()}

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def matmul_rate(dtype: str, device: str, *, clock: Callable[[], float]) -> float:
    """Measure GFLOP/s of a square matrix multiplication: what this machine can do at best."""
    size = 2048
    kind = torch.bfloat16 if dtype == "bf16" else torch.float32
    a, b = torch.randn(size, size, dtype=kind, device=device), torch.randn(size, size, dtype=kind, device=device)
    best = float("inf")
    for _ in range(4):
        start = clock()
        (a @ b)[0, 0].item()  # reading one number waits for an accelerator
        best = min(best, clock() - start)
    return 2 * size**3 / best / 1e9


def measure(
    runners: dict[str, Runner], *, rounds: int, dtype: str, device: str
) -> tuple[dict[str, dict[str, list[float]]], list[float]]:
    """Return seconds per step by mode, contestant and round, and each round's matmul rate."""
    clock = next(iter(runners.values())).clock
    steps = {}
    for mode in MODES:
        for name, runner in runners.items():
            once = runner.seconds_per_step(mode, steps=1)
            steps[mode, name] = max(1, round(TURN_SECONDS / once))
    seconds: dict[str, dict[str, list[float]]] = {mode: {name: [] for name in runners} for mode in MODES}
    rates = []
    generator = np.random.default_rng(0)
    for number in range(rounds):
        rates.append(matmul_rate(dtype, device, clock=clock))
        for mode in MODES:
            for name in generator.permutation(list(runners)):
                seconds[mode][name].append(runners[name].seconds_per_step(mode, steps=steps[mode, name]))
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return seconds, rates


def ratio_interval(ours: list[float], theirs: list[float]) -> dict[str, Any]:
    """Return our speed over theirs: median of paired ratios, 95 % percentile bootstrap."""
    ratios = np.array(theirs) / np.array(ours)
    if len(ratios) < 2:
        return {"ratio": round(float(ratios[0]), 3), "interval_95": None}
    low, high = bootstrap((ratios,), np.median, rng=0, method="percentile").confidence_interval
    return {"ratio": round(float(np.median(ratios)), 3), "interval_95": [round(float(low), 3), round(float(high), 3)]}


def table(seconds: dict[str, list[float]], *, batch: int, gflop: float, rate: float) -> dict[str, dict[str, Any]]:
    """Yield a row per contestant; `gflop`: work of one image, `rate`: matmul rate in GFLOP/s."""
    rows = {}
    for name, values in seconds.items():
        images = batch / float(np.median(values))
        rows[name] = {
            "images_per_s": round(images, 2),
            "gflop_per_s": round(images * gflop, 1),
            "share_of_matmul": round(images * gflop / rate, 3),
        }
        if name != OURS.name:
            rows[name] |= {"ours_over_it": ratio_interval(seconds[OURS.name], values)}
    return rows


def best_peer(rows: dict[str, dict[str, Any]]) -> str:
    return max((peer.name for peer in PEERS), key=lambda name: rows[name]["images_per_s"])


def peak_memory(name: str, arguments: list[str], setting: str) -> dict[str, float]:
    """Return a fresh process's peak memory in MB, and the part that training added."""
    command = [sys.executable, "-m", "benchmarks.step_throughput", *arguments, "--memory-of", name, setting]
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def report_memory(name: str, setting: str, config: ViTConfig, batch: int, dtype: str, device: str) -> None:
    peer = CONTESTANTS[name]
    peer.build(ViTConfig(image_size=8, patch_size=4, embed_dim=8, depth=1, num_heads=1, num_classes=2))  # its imports
    before = peak_memory_mb(torch.device(device))
    runner = Runner(peer, config, batch, dtype=dtype, device=device, compiled=False)
    runner.setting["train"] = setting
    runner.seconds_per_step("train", steps=4)
    peak = peak_memory_mb(torch.device(device))
    if peak is None or before is None:
        raise SystemExit("this system does not tell the peak memory of a process")
    print(json.dumps({"peak_mb": round(peak, 1), "added_mb": round(peak - before, 1)}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", choices=CONFIGS, default="small")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--compile", action="store_true", help="torch.compile for every contestant")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int, default=None, help="default: as many as torch takes")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: for a machine that others use as well")
    parser.add_argument("--no-memory", action="store_true", help="leave out the peak memory of fresh processes")
    parser.add_argument("--dry-run", action="store_true", help="print, but keep no file under benchmarks/results")
    parser.add_argument("--memory-of", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    config, batch = CONFIGS[options.config]
    if options.memory_of:
        report_memory(*options.memory_of, config, batch, options.dtype, options.device)
        return
    if options.threads:
        torch.set_num_threads(options.threads)
    load = os.getloadavg()[0]
    runners = {
        name: Runner(peer, config, batch, dtype=options.dtype, device=options.device, compiled=options.compile)
        for name, peer in CONTESTANTS.items()
    }
    for runner in runners.values():
        runner.clock = CLOCKS[options.clock]
    settings = {name: {mode: runner.choose_attention(mode) for mode in MODES} for name, runner in runners.items()}
    seconds, rates = measure(runners, rounds=options.rounds, dtype=options.dtype, device=options.device)
    rate, gflop = float(np.median(rates)), textbook_flops(config) / 1e9
    result: dict[str, Any] = {"config": options.config, "dtype": options.dtype, "compile": options.compile}
    for mode, factor in zip(MODES, (3, 1), strict=True):
        rows = table(seconds[mode], batch=batch, gflop=factor * gflop, rate=rate)
        for name, runner in runners.items():
            rows[name] |= {"attention": runner.setting[mode], "images_per_s_by_attention": settings[name][mode]}
        result[mode] = {"best_peer": best_peer(rows), **rows[best_peer(rows)]["ours_over_it"], "rows": rows}
    if options.device == "cpu" and not options.no_memory:
        arguments = ["--config", options.config, "--dtype", options.dtype]
        result["memory"] = {
            name: peak_memory(name, arguments, runner.setting["train"]) for name, runner in runners.items()
        }
    result |= {
        "tokens": config.num_patches + 1,
        "embed_dim": config.embed_dim,
        "depth": config.depth,
        "batch_size": batch,
        "gflop_per_image_forward": round(gflop, 4),
        "matmul_gflop_per_s": round(rate, 1),
        "rounds": options.rounds,
        "threads": torch.get_num_threads(),
        "clock": options.clock,
        "device": options.device,
        "load_average_at_start": load,
        **describe("timm", "transformers", "vit-pytorch"),
    }
    name = f"step_throughput_{options.config}_{options.dtype}" + ("_compile" if options.compile else "")
    print_table(result)
    if not options.dry_run:
        write_result(name + ("" if options.device == "cpu" else f"_{options.device}"), result)


def print_table(result: dict[str, Any]) -> None:
    for mode in MODES:
        print(f"{result['config']} {result['dtype']} {mode}, batch {result['batch_size']}:")
        print(f"{'':>12}   images/s   GFLOP/s  of matmul  ours / it   95 % interval  attention")
        for name, row in result[mode]["rows"].items():
            ours = row.get("ours_over_it", {"ratio": 1.0, "interval_95": None})
            interval = "" if ours["interval_95"] is None else "{:.3f} - {:.3f}".format(*ours["interval_95"])
            print(
                f"{name:>12}  {row['images_per_s']:>9.2f}  {row['gflop_per_s']:>8.1f}  {row['share_of_matmul']:>9.1%}  "
                f"{ours['ratio']:>9.3f}  {interval:>14}  {row['attention']}"
            )
    for name, memory in result.get("memory", {}).items():
        print(f"{name:>12}  peak {memory['peak_mb']:.0f} MB, of which {memory['added_mb']:.0f} above the imports")


if __name__ == "__main__":
    main()
