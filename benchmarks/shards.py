"""Pictures per second from a folder, a zip, tar shards and Arrow, bytes alone and decoded; and what a start costs.

    python -m benchmarks.shards [--images 20000] [--rounds 5]

Each round reads the same pictures in the same random order from all four, warm and then cold: their pages are dropped
by posix_fadvise, while what the system knows of folders stays. `loader` is the training loader without a cache, at 32
px and one loader process, over the first 2,000 of them. The zip is read by `zipfile` and Arrow, as save_to_disk writes
it, by pyarrow: this program unpacks the one and writes the other as shards at the first start, which is their `list`.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow
from PIL import Image

from benchmarks.environment import describe, write_result
from benchmarks.photographs import blend, textures
from datasets import build_dataloaders
from datasets.config import DataConfig
from datasets.sources.large.packing import pack
from datasets.sources.own_data import read_source
from vit.config import ImageSpec


def write_folder(root: Path, count: int) -> list[Path]:
    """Ten classes of JPEGs of 160 x 120 px, about 5 kB each."""
    rng, fields = np.random.default_rng(0), textures(8, 640)
    paths = [root / f"class{number % 10}" / f"{number:06}.jpg" for number in range(count)]
    for folder in {path.parent for path in paths}:
        folder.mkdir(parents=True)
    pictures = [blend(fields, 160, 120, rng) for _ in range(min(count, 500))]
    for number, path in enumerate(paths):
        Image.fromarray(pictures[number % len(pictures)]).save(path, quality=85)
    return paths


def write_arrow(path: Path, pictures: list[Path]) -> None:
    """A stream of batches of 1,000 rows, as Hugging Face's `datasets` saves it."""
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    schema = pyarrow.schema([("image", kind), ("label", pyarrow.string())])
    path.parent.mkdir()
    with pyarrow.ipc.new_stream(path, schema) as stream:
        for start in range(0, len(pictures), 1000):
            some = pictures[start : start + 1000]
            images = [{"bytes": picture.read_bytes(), "path": picture.name} for picture in some]
            labels = [picture.parent.name for picture in some]
            stream.write_table(pyarrow.table([images, labels], schema=schema))


def arrow_reader(path: Path) -> Callable[[int], bytes]:
    """The bytes of a row, from the file mapped into memory."""
    with pyarrow.memory_map(str(path)) as mapped, pyarrow.ipc.open_stream(mapped) as stream:
        images = stream.read_all()["image"]
    return lambda row: images[row].as_py()["bytes"]


def drop_pages(files: Iterable[Path]) -> None:
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def seconds_of(do: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    do()
    return time.perf_counter() - begin


def one_epoch(source: Path) -> None:
    config = DataConfig(source=str(source), cache="off", workers=1, labels_per_class=200, batch_size=100)
    for _ in build_dataloaders(config, ImageSpec(image_size=32)).dataloaders["train"]:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        paths = write_folder(root / "folder", options.images)
        with zipfile.ZipFile(root / "set.zip", "w") as archive:
            for path in paths:
                archive.write(path, str(path.relative_to(root / "folder")))
        write_arrow(root / "arrow" / "data-00000-of-00001.arrow", paths)
        packing = seconds_of(lambda: pack(read_source(str(root / "folder"), root).usable(), root / "shards"))
        os.sync()  # pages that are not on the disk yet cannot be dropped
        result = measure(root, options.rounds) | {"pack_images_per_s": round(options.images / packing)}
    write_result(
        "shards", {"images": options.images, "rounds": options.rounds} | result | describe("pillow", "pyarrow")
    )


def measure(root: Path, rounds: int) -> dict[str, Any]:
    """Medians over the rounds."""
    sources = {"folder": root / "folder", "zip": root / "set.zip", "shards": root / "shards", "arrow": root / "arrow"}
    files, members = (read_source(str(sources[name]), root).usable() for name in ("folder", "shards"))
    stored = {name: sorted(source.rglob("*.*")) or [source] for name, source in sources.items()}
    opened = zipfile.ZipFile(sources["zip"])
    readers: dict[str, Callable[[], Callable[[int], bytes]]] = {
        "folder": lambda: lambda row: files.file(row).read_bytes(),
        "zip": lambda: lambda row: opened.read(files.paths[row]),
        "shards": lambda: lambda row: members.file(row).read_bytes(),
        "arrow": lambda: arrow_reader(stored["arrow"][0]),  # anew: pages that are mapped cannot be dropped
    }
    order = random.Random(0).sample(range(len(files)), len(files))
    seen: dict[str, list[float]] = {}
    for number in range(rounds):
        for name, reader in readers.items():
            for state in ("warm", "cold"):
                if state == "cold":
                    drop_pages(stored[name])
                seen.setdefault(f"{name}_{state}", []).append(seconds_of(lambda reader=reader: [*map(reader(), order)]))
            new = root / f"{name}_{number}"  # nothing is unpacked there yet
            seen.setdefault(f"{name}_list", []).append(
                seconds_of(lambda name=name, new=new: read_source(str(sources[name]), new))
            )
            shutil.rmtree(new, ignore_errors=True)
        for name in ("folder", "shards"):
            seen.setdefault(f"{name}_loader", []).append(seconds_of(lambda name=name: one_epoch(sources[name])))
    loaded = 2000  # labels_per_class=200 of ten
    return {
        f"{name}_per_s": {
            "median": round((loaded if name.endswith("loader") else len(files)) / median(times)),
            "slowest": round((loaded if name.endswith("loader") else len(files)) / max(times)),
            "fastest": round((loaded if name.endswith("loader") else len(files)) / min(times)),
        }
        for name, times in seen.items()
    }


if __name__ == "__main__":
    main()
