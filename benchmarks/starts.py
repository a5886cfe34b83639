"""Time starts, splits, passes and augmentation of versions of this program.

    python -m benchmarks.starts [TREE ...] --sets FOLDER [--measure start many draw epoch augment] [--rounds 5]

TREE is a checkout of the program; by default this one. The sets are made in FOLDER unless they are there: photographs
of 500 x 375 pixels, large ones of 12 megapixels, the small ones as a shard; tiny pictures in many classes, in groups of
one class each and in groups across classes; and for `many` 400,000 tiny files, and shards of 3 GB. A start reads,
identifies and splits a set, with nothing kept of it (first) and with what the first one has kept (again). A pass goes
over all batches of training and validation, without a model, with decoded pictures in memory. Starts and augmentation
are measured in seconds of the processor, passes by the clock. In each round each tree gets a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from PIL import Image

OWN_GROUPS, ACROSS_GROUPS = r"(\d+g\d+)_", r"x(\d+)\."
CASES: dict[str, dict[str, dict[str, Any]]] = {
    "start": {
        "photographs": {}, "photographs skip": {"on_bad_image": "skip"}, "large": {}, "shard": {}, "tiny": {},
    },
    "many": {"files": {}, "shards": {}, "shards skip": {"on_bad_image": "skip"}},
    "draw": {"tiny, groups of one class": {"group": OWN_GROUPS}, "tiny, groups across": {"group": ACROSS_GROUPS}},
    "epoch": {f"photographs, {workers} processes": {"workers": workers} for workers in (0, 2, 8)},
    "augment": {f"photographs, {name}": {"augment": name} for name in ("none", "light", "standard", "strong")},
}  # fmt: skip
"""Per kind of measurement: the name of a set, and more words; and its options."""
SIZES = {"photographs": 3000, "large": 260, "tiny": 60_000, "classes": 1000, "groups": 10_000}
MANY = {"files": 400_000, "shards": 17_500}
"""Numbers of images of the sets that only `--measure many` makes: tiny ones, and noise of 0.2 MB an image."""
PASSES, IMAGES_OF_A_CLASS = 3, 20


def make_sets(folder: Path, *, photographs: int, large: int, tiny: int, classes: int, groups: int) -> None:
    """Make each set that is not there."""
    from datasets import DataConfig
    from datasets.open import read_samples
    from datasets.packing import pack

    for name, count, (width, height) in (("photographs", photographs, (500, 375)), ("large", large, (4000, 3000))):
        for number in range(0 if (folder / name).exists() else count):
            file = folder / name / f"class{number % 10}" / f"{number:05}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            noise = np.random.default_rng([width, number]).integers(0, 256, (height // 12, width // 12, 3), np.uint8)
            Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC).save(file, quality=85)
    if not (folder / "shard").exists():
        pack(read_samples(DataConfig(str(folder / "photographs"))), folder / "shard")
    make_tiny(folder / "tiny", tiny, classes=classes, groups=groups)


def make_tiny(folder: Path, count: int, *, classes: int, groups: int) -> None:
    random = np.random.default_rng(0)
    for number in range(0 if folder.exists() else count):
        label, pixels = number % classes, random.integers(0, 256, (8, 8), np.uint8)
        groups_of = f"{label}g{random.integers(groups // classes)}_{number}x{random.integers(groups)}"
        file = folder / f"{label:05}" / f"{groups_of}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file)


def make_many(folder: Path, *, files: int, shards: int) -> None:
    """Make the two sets of many files and many bytes unless they are there."""
    from datasets import DataConfig
    from datasets.open import read_samples
    from datasets.packing import pack

    make_tiny(folder / "files", files, classes=1000, groups=10_000)
    if (folder / "shards").exists():
        return
    with tempfile.TemporaryDirectory(dir=folder) as loose:
        for number in range(shards):
            file = Path(loose) / f"class{number % 10}" / f"{number:05}.jpg"
            file.parent.mkdir(exist_ok=True)
            pixels = np.random.default_rng(number).integers(0, 256, (375, 500, 3), np.uint8)
            Image.fromarray(pixels).save(file, quality=90)
        pack(read_samples(DataConfig(loose)), folder / "shards")


def starts(source: str, options: dict[str, Any], which: tuple[str, ...]) -> dict[str, float]:
    """Return processor seconds of starts, one after another."""
    from common.image_spec import ImageSpec
    from datasets import DataConfig, build_dataloaders

    seconds = {}
    with tempfile.TemporaryDirectory() as root:
        for name in which:
            begun = time.process_time()
            build_dataloaders(DataConfig(source, Path(root), workers=0, **options), ImageSpec(image_size=32))
            seconds[name] = round(time.process_time() - begun, 3)
    return seconds


def passes(source: str, options: dict[str, Any], root: Path) -> dict[str, float]:
    """Return the seconds of a pass, or of augmented images their number in a second.

    Passes are timed by the clock, augmentation in seconds of the processor."""
    from common.image_spec import ImageSpec
    from datasets import DataConfig, build_dataloaders

    clock, size = (time.process_time, 224) if "augment" in options else (time.perf_counter, 64)
    options = {"workers": 0, "labels_per_class": IMAGES_OF_A_CLASS, "cache": "on", "test_fraction": 0} | options
    data = build_dataloaders(DataConfig(source, root, **options), ImageSpec(image_size=size))
    splits = ("train",) if "augment" in options else ("train", "val")
    seconds = []
    for _ in range(1 + PASSES):  # the first one decodes
        begun = clock()
        for split in splits:
            for _ in data.dataloaders[split]:
                pass
        seconds.append(clock() - begun)
    a_pass = median(seconds[1:])
    if "augment" in options:
        return {"images_per_s": round(data.dataset_sizes["train"] / a_pass)}
    return {"seconds": round(a_pass, 3)}


def measure(kind: str, folder: Path) -> dict[str, dict[str, float]]:
    """Measure all cases of a kind in this process, by the modules of PYTHONPATH."""
    import torch

    torch.set_num_threads(1)
    found = {}
    with tempfile.TemporaryDirectory() as root:
        for case, options in CASES[kind].items():
            name = case.replace(",", "").split()[0]
            source = str(folder / name / "*.tar" if name.startswith("shard") else folder / name)
            if kind in ("start", "many", "draw"):
                found[case] = starts(source, options, ("seconds",) if kind == "draw" else ("first", "again"))
            else:
                found[case] = passes(source, options, Path(root))
    return found


def measured(tree: Path, kind: str, folder: Path) -> dict[str, dict[str, float]]:
    words = [sys.executable, "-P", "-W", "ignore", __file__, "--sets", folder.resolve(), "--inside", kind]
    env = os.environ | {"PYTHONPATH": str(tree.resolve())}
    done = subprocess.run(list(map(str, words)), env=env, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="*", type=Path, default=[Path(__file__).resolve().parent.parent])
    parser.add_argument("--sets", type=Path, required=True)
    parser.add_argument("--measure", nargs="+", choices=CASES, default=[*CASES])
    parser.add_argument("--rounds", type=int, default=5)
    for name, size in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(measure(options.inside, options.sets)))
        return
    from benchmarks.environment import describe, write_result

    sizes = {name: getattr(options, name) for name in SIZES}
    make_sets(options.sets, **sizes)
    if "many" in options.measure:
        make_many(options.sets, **MANY)
    for kind in options.measure:
        rounds: dict[str, list[dict[str, dict[str, float]]]] = {tree.absolute().name: [] for tree in options.trees}
        for _ in range(options.rounds):
            for tree in options.trees:
                rounds[tree.absolute().name].append(measured(tree, kind, options.sets))
                print(tree, rounds[tree.absolute().name][-1], file=sys.stderr, flush=True)
        rows = {
            case: {
                tree: {figure: median(each[case][figure] for each in found) for figure in found[0][case]}
                for tree, found in rounds.items()
            }
            for case in CASES[kind]
        }
        write_result(f"starts_{kind}", {"rows": rows, "rounds": options.rounds, "sets": sizes | MANY} | describe())


if __name__ == "__main__":
    main()
