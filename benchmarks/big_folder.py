"""Time and memory of a start, from the process to its first training step, by the size of the set.

    python -m benchmarks.big_folder --classes 1000 --images 1281 --folder /tmp/big

makes a tree of hard links to a few small JPEGs (1,281,000 files are 90 MB of folders), starts `train` on it twice, on
ten images once, and timm's folder set and loader before and after; then it removes the tree.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.environment import describe, write_result
from benchmarks.whole_process import ROOT

PICTURES = 50  # a file of ext4 has at most 65,000 names
OURS = """
import re, sys, os
import trainers.run
from trainers.config import from_dict, RunConfig
from ignite.engine import Events

class FirstStep(Exception):
    pass

def stop(trainer):
    @trainer.on(Events.ITERATION_COMPLETED)
    def end(engine):
        print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1], flush=True)
        os._exit(0)

trainers.run.reset_peak_memory = lambda device: None
source, runs = sys.argv[1:]
config = from_dict(RunConfig, {
    "data": {"source": source, "root": os.path.join(runs, "data"), "workers": 0},
    "model": {"name": "vit_tiny_16", "image_size": 32},
    "train": {"epochs": 1, "device": "cpu", "threads": 1},
    "output": {"output_dir": runs},
})
trainers.run.train(config, handlers=[stop])
"""
TIMM = """
import re, sys, os
from timm.data import create_dataset, create_loader
loader = create_loader(
    create_dataset("", root=sys.argv[1]), (3, 32, 32), 64, is_training=True, num_workers=0, use_prefetcher=False,
    persistent_workers=False,
)
next(iter(loader))
print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1], flush=True)
os._exit(0)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--images", type=int, default=1281, help="of each class")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/big"))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="leave the tree for another measurement")
    options = parser.parse_args()
    tree, ten, runs = options.folder / "tree", options.folder / "ten", options.folder / "runs"
    make_tree(tree, options.classes, options.images)
    make_tree(ten, 2, 5)
    try:
        starts = [one_round(tree, ten, runs) for _ in range(options.rounds)]
    finally:
        shutil.rmtree(runs, ignore_errors=True)
        if not options.keep:
            shutil.rmtree(options.folder, ignore_errors=True)
    medians = {
        name: {figure: statistics.median(start[name][figure] for start in starts) for figure in starts[0][name]}
        for name in starts[0]
    }
    size = {"classes": options.classes, "images": options.classes * options.images}
    write_result(f"big_folder_{options.classes}", describe("timm", "numpy") | size | {"rounds": starts} | medians)


def make_tree(tree: Path, classes: int, images: int) -> None:
    """classes x images hard links to PICTURES small JPEGs, class folders named as ImageNet's."""
    if tree.is_dir():
        return
    sources = tree.parent / "pictures"
    sources.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    for number in range(PICTURES):
        pixels = generator.integers(0, 256, (6, 6, 3), np.uint8)
        Image.fromarray(pixels).resize((48, 48)).save(sources / f"{number}.jpg")
    for label in range(classes):
        folder = tree / f"n{label:08d}"
        folder.mkdir(parents=True)
        for number in range(images):
            picture = sources / f"{(label * images + number) % PICTURES}.jpg"
            os.link(picture, folder / f"n{label:08d}_{number}.JPEG")


def one_round(tree: Path, ten: Path, runs: Path) -> dict[str, Any]:
    """Seconds and MB of one start each; the first of ours knows nothing of the tree, the second what it left."""
    return {
        "timm_before": start(TIMM, tree),
        "ten_images": start(OURS, ten, runs),
        "first": start(OURS, tree, runs),
        "second": start(OURS, tree, runs),
        "timm_after": start(TIMM, tree),
    }


def start(program: str, *argv: object) -> dict[str, float]:
    words = [sys.executable, "-c", program, *map(str, argv)]
    begun, worked = time.perf_counter(), children_seconds()
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    seconds = time.perf_counter() - begun
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    result = {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(children_seconds() - worked, 2),
        "mb": int(done.stdout.splitlines()[-1]) // 1000,
    }
    print(result, file=sys.stderr)
    return result


def children_seconds() -> float:
    """Processor seconds of all programs started so far: on a machine in use they say more than a clock."""
    times = os.times()
    return times.children_user + times.children_system


if __name__ == "__main__":
    main()
