"""Time jobs on many classes and many pictures, and a plain PyTorch loop's: seconds and peak memory of each process.

    python -m benchmarks.many_classes --sets FOLDER [--classes 1000] [--images 1000] [--rounds 3]

The set, made in FOLDER unless it is there, has JPEG pictures of 64 x 64 pixels, so many `images` in a class. Each round
trains `vit_micro_2` at 8 px for one epoch, on 100,000 images, twice (a second start finds what the first has kept),
then evaluates a tenth of the set and predicts another tenth into a CSV table. The plain loop (benchmarks/plain_job.py)
has the same network, optimizer, batches, augmentation and passes, torchvision's ImageFolder and two loader processes;
it writes the state dict, the accuracy and a table, and checks nothing. Sides take turns.
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

import numpy as np
from PIL import Image

from benchmarks.environment import describe, write_result

ROOT = Path(__file__).resolve().parent.parent
SIDE, TRAINED, TENTH = 64, 100_000, 0.1


def make_set(folder: Path, *, classes: int, images: int) -> None:
    """Write pictures of a coarse pattern of their class with noise."""
    if folder.exists():
        return
    aside = folder.with_suffix(".part")
    for label in range(classes):
        place, random = aside / f"{label:05}", np.random.default_rng(label)
        place.mkdir(parents=True)
        pattern = random.integers(64, 192, (4, 4, 3)).repeat(2, 0).repeat(2, 1)
        pixels = (pattern + random.integers(-64, 64, (images, 8, 8, 3))).astype(np.uint8)
        for number, picture in enumerate(pixels.repeat(SIDE // 8, 1).repeat(SIDE // 8, 2)):
            Image.fromarray(picture).save(place / f"{number:05}.jpg", quality=85)
    aside.rename(folder)


def measured(*words: object) -> dict[str, float]:
    """Run a program to its end; return its seconds, and its peak memory or that of the largest process it started."""
    begun = time.perf_counter()
    process = subprocess.Popen([sys.executable, *map(str, words)], cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{words} ended with {os.waitstatus_to_exitcode(status)}")
    return {"seconds": round(time.perf_counter() - begun, 1), "peak_mb": round(usage.ru_maxrss / 1024)}


def jobs(folder: Path, out: Path, *, classes: int) -> dict[str, dict[str, dict[str, float]]]:
    """Run each job of both sides once."""
    per_class, run = TRAINED // classes, out / "runs" / folder.name
    part = folder / ("0" * (6 - len(str(classes - 1))) + "*")  # of the class names, a tenth
    train = (
        "main.py", "train", folder, "--model", "vit_micro_2", "--weights", "none", "--image-size", 8, "--epochs", 1,
        "--augment", "light", "--batch-size", 256, "--lr", 1e-3, "--val-fraction", TENTH, "--test-fraction", TENTH,
        "--labels-per-class", per_class, "--amp", "off", "--tb", "scalars", "--data-root", out / "data",
        "--output-dir", out / "runs",
    )  # fmt: skip
    plain = ("-m", "benchmarks.plain_job", folder, "--out", out / "plain", "--labels-per-class", per_class)
    table = ("predict", run / "first", part, "--output", out / "ours.csv", "--batch-size", 256)
    return {
        "train": {"ours": measured(*train, "--run-name", "first"), "plain": measured(*plain, "train")},
        "train again": {"ours": measured(*train, "--run-name", "second")},
        "evaluate": {
            "ours": measured("main.py", "evaluate", run / "first", "--split", "test"),
            "plain": measured(*plain, "evaluate"),
        },
        "predict": {"ours": measured("main.py", *table), "plain": measured(*plain, "predict", "--part", part)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=Path, required=True)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--images", type=int, default=1000, help="of a class")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    folder = options.sets.resolve() / f"many_{options.classes}x{options.images}"
    make_set(folder, classes=options.classes, images=options.images)
    rounds = []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as out:
            rounds.append(jobs(folder, Path(out), classes=options.classes))
        print(rounds[-1], file=sys.stderr, flush=True)
    figures = ("seconds", "peak_mb")
    rows = {
        job: {side: {key: median(each[job][side][key] for each in rounds) for key in figures} for side in sides}
        for job, sides in rounds[0].items()
    }
    set_of = {"classes": options.classes, "images_of_a_class": options.images}
    write_result(f"many_classes_{options.classes}", {"rows": rows, "rounds": rounds} | set_of | describe())


if __name__ == "__main__":
    main()
