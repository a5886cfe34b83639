"""Which rate and warm-up learn in few steps: `--recipe scratch-small` on 1,443 grey pictures of ten easy classes.

    python -m benchmarks.short_runs --seeds 2

Each picture is one of scikit-learn's digits, 64 px high, anywhere on 100 x 100 px of noise. Prints the share of
the test images that is right, one line a run.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from commands.arguments import parse_train_options
from trainers.console import quiet
from trainers.run import train

TRIED = (("3e-2", "0.8", "128"), ("3e-2", "2.5", "128"), ("1e-2", "0.8", "128"), ("3e-2", "0.8", "32"))
"""Rates, epochs of warm-up of 8, and images in a batch; the first is the recipe."""


def make_pictures(folder: Path, *, count: int = 1443) -> Path:
    """Class folders of grey PNG files."""
    digits, random = load_digits(), np.random.default_rng(0)
    for row in random.permutation(len(digits.images))[:count]:
        stroke = Image.fromarray((digits.images[row] * 255 / 16).astype(np.uint8))
        picture = random.normal(150, 8, (100, 100))
        left, top = random.integers(0, 36, 2)
        picture[top : top + 64, left : left + 64] -= 0.35 * np.asarray(
            stroke.resize((64, 64), Image.Resampling.BICUBIC)
        )
        path = folder / f"sign_{digits.target[row]}" / f"{row:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8)).save(path)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    seeds = parser.parse_args().seeds
    with tempfile.TemporaryDirectory() as name:
        data = make_pictures(Path(name) / "signs")
        for seed in range(seeds):
            for lr, warmup, batch in TRIED:
                words = ["--recipe", "scratch-small", "--lr", lr, "--warmup-epochs", warmup, "--seed", str(seed)]
                words += ["--batch-size", batch]
                words += ["--data", str(data), "--output-dir", f"{name}/runs", "--tb", "scalars", "--workers", "0"]
                with quiet():
                    result = train(parse_train_options(words, prog="train").run)
                assert result.test is not None
                what = f"lr {lr}, warm-up {warmup} epochs, batches of {batch}, seed {seed}"
                print(f"{what}: {result.test['accuracy']:.1%} of the test images", flush=True)


if __name__ == "__main__":
    main()
