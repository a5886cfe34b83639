"""Kill a `predict` of many images at random moments, repeat it to the end, and compare with an undisturbed one.

    python -m benchmarks.killed_predictions RUN --sets FOLDER [--images 1000000] [--kills 20] [--seed 0]

The images are PNG files of 8 x 8 pixels, 1,000 in a folder, made in FOLDER unless they are there.
"""

from __future__ import annotations

import argparse
import csv
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.environment import describe, write_result

SIDE, IN_FOLDER = 8, 1000


def make_images(folder: Path, count: int) -> None:
    """Write random pictures that are not there."""
    pixels = np.random.default_rng(0).integers(0, 256, (count, SIDE, SIDE), np.uint8)
    for number in range(count):
        path = folder / f"{number // IN_FOLDER:04}" / f"{number:07}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            Image.fromarray(pixels[number]).save(path, compress_level=1)


def predict(run: Path, images: Path, table: Path, *, seconds: float | None = None) -> float:
    """Run the command, killed after so many seconds; return how long it took."""
    command = [sys.executable, "main.py", "predict", str(run), str(images), "--output", str(table)]
    started = time.monotonic()
    process = subprocess.Popen([*command, "--batch-size", "256"], stderr=subprocess.DEVNULL)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    else:
        if process.returncode or seconds is not None:
            raise SystemExit(f"ended with {process.returncode} before it was killed")
    return time.monotonic() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--sets", type=Path, required=True)
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    images, draw = options.sets / f"tiny_{options.images}", random.Random(options.seed)
    make_images(images, options.images)
    undisturbed, killed = options.sets / "undisturbed.csv", options.sets / "killed.csv"
    alone = predict(options.run, images, undisturbed)
    print(f"undisturbed: {alone:.0f} s", flush=True)
    times = []
    for kill in range(options.kills):
        times.append(predict(options.run, images, killed, seconds=draw.uniform(0.1, 1.9) * alone / options.kills))
        print(f"killed {kill + 1} times, the last after {times[-1]:.1f} s", flush=True)
    times.append(predict(options.run, images, killed))
    with killed.open(newline="", encoding="utf-8") as file:
        paths = [row["path"] for row in csv.DictReader(file)]
    result = {
        "images": options.images, "rows": len(paths), "paths": len(set(paths)), "kills": options.kills,
        "equal": killed.read_bytes() == undisturbed.read_bytes(),
        "seconds_undisturbed": round(alone, 1), "seconds_killed": round(sum(times), 1),
        "seconds_of_each": [round(seconds, 1) for seconds in times],
    }  # fmt: skip
    print(result)
    write_result("killed_predictions", result | describe())


if __name__ == "__main__":
    main()
