"""Time of `predict` and of training steps, alone and beside busy processes, by how OpenMP's threads wait.

    python -m benchmarks.waiting [--rounds 5] [--images 256] [--steps 200] [--busy 1]

`predict`: the embedded vit_stem_16 on JPEGs of 500 x 400 pixels, the whole command from Enter to its end. `step`: the
median training step of vit_micro_2 on 64 images, milliseconds. `sleep` is what `choose_waiting` in
trainers/system/process.py sets, `spin` what OpenMP does by itself, and one thread has nobody to wait for. In each round
every way has its turn, alone and beside so many processes that compute without end; a ratio is the median over rounds
of the ratios within a round. Others on the machine count as well: the load average when the benchmark begins is noted.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks.environment import describe, write_result
from benchmarks.predict_speed import write_images
from trainers.system.process import WAITING

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "vit" / "weights" / "vit_stem_16-tiny_imagenet.safetensors"
WAYS = {
    "sleep": {"OMP_WAIT_POLICY": "passive"},
    "spin": {"GOMP_SPINCOUNT": "300000"},  # libgomp's own number where nobody says another
    "one thread": {"OMP_NUM_THREADS": "1"},
}
STEPS = """
import sys, time
from statistics import median
import torch
from vit import Blueprint, ModelConfig, build_model
config = Blueprint(ModelConfig(name="vit_micro_2", weights="none")).resolved
model = build_model(config, num_classes=10).train()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
images = torch.randn(64, config.in_channels, config.image_size, config.image_size)
labels, seconds = torch.randint(0, 10, (64,)), []
for _ in range(int(sys.argv[1])):
    start = time.perf_counter()
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
    seconds.append(time.perf_counter() - start)
print(1000 * median(seconds[len(seconds) // 10 :]))
"""
"""A program that prints the milliseconds of a training step."""


def run(command: list[str | Path], way: dict[str, str]) -> tuple[float, str]:
    """Seconds from the start of a command to its end, and what it printed."""
    bare = {name: value for name, value in os.environ.items() if name not in (*WAITING, "OMP_NUM_THREADS")}
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=bare | way, check=True, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return time.perf_counter() - start, done.stdout.decode()


@contextmanager
def beside(count: int) -> Iterator[None]:
    """Run processes that compute without end."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def measure(folder: Path, *, rounds: int, steps: int, busy: int) -> dict[str, dict[str, list[float]]]:
    """Measure each way in each round: values by what is measured and where."""
    predict = ["main.py", "predict", MODEL, folder, "--model", "vit_stem_16", "--output", os.devnull]
    run([*predict], {})  # from here on files and libraries are in memory
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for _ in range(rounds):
        for where, count in (("alone", 0), (f"beside {busy} busy", busy)):
            with beside(count):
                for name, way in WAYS.items():
                    values[f"predict, s, {where}"][name].append(run([*predict], way)[0])
                    values[f"step, ms, {where}"][name].append(float(run(["-c", STEPS, str(steps)], way)[1]))
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--busy", type=int, default=1)
    options = parser.parse_args()
    load, results = os.getloadavg()[0], {}
    with tempfile.TemporaryDirectory(prefix="waiting-") as folder:
        write_images(Path(folder), (500, 400), options.images)
        values = measure(Path(folder), rounds=options.rounds, steps=options.steps, busy=options.busy)
    for what, ways in values.items():
        alone = ways["one thread"]
        results[what] = {
            name: {
                "median": round(median(own), 2),
                "lowest_and_highest": [round(min(own), 2), round(max(own), 2)],
                "times_one_thread": round(median(a / b for a, b in zip(own, alone, strict=True)), 2),
            }
            for name, own in ways.items()
        }
    told = {"images": options.images, "rounds": options.rounds, "steps": options.steps}
    told |= {"date": time.strftime("%Y-%m-%d"), "load_average_before": round(load, 2)}
    write_result("waiting", told | {"results": results, "environment": describe("pillow")})


if __name__ == "__main__":
    main()
