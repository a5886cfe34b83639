"""Test what the drawn split does when a folder changes, and whether a model that learns by heart gets more than chance.

    python -m benchmarks.split_trust
    python -m benchmarks.split_trust --by-place

Stability: 4 classes of 40 scikit-learn digits as PNG; one change of the folder at a time. Random labels: 40 pictures in
12 variants each, a label drawn per picture, judged by the nearest training image at 16 x 16 pixels; chance is 50 %, and
of 100 draws about 95 should lie in its 95 % interval. `--by-place` draws both by the place of an image in the sorted
list, each class in proportion, as this application did until November 2026: the table before.
"""

import argparse
import shutil
import tempfile
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy.stats import binom
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

from benchmarks.environment import describe, write_result
from datasets import DataConfig
from datasets.bundle import TEST, TRAIN, UNSPLIT, VAL, Samples
from datasets.identity import identified
from datasets.loaders import read_samples, split_samples
from datasets.seeding import hashes, mix
from datasets.splits import assign_splits
from datasets.units import with_copies

GROUPS, VARIANTS, DRAWS = 40, 12, 100
KINDS = ("copies", "near copies", "groups by --group")


def by_place(samples: Samples, seed: int) -> Samples:
    """15 % test and 15 % val of each class, by a hash of the place in the list."""
    for code in (TEST, VAL):
        for label in range(len(samples.class_names)):
            rows = np.flatnonzero((samples.labels == label) & (samples.splits == UNSPLIT))
            order = rows[np.argsort(hashes(mix(seed, code), rows))]
            samples = samples.with_splits({code: order[: round(0.15 * (samples.labels == label).sum())]})
    return samples.with_splits({TRAIN: np.flatnonzero(samples.splits == UNSPLIT)})


def make_digits(folder: Path) -> Path:
    digits = load_digits()
    for label in range(4):
        (folder / f"c{label}").mkdir(parents=True)
        for number, pixels in enumerate(digits.images[digits.target == label][:50]):
            picture = Image.fromarray((pixels * 15).astype(np.uint8)).resize((32, 32), Image.Resampling.BICUBIC)
            picture.save(folder / f"c{label}" / f"zimg{number:04d}.png")
    for late in folder.glob("*/zimg004?.png"):
        (folder.parent / "more" / late.parent.name).mkdir(parents=True, exist_ok=True)
        late.rename(folder.parent / "more" / late.parent.name / late.name)
    return folder


def add(folder: Path, label: str, count: int, begin: str) -> None:
    for file in sorted((folder.parent / "more" / label).iterdir())[:count]:
        shutil.copy(file, folder / label / f"{begin}{file.name}")


def add_class(folder: Path) -> None:
    shutil.copytree(folder.parent / "more" / "c0", folder / "a")


def decomposed(folder: Path) -> None:
    for file in sorted(folder.glob("*/*")):
        file.rename(file.with_name(unicodedata.normalize("NFD", file.name.replace("zimg", "zïmg"))))


CHANGES: dict[str, Callable[[Path], Any]] = {
    "1 file more at the front of the first class": lambda folder: add(folder, "c0", 1, "!"),
    "1 file more at the end of the second class": lambda folder: add(folder, "c1", 1, "zz"),
    "10 files more at the end of the first class": lambda folder: add(folder, "c0", 10, "zz"),
    "1 file less in the first class": lambda folder: (folder / "c0" / "zimg0000.png").unlink(),
    "1 file renamed so that it sorts first": lambda folder: (folder / "c0" / "zimg0020.png").rename(
        folder / "c0" / "!.png"
    ),
    "all files renamed, decomposed letters": decomposed,
    "a class renamed, c0 to zebra": lambda folder: (folder / "c0").rename(folder / "zebra"),
    "a class added at the front": add_class,
}


def sides(folder: Path, draw: Callable[[DataConfig], Samples]) -> dict[str, str]:
    """Hash of the contents -> split."""
    samples = identified(draw(DataConfig(source=str(folder), root=folder.parent / "data")))
    assert samples.digests is not None
    names = {TRAIN: "train", VAL: "val", TEST: "test"}
    return {samples.digests[row].tobytes().hex(): names[int(samples.splits[row])] for row in range(len(samples))}


def stability(work: Path, draw: Callable[[DataConfig], Samples]) -> list[dict[str, Any]]:
    rows = []
    for number, (name, change) in enumerate(CHANGES.items()):
        folder = make_digits(work / str(number) / "photos")
        before = sides(folder, draw)
        change(folder)
        after = sides(folder, draw)
        both = [key for key in before if key in after]
        moved = [(before[key], after[key]) for key in both if before[key] != after[key]]
        rows.append(
            {
                "change": name,
                "images": len(both),
                "moved": len(moved),
                "left the test": sum(old == "test" for old, _ in moved),
                "entered the test from val": moved.count(("val", "test")),
                "entered the test from train": moved.count(("train", "test")),
            }
        )
    return rows


def make_variants(folder: Path, near: bool) -> np.ndarray:
    """Write all variants into one class, `all/<picture>_<variant>`; int64: the picture of each, by name."""
    random = np.random.default_rng(0)
    (folder / "all").mkdir(parents=True)
    for group in range(GROUPS):
        smooth = Image.fromarray(random.integers(0, 256, (6, 6, 3), np.uint8)).resize(
            (96, 96), Image.Resampling.BICUBIC
        )
        noise = random.normal(0, 12, (96, 96, 3))
        picture = Image.fromarray((np.asarray(smooth) + noise).clip(0, 255).astype(np.uint8))
        for number in range(VARIANTS):
            cut = int(random.integers(0, 5)) if near else 0
            variant = picture.crop((cut, cut, 96 - cut, 96 - cut)).resize((96, 96))
            suffix = ("jpg", "png", "bmp")[number % 3] if near else "png"
            options = {"quality": int(random.integers(60, 96))} if suffix == "jpg" else {}
            variant.save(folder / "all" / f"{group:02d}_{number:02d}.{suffix}", **options)
    return np.repeat(np.arange(GROUPS), VARIANTS)


def random_labels(work: Path, kind: str, place: bool) -> dict[str, Any]:
    """Mean accuracy over DRAWS draws of labels and split, and how many lie in the 95 % interval of chance."""
    near, named = kind == "near copies", kind == "groups by --group"
    picture = make_variants(work / kind.replace(" ", "_"), near or named)
    config = DataConfig(
        source=str(work / kind.replace(" ", "_")), root=work / "data", group=r"(\d+)_\d+\.\w+$" if named else None
    )
    samples = identified(read_samples(config))
    samples = samples if place or named else with_copies(samples)
    pictures = (Image.open(samples.file(row)).convert("RGB").resize((16, 16)) for row in range(len(samples)))
    pixels = np.stack([np.asarray(image, float).ravel() for image in pictures])
    scores: dict[str, list[float]] = {"split": [], "folds": []}
    inside = dict.fromkeys(scores, 0)
    for seed in range(DRAWS):
        labels = np.random.default_rng(seed).permutation(np.arange(GROUPS) % 2)[picture].astype(np.int32)
        unsplit = np.full(len(samples), UNSPLIT, np.int8)
        drawn = samples.replace(class_names=("a", "b"), labels=labels, splits=unsplit)
        if place:
            parts = [by_place(drawn, seed)]
            folds = np.argsort(np.argsort(hashes(mix(seed, 9), np.arange(len(labels))))) % 5
            five = [drawn.replace(splits=np.where(folds == k, VAL, TRAIN).astype(np.int8)) for k in range(5)]
        else:
            parts = [assign_splits(drawn, DataConfig(split_seed=seed))]
            five = [
                assign_splits(drawn, DataConfig(split_seed=seed, folds=5, fold=k, test_fraction=0.0))
                for k in range(1, 6)
            ]
        for name, drawings in (("split", parts), ("folds", five)):
            right, seen = [], []
            for part in drawings:
                train, held_out = np.flatnonzero(part.splits == TRAIN), np.flatnonzero(part.splits != TRAIN)
                model = KNeighborsClassifier(1).fit(pixels[train], labels[train])
                right += (model.predict(pixels[held_out]) == labels[held_out]).tolist()
                seen += np.unique(picture[held_out]).tolist()
            low, high = binom.interval(0.95, len(seen), 0.5)
            scores[name].append(float(np.mean(right)))
            inside[name] += bool(low / len(seen) <= scores[name][-1] <= high / len(seen))
    found = {
        name: {"mean": np.mean(values), "sd": np.std(values, ddof=1), "inside": inside[name], "of": DRAWS}
        for name, values in scores.items()
    }
    return {"kind": kind, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--by-place", action="store_true", help="the table before")
    place = parser.parse_args().by_place
    draw = (lambda config: by_place(read_samples(config), 0)) if place else split_samples
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        result = {
            "drawn": "by place" if place else "by contents, in units",
            "stability": stability(work, draw),
            "random labels": [
                random_labels(work, kind, place) for kind in ("copies", "near copies", "groups by --group")
            ],
            **describe("scikit-learn", "pillow"),
        }
    write_result("split_trust_before" if place else "split_trust", result)


if __name__ == "__main__":
    main()
