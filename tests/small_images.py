"""A small folder of images that a model can tell apart."""

from pathlib import Path

import numpy as np
from PIL import Image


def image_folder(root: Path, *, classes=("cat", "dog"), n=6, size=20) -> Path:
    generator = np.random.default_rng(0)
    for split in ("train", "val"):
        for index, name in enumerate(classes):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(n):
                pixels = generator.integers(0, 120, (size, size, 3), dtype=np.uint8) + np.uint8(100 * index)
                Image.fromarray(pixels).save(folder / f"{i}.jpg")
    return root
