"""A start, a step, a save and a resume against another checkout of this project, in turns, each in its own process.

    git worktree add /tmp/earlier COMMIT
    python -m benchmarks.against /tmp/earlier [--rounds 5]

A run of `vit_micro_2` on digits notes the time before each optimizer step, and is left after 19 of them: the first says
what the start took, the median between two what a step takes, and with `--save-every 1` what a step and a save take.
The fourth resumes a run that was left so. Processor seconds tell what the program does however busy the machine is; the
seconds that passed also hold what it waits for, such as the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks import environment

STEPS = 19
PROGRAM = f"""
import json, os, sys, time
began = time.perf_counter()
from torch.optim.optimizer import register_optimizer_step_pre_hook
import main
try:
    from trainers.system import process
except ImportError:  # a checkout from before 24 November 2026
    from trainers import process
stamps = []
def note(*_):
    stamps.append((time.process_time(), time.perf_counter() - began))
    if len(stamps) == {STEPS}:
        print(json.dumps(stamps), flush=True)
        os._exit(0)
register_optimizer_step_pre_hook(note)
process.settle()
main.main(sys.argv[1:])
"""
RUN = ["train", "--data", "digits", "--model", "vit_micro_2", "--epochs", "3", "--device", "cpu", "--workers", "0",
       "--run-name", "r", "--output-dir"]  # fmt: skip


def stamps_of(checkout: Path, *argv: object) -> list[list[float]]:
    """Processor seconds and seconds before each step of a command of that checkout."""
    words = [sys.executable, "-c", PROGRAM, *map(str, argv)]
    output = subprocess.run(words, cwd=checkout, capture_output=True, text=True, check=True).stdout
    stamps: list[list[float]] = json.loads(output.splitlines()[-1])
    return stamps


def between(stamps: list[list[float]], clock: int) -> float:
    return statistics.median(after[clock] - before[clock] for before, after in pairwise(stamps))


def measure(checkout: Path, folder: Path) -> dict[str, list[float]]:
    """Processor seconds and seconds of each of the four."""
    plain = stamps_of(checkout, *RUN, folder / "plain")
    saving = stamps_of(checkout, *RUN, folder / "saving", "--save-every", "1")
    resumed = stamps_of(checkout, "resume", folder / "saving" / "digits" / "r")
    shutil.rmtree(folder)
    steps = [between(plain, clock) for clock in (0, 1)]
    return {
        "start": plain[0], "step": steps,
        "save": [between(saving, clock) - steps[clock] for clock in (0, 1)], "resume": resumed[0],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("earlier", type=Path, help="the other checkout")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    checkouts = {"earlier": options.earlier.resolve(), "now": Path(__file__).resolve().parent.parent}
    rounds: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as work:
        for number in range(options.rounds):
            rounds.append({name: measure(path, Path(work) / name) for name, path in checkouts.items()})
            print(f"round {number + 1}", flush=True)
    table = {
        f"{what}, {unit}": {
            name: round(statistics.median(of_round[name][what][clock] for of_round in rounds), 5) for name in checkouts
        }
        | {
            "now / earlier, each round": [
                round(one["now"][what][clock] / one["earlier"][what][clock], 3) for one in rounds
            ]
        }
        for what in ("start", "step", "save", "resume")
        for clock, unit in enumerate(("processor seconds", "seconds"))
    }
    threads = os.environ.get("OMP_NUM_THREADS", "all")
    environment.write_result("against", environment.describe() | {"threads": threads, "rounds": len(rounds)} | table)


if __name__ == "__main__":
    main()
