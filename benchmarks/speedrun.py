"""Measure a small ViT from scratch on CIFAR-10 in seven minutes, part by part.

    python -m benchmarks.speedrun --data FOLDER --seeds 3                                  # test images, rules: docs
    python -m benchmarks.speedrun --data FOLDER --arms all --images-seen 180000 --seeds 1  # what the parts bring

It trains with `--config scratch-small`. FOLDER holds CIFAR-10's pictures as train/CLASS/* and test/CLASS/*. A tenth of
the training images is held back; every choice was made on those. With `--images-seen` the runs are of equally many
image passes instead of equally many minutes, which a busy machine does not change, and the seconds are processor
seconds.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.environment import RESULTS, describe
from trainers.options.recipes import RECIPES

ARMS: dict[str, dict[str, Any]] = {
    "recipe": {},
    "light decay": {"weight-decay": 0.05},
    "AdamW": {"optimizer": "adamw", "lr": 0.002, "batch-size": 64, "weight-decay": 0.05},
    "no norms": {"patch-embedding": "stem"},
    "patches": {"patch-embedding": "conv"},
    "no augmentation": {"augment": "none"},
    "no smoothing": {"label-smoothing": 0},
    "cooldown": {"schedule": "cooldown"},
}
ARMS["AdamW, no norms"] = ARMS["AdamW"] | ARMS["no norms"]
"""Each is the recipe but for these options; the last is what the recipe was before."""


def run(arm: str, seed: int, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Train once in a process of its own; return what it reached, and its seconds."""
    length = {"epochs": options.images_seen / 45_000 if options.images_seen else options.epochs}
    file = folder / f"{arm}_{seed}.json"
    file.write_text(json.dumps(RECIPES["scratch-small"].options | ARMS[arm] | length))
    words = ["train", "--data", str(options.data), "--val-fraction", "0.1", "--tb", "scalars"]
    words += ["--config", str(file), "--seed", str(seed), "--output-dir", str(folder), "--run-name", f"{arm}_{seed}"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "main.py", *words], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    (place,) = folder.glob(f"*/{arm}_{seed}")
    summary = json.loads((place / "summary.json").read_text())
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    row = {"arm": arm, "seed": seed, "asked": options.images_seen, "processor_seconds": round(seconds)}
    row |= {"load": os.getloadavg()[0], "seen": summary["images_seen"], "seconds": summary["seconds"]}
    return row | {"val": summary["best"]["accuracy"], "test": summary["test"]["accuracy"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--arms", nargs="+", default=["recipe"], choices=[*ARMS, "all"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=float, default=5.1)
    parser.add_argument("--images-seen", type=int)
    options = parser.parse_args()
    path = RESULTS / "speedrun.json"
    found = json.loads(path.read_text()) if path.is_file() else {"runs": []}
    with tempfile.TemporaryDirectory() as name:
        for arm in ARMS if "all" in options.arms else options.arms:
            for seed in range(options.seeds):
                found["runs"].append(run(arm, seed, options, Path(name)))
                path.write_text(json.dumps(found | {"environment": describe()}, indent=1) + "\n")
            rows = [r for r in found["runs"] if (r["arm"], r["asked"]) == (arm, options.images_seen)]
            for split in ("val", "test"):
                right = [100 * row[split] for row in rows]
                spread = f", sd {stdev(right):.1f}" if len(right) > 1 else ""
                print(f"{arm}: {split} {mean(right):.1f} % (n = {len(right)}{spread})", flush=True)


if __name__ == "__main__":
    main()
