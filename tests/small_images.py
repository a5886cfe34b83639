"""A small folder of images that a model can tell apart."""

from pathlib import Path

import numpy as np
from PIL import Image


def image_folder(root: Path, *, classes=("cat", "dog"), train=(6, 6), val=(6, 6), size=20) -> Path:
    """`train` and `val`: how many images of each class."""
    generator = np.random.default_rng(0)
    for split, counts in (("train", train), ("val", val)):
        for index, (name, count) in enumerate(zip(classes, counts, strict=True)):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = generator.integers(0, 120, (size, size, 3), dtype=np.uint8) + np.uint8(100 * index)
                Image.fromarray(pixels).save(folder / f"{i}.jpg")
    return root
