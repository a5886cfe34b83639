"""What it brings that malloc keeps freed memory for the next step (`trainers.process.keep_freed_memory`).

    python -m benchmarks.kept_memory [--rounds 5] [--configs tiny small base]

Each turn is a fresh process that takes training steps and then evaluates, with the setting or without it; the sides
take turns. A ratio is the median over rounds of seconds without / seconds with; above 1 the setting is faster. Peak
memory is the maximum resident set of the process.
"""

from __future__ import annotations

import argparse
import json
import sys
from statistics import median
from typing import Any

import torch

from benchmarks.environment import describe, write_result
from benchmarks.peers import OURS
from benchmarks.step_throughput import CONFIGS, MODES, Runner
from benchmarks.whole_process import numbers_of
from trainers.handlers import peak_memory_mb
from trainers.process import keep_freed_memory

SIDES = ("kept", "returned")
WARM_UP, STEPS = 3, 8


def turn(side: str, config: str, dtype: str) -> dict[str, float]:
    """Seconds per step by mode, and the peak in MB, of a process of its own."""
    numbers: dict[str, float] = numbers_of("-m", "benchmarks.kept_memory", "--turn", side, config, dtype)
    return numbers


def take_turn(side: str, config: str, dtype: str) -> None:
    if side == "kept":
        keep_freed_memory()
    runner = Runner(OURS, *CONFIGS[config], dtype=dtype, device="cpu", compiled=False)
    numbers = {mode: runner.seconds_per_step(mode, steps=STEPS, warm_up=WARM_UP) for mode in MODES}
    print(json.dumps(numbers | {"peak_mb": peak_memory_mb(torch.device("cpu"))}))


def compared(turns: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for mode in MODES:
        kept, returned = ([numbers[mode] for numbers in turns[side]] for side in SIDES)
        ratios = [without / with_it for without, with_it in zip(returned, kept, strict=True)]
        row[mode] = {
            "ms_kept": round(1e3 * median(kept), 1),
            "ms_returned": round(1e3 * median(returned), 1),
            "ratio": round(median(ratios), 3),
            "lowest_and_highest": [round(min(ratios), 3), round(max(ratios), 3)],
        }
    return row | {f"peak_mb_{side}": round(median(numbers["peak_mb"] for numbers in turns[side])) for side in SIDES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--configs", nargs="+", choices=CONFIGS, default=["tiny", "small", "base"])
    parser.add_argument("--turn", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.turn:
        take_turn(*options.turn)
        return
    rows = {}
    for config in options.configs:
        for dtype in ("fp32", "bf16"):
            turns: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
            for number in range(options.rounds):
                for side in SIDES if number % 2 else reversed(SIDES):
                    turns[side].append(turn(side, config, dtype))
            rows[f"{config} {dtype}"] = compared(turns)
            print(f"{config} {dtype}: {rows[f'{config} {dtype}']}", file=sys.stderr, flush=True)
    result = {
        "rounds": options.rounds,
        "threads": torch.get_num_threads(),
        "batch_sizes": {name: CONFIGS[name][1] for name in options.configs},
        "results": rows,
    }
    write_result("kept_memory", result | {"environment": describe()})


if __name__ == "__main__":
    main()
