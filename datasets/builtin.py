"""The built-in sets: one function each, from a data root to a sample table."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from datasets.archives import unpack
from datasets.bundle import UNSPLIT, PathTable, Samples
from datasets.fetch import Resource, obtain
from datasets.image_folder import read_image_folder

HYMENOPTERA = Resource(
    "hymenoptera_data.zip",
    ("https://download.pytorch.org/tutorial/hymenoptera_data.zip",),
    "sha256:77a1531d2237f648377f1f5679db8436247ec91d158ba3d836ffc3a3da5c1034",
    "45 MB",
)


def read_digits(root: Path) -> Samples:
    """1,797 scans of handwritten digits, 8 x 8 grey pixels: ships with scikit-learn (Alpaydin & Kaynak 1998)."""
    from sklearn.datasets import load_digits

    scans = load_digits()
    # 17 levels, 0 to 16, become 0 to 255.
    pixels = np.rint(scans.images * (255 / 16)).astype(np.uint8)[..., None]
    return Samples(
        name="digits",
        class_names=tuple("0123456789"),
        paths=PathTable.from_paths([f"digits/{i:04d}" for i in range(len(pixels))]),
        labels=scans.target.astype(np.int32),
        splits=np.full(len(pixels), UNSPLIT, np.int8),
        pixels=pixels,
        mirror=False,
        val_fraction=0.2,
        test_fraction=0.2,
    )


def read_hymenoptera(root: Path) -> Samples:
    """Ants and bees, 244 + 153 photographs: PyTorch's transfer-learning tutorial (Chilamkurthy 2017)."""
    folder = unpacked("hymenoptera", root, root / "hymenoptera_data", HYMENOPTERA)
    return read_image_folder(folder, "hymenoptera")


def unpacked(name: str, root: Path, folder: Path, archive: Resource) -> Path:
    """The folder, unpacked from its archive, fetched from the network: whatever is still missing."""
    if not folder.is_dir():
        unpack(obtain(archive, root, name=name), folder)
    return folder
