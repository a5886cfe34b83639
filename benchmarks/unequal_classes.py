"""What --balance does to 280 images of one class against 6 of the other: `vit_micro_4` from scratch, 20 epochs.

    python -m benchmarks.unequal_classes --seeds 3

The pictures are those of benchmarks/short_runs.py: digits 1, 2 and 3 are common, 0 is rare; 40 + 6 validate, 100 + 100
test. Prints the share of the test images that is right, and of the validation images after the last epoch.
"""

import argparse
import shutil
import tempfile
from pathlib import Path

import numpy as np

import datasets.loaders
from benchmarks.short_runs import make_pictures
from commands.arguments import parse_train_options
from trainers.console import quiet
from trainers.run import train

TRIED = {"none": ("none", 10), "loss": ("loss", 10), "loss, unbounded": ("loss", 1000), "sampler": ("sampler", 10)}
"""Name -> --balance, and how many times another weight one may be."""


def make_split(pictures: Path, folder: Path) -> Path:
    """train/, val/ and test/ with the folders common and rare."""
    common = sorted(path for digit in (1, 2, 3) for path in pictures.glob(f"sign_{digit}/*"))
    common = [common[row] for row in np.random.default_rng(0).permutation(len(common))]
    rare, places = sorted(pictures.glob("sign_0/*")), {"train": (280, 6), "val": (320, 12), "test": (420, 112)}
    begin = (0, 0)
    for split, end in places.items():
        for label, files, first, last in zip(("common", "rare"), (common, rare), begin, end, strict=True):
            (folder / split / label).mkdir(parents=True)
            for file in files[first:last]:
                shutil.copy(file, folder / split / label / f"{file.parent.name}_{file.name}")
        begin = end
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    with tempfile.TemporaryDirectory() as name:
        data = make_split(make_pictures(Path(name) / "signs"), Path(name) / "unequal")
        words = (
            f"--data {data} --model vit_micro_4 --image-size 32 --in-channels 1 --batch-size 32 --lr 1e-3 --epochs 20"
        )
        words += f" --augment light --workers 0 --tb scalars --device cpu --output-dir {name}/runs"
        for seed in range(seeds):
            for title, (balance, bound) in TRIED.items():
                datasets.loaders.IMBALANCE = bound
                options = parse_train_options([*words.split(), "--balance", balance, "--seed", str(seed)], prog="train")
                with quiet():
                    result = train(options.run)
                assert result.test is not None
                last = result.history[-1]["val_accuracy"]
                print(f"{title}, seed {seed}: test {result.test['accuracy']:.1%}, last val {last:.1%}", flush=True)


if __name__ == "__main__":
    main()
