"""Test what `check` says of sets with a shortcut planted in them, and of sets without.

    python -m benchmarks.shortcuts --data-root data --tiny-imagenet FOLDER

Planted: each of 14 shortcuts in three strengths (the share of the images of a class that follow it) in hymenoptera, in
CIFAR-10 and in Tiny ImageNet (class folders of JPEG files): found is what is named, and right what is named first.
Without: subsets of hymenoptera, dog breeds, CIFAR-10 and Tiny ImageNet as they are, MNIST and Fashion-MNIST written as
PNG and as JPEG, and drawn letters; every shortcut that is named is listed. Time: processor seconds of `check` with and
without the search, alternating, on whole sets.
"""

import argparse
import gzip
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.environment import describe, write_result
from datasets.checking import check as checking
from datasets.sources.archives import mark_of, unpack
from datasets.sources.image_folder import read_image_folder
from tests.planted_shortcuts import PLANTS, Picture, drawn_letters, of_folder, write

STRENGTHS = (1.0, 0.85, 0.7)
CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    parser.add_argument("--tiny-imagenet", type=Path, required=True, help="class folders of JPEG files")
    parser.add_argument("--only", choices=("planted", "without", "time"), help="one part")
    parser.add_argument("--seeds", type=int, default=1, help="how often each shortcut is planted in each set")
    options = parser.parse_args()
    parts: dict[str, Callable[[Path, Path, int], Any]] = {"planted": planted, "without": without, "time": times}
    with tempfile.TemporaryDirectory() as temporary:
        folders = {
            name: _unpacked(options.data_root, name, Path(temporary))
            for name in ("hymenoptera_data", "dog_breed_tiny", "cifar10_jpeg")
        }
        folders |= {"tiny": options.tiny_imagenet, "raw": options.data_root}
        result = {
            name: part(folders, Path(temporary), options.seeds)
            for name, part in parts.items()
            if options.only in (None, name)
        }
    write_result("shortcuts" + f"_{options.only}" * bool(options.only), {**result, **describe()})


def _unpacked(root: Path, name: str, temporary: Path) -> Path:
    archive = root / f"{name}.zip"
    known = root / "unpacked" / f"{name}-{mark_of(archive)}"
    folder = known if known.is_dir() else unpack(archive, temporary / name)
    return folder / name


def checked(folder: Path) -> checking.CheckReport:
    return checking.check(read_image_folder(folder), near=False)


def planted(folders: dict[str, Path], temporary: Path, seeds: int) -> dict[str, Any]:
    sources = {
        "hymenoptera": lambda seed: of_folder(folders["hymenoptera_data"] / "train", ["ants", "bees"], 120, seed),
        "cifar10": lambda seed: of_folder(folders["cifar10_jpeg"] / "train", list(CIFAR), 60, seed),
        "tiny_imagenet": lambda seed: of_folder(
            folders["tiny"], sorted(path.name for path in folders["tiny"].iterdir())[20:25], 80, seed
        ),
    }
    rows, counts = [], {strength: [0, 0, 0] for strength in STRENGTHS}
    for name, source in sources.items():
        for seed in range(seeds):
            pictures = source(seed)
            for plant, (fact, _) in PLANTS.items():
                for strength in STRENGTHS:
                    target = temporary / "planted"
                    write(pictures, target, plant, strength, seed)
                    report = checked(target).shortcuts
                    shutil.rmtree(target)
                    named = [one.fact.name for one in report.found]
                    noted = [one.fact.name for one in report.by_light]
                    first = (named or noted or [""])[0] == fact
                    is_found = fact in named + noted
                    counts[strength] = [a + b for a, b in zip(counts[strength], (1, is_found, first), strict=True)]
                    rows.append({"set": name, "planted": plant, "strength": strength, "named": named, "noted": noted,
                                 "found": is_found, "first": first})  # fmt: skip
                    print(rows[-1], flush=True)
    return {"planted, found, right first": counts, "rows": rows}


def honest(folders: dict[str, Path]) -> Iterator[tuple[str, Path | list[Picture]]]:
    """Name, and a folder as it is, or pictures to be written in one way."""
    hymenoptera, cifar, tiny = folders["hymenoptera_data"], folders["cifar10_jpeg"] / "train", folders["tiny"]
    yield "hymenoptera", hymenoptera
    for seed in range(2):
        yield f"hymenoptera, 100 a class, draw {seed}", _copies(hymenoptera / "train", ["ants", "bees"], 100, seed)
    for pair in (("airplane", "ship"), ("cat", "dog"), ("deer", "frog"), ("automobile", "bird"), ("horse", "truck")):
        yield f"cifar10: {' and '.join(pair)}", _copies(cifar, list(pair), 150, 0)
    yield "cifar10", _copies(cifar, list(CIFAR), 80, 1)
    names = sorted(path.name for path in tiny.iterdir())
    for start in (0, 40, 80, 120, 160):
        yield f"tiny_imagenet: classes {start} to {start + 4}", _copies(tiny, names[start : start + 5], 100, start)
    yield "tiny_imagenet: two classes", _copies(tiny, names[100:102], 200, 0)
    for name in ("MNIST", "FashionMNIST"):
        yield f"{name}, 10 classes", _idx(folders["raw"] / name / "raw", range(10), 100, seed=0)
        yield f"{name}, 0 and 1", _idx(folders["raw"] / name / "raw", (0, 1), 200, seed=1)
        yield f"{name}, 3, 5, 8", _idx(folders["raw"] / name / "raw", (3, 5, 8), 150, seed=2)
    yield "letters A to E", list(drawn_letters("ABCDE", 100, 0))
    yield "letters I and W", list(drawn_letters("IW", 150, 1))


def _copies(root: Path, classes: list[str], each: int, seed: int) -> dict[str, list[Path]]:
    rng = np.random.default_rng(seed)
    files = {label: sorted(path for path in (root / label).rglob("*.jp*g")) for label in classes}
    return {label: [paths[at] for at in rng.permutation(len(paths))[:each]] for label, paths in files.items()}


def _idx(folder: Path, classes: Any, each: int, seed: int) -> list[Picture]:
    images, labels = (
        np.frombuffer(gzip.decompress((folder / f"t10k-{kind}-ubyte.gz").read_bytes()), np.uint8, offset=offset)
        for kind, offset in (("images-idx3", 16), ("labels-idx1", 8))
    )
    rng, pixels = np.random.default_rng(seed), images.reshape(-1, 28, 28)
    chosen = {label: rng.permutation(np.flatnonzero(labels == label))[:each] for label in classes}
    return [Picture(str(label), Image.fromarray(pixels[at])) for label, rows in chosen.items() for at in rows]


def without(folders: dict[str, Path], temporary: Path, seeds: int) -> dict[str, Any]:
    rows = [_said("dog_breed_tiny", checking.check_source(str(folders["dog_breed_tiny"]), near=False))]
    for name, source in honest(folders):
        target = temporary / "honest"
        if isinstance(source, Path):
            rows.append(_said(name, checked(source)))
            continue
        if isinstance(source, dict):
            for label, paths in source.items():
                (target / label).mkdir(parents=True)
                for path in paths:
                    shutil.copy(path, target / label / path.name)
        elif "MNIST" in name:
            rng = np.random.default_rng(0)
            for number, at in enumerate(rng.permutation(len(source))):
                (target / source[at].label).mkdir(parents=True, exist_ok=True)
                source[at].image.save(target / source[at].label / f"{number:05}.png")
        else:
            write(source, target, None, 0, 0)
        rows.append(_said(name, checked(target)))
        shutil.rmtree(target)
    return {"sets": len(rows), "with an alarm": sum(bool(row["named"]) for row in rows), "rows": rows}


def _said(name: str, report: checking.CheckReport) -> dict[str, Any]:
    found = report.shortcuts
    row = {
        "set": name,
        "named": found.as_json()["found"],
        "noted": [one.fact.name for one in found.by_light],
    }
    print(row, flush=True)
    return row


def times(folders: dict[str, Path], temporary: Path, seeds: int) -> dict[str, Any]:
    """Processor seconds of one process, of `check` with and without facts and their search, in turns."""
    sets = {"hymenoptera": folders["hymenoptera_data"], "dog_breed_tiny": folders["dog_breed_tiny"]}
    small = temporary / "cifar"
    for label, paths in _copies(folders["cifar10_jpeg"] / "train", list(CIFAR), 200, 0).items():
        (small / label).mkdir(parents=True)
        for path in paths:
            shutil.copy(path, small / label / path.name)
    sets["cifar10, 2,000 images"] = small
    search, seconds = checking.shortcuts_in, {name: {"without": [], "with": []} for name in sets}
    for _ in range(5):
        for name, folder in sets.items():
            for kind in ("without", "with"):
                checking.available, checking.shortcuts_in = kind == "with", search if kind == "with" else _nothing
                start = time.process_time()
                checking.check_source(str(folder))
                seconds[name][kind].append(round(time.process_time() - start, 3))
    shares = {name: round(min(of["with"]) / min(of["without"]) - 1, 3) for name, of in seconds.items()}
    return {"seconds": seconds, "more": shares}


def _nothing(*_: object) -> None:
    return None


if __name__ == "__main__":
    main()
