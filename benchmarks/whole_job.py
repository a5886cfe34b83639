"""Time a whole job and timm's: vit_tiny_16 on hymenoptera, from start of Python to exit.

    python -m benchmarks.whole_job [--data-root data] [--rounds 3] [--precisions off bf16]

2 epochs at 224 pixels, batch 16, 2 loader processes. Ours is `python main.py train` with everything it logs and writes
by default. It goes over the validation images three times (untrained and after each epoch); timm's loop
(benchmarks/timm_job.py) once after each epoch, and in a second measurement as often as ours.
The sides take turns; a ratio is the median of the ratios within a round.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

from benchmarks.environment import describe, write_result

ROOT = Path(__file__).resolve().parent.parent
OUR_VALIDATIONS = 3


def seconds_of(*argv: object) -> float:
    """Return the wall-clock seconds of `python argv...`, run from the project's folder."""
    words, start = [sys.executable, *map(str, argv)], time.perf_counter()
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words[1:])} ended with {done.returncode}: {done.stderr[-2000:]}")
    return time.perf_counter() - start


def ours(folder: Path, amp: str, data_root: Path) -> float:
    return seconds_of(
        "main.py", "train", "--data", "hymenoptera", "--data-root", data_root, "--model", "vit_tiny_16",
        "--weights", "none", "--epochs", 2, "--batch-size", 16, "--workers", 2, "--augment", "light", "--amp", amp,
        "--output-dir", folder, "--device", "cpu",
    )  # fmt: skip


def timms(folder: Path, amp: str, data_root: Path, *, validations: int) -> float:
    return seconds_of(
        "-m", "benchmarks.timm_job", data_root / "hymenoptera_data", "--output-dir", folder, "--amp", amp,
        "--validations", validations,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precisions", nargs="+", choices=("off", "bf16"), default=["off", "bf16"])
    options = parser.parse_args()
    load = os.getloadavg()[0]
    rows = {}
    for amp in options.precisions:
        seconds: dict[str, list[float]] = {"ours": [], "timm": [], "timm_validating_as_often": []}
        with tempfile.TemporaryDirectory() as name:
            for number in range(options.rounds):
                folder = Path(name) / str(number)
                seconds["ours"].append(ours(folder / "ours", amp, options.data_root))
                seconds["timm"].append(timms(folder / "timm", amp, options.data_root, validations=2))
                seconds["timm_validating_as_often"].append(
                    timms(folder / "more", amp, options.data_root, validations=OUR_VALIDATIONS)
                )
                print(
                    f"{amp} round {number + 1}:",
                    {side: round(values[-1], 1) for side, values in seconds.items()},
                    flush=True,
                )
        rows[{"off": "fp32", "bf16": "bf16"}[amp]] = {
            "seconds": {side: [round(value, 1) for value in values] for side, values in seconds.items()},
            "ours_over_timm": ratio(seconds["ours"], seconds["timm"]),
            "ours_over_timm_validating_as_often": ratio(seconds["ours"], seconds["timm_validating_as_often"]),
        }
    result = {
        "job": "vit_tiny_16, hymenoptera, 224 px, 2 epochs, batch 16, 2 loader processes",
        "rows": rows,
        "rounds": options.rounds,
        "threads": torch.get_num_threads(),
        "load_average_at_start": load,
        **describe("timm"),
    }
    write_result("whole_job", result)


def ratio(one: list[float], other: list[float]) -> float:
    return round(median(a / b for a, b in zip(one, other, strict=True)), 3)


if __name__ == "__main__":
    main()
