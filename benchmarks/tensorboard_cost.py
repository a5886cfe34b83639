"""Measure what TensorBoard's pictures cost a run: the same training with `--tb scalars`, `standard` and `full`.

    python -m benchmarks.tensorboard_cost [--rounds 3] [--digits-epochs 120] [--photo-epochs 2] [--data-root data]

Two jobs: the default digits run, and `vit_tiny_16` at 224 px on the hymenoptera photographs. In every round each level
runs once, in a fresh process (so that each pays for importing matplotlib) and in turns, so that a machine that slows
down slows all. The time is that of `trainers.run.train`, from the options to the closed event files. Reported are
medians over the rounds; the promise is: `standard` costs at most 5 % of the run or 5 s, whichever is larger.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

from benchmarks.environment import describe, write_result
from benchmarks.whole_process import numbers_of
from datasets.config import DataConfig
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.run import train
from vit.config import ModelConfig

LEVELS: tuple[Literal["scalars", "standard", "full"], ...] = ("scalars", "standard", "full")


def take_turn(job: dict[str, Any], level: Literal["scalars", "standard", "full"], data_root: Path) -> dict[str, float]:
    """Seconds of one run: on the clock, and of the processors, which neighbours on the machine stretch less."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as said:
        config = RunConfig(
            model=ModelConfig(name=job["model"], weights="none"),
            data=DataConfig(source=job["data"], root=data_root),
            train=TrainConfig(epochs=job["epochs"], device="cpu"),
            output=OutputConfig(output_dir=Path(folder), run_name=level, tb=level),
        )
        start, busy = time.perf_counter(), time.process_time()
        train(config)
        seconds = {"clock": time.perf_counter() - start, "cpu": time.process_time() - busy}
    assert "could not be drawn" not in said.getvalue(), said.getvalue()
    return seconds


def summary(rounds: list[dict[str, dict[str, float]]], kind: str) -> dict[str, Any]:
    """Medians in seconds; a cost is taken within a round, where the two runs lie beside each other."""
    run = statistics.median(turns["scalars"][kind] for turns in rounds)
    cost = {
        level: statistics.median(seconds[level][kind] - seconds["scalars"][kind] for seconds in rounds)
        for level in LEVELS[1:]
    }
    return {
        "run": round(run, 2),
        "cost": {level: round(value, 2) for level, value in cost.items()},
        "cost_percent": {level: round(100 * value / run, 1) for level, value in cost.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--digits-epochs", type=int, default=120, help="0 leaves the job out")
    parser.add_argument("--photo-epochs", type=int, default=2, help="0 leaves the job out")
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    parser.add_argument("--turn", nargs=2, metavar=("JOB", "LEVEL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.turn:
        job, level = options.turn
        print(json.dumps(take_turn(json.loads(job), level, options.data_root)))
        return
    jobs: list[dict[str, Any]] = [
        {"data": "digits", "model": "vit_micro_2", "epochs": options.digits_epochs},
        {"data": "hymenoptera", "model": "vit_tiny_16", "epochs": options.photo_epochs},
    ]
    results = []
    for job in jobs:
        if not job["epochs"]:
            continue
        rounds: list[dict[str, dict[str, float]]] = []
        for number in range(options.rounds):
            turn = LEVELS[number % 3 :] + LEVELS[: number % 3]
            words = ("-m", "benchmarks.tensorboard_cost", "--data-root", options.data_root.resolve(), "--turn")
            rounds.append({level: numbers_of(*words, json.dumps(job), level) for level in turn})
            times = ", ".join(f"{level} {rounds[-1][level]['clock']:.2f} s" for level in LEVELS)
            print(f"{job['data']}, round {number + 1}: {times}", flush=True)
        clock, cpu = (summary(rounds, kind) for kind in ("clock", "cpu"))
        allowed = max(5.0, 0.05 * clock["run"])
        results.append(
            job
            | {
                "seconds": clock,
                "cpu_seconds": cpu,
                "allowed_seconds": round(allowed, 2),
                "standard_within_promise": clock["cost"]["standard"] <= allowed,
                "rounds": options.rounds,
            }
        )
    load = os.getloadavg()[0]
    write_result("tensorboard_cost", {"jobs": results, "load_average": load, **describe("tensorboard", "matplotlib")})


if __name__ == "__main__":
    main()
