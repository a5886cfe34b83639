"""Which images, how they are split, and how they are fed. No torch here: `python main.py --help` imports this file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

DATASET_NAMES: tuple[str, ...] = ("digits", "hymenoptera")


@dataclass(frozen=True)
class DataConfig:
    """A labelled set of images."""

    source: Annotated[str, tyro.conf.arg(name="data")] = "digits"
    """A built-in set, or the path of your own: a folder, a CSV table, a zip."""
    root: Annotated[Path, tyro.conf.arg(name="data-root")] = Path("data")
    """Where built-in sets are found, or downloaded to."""
    split_seed: int = 0
    """Seed of the split, where the set brings none; independent of --seed."""
    val_fraction: float = 0.15
    """Share of the images held out for validation, where the set brings no split."""
    test_fraction: float = 0.15
    """Share of the images held out for the test, where the set brings no split."""
    augment: Literal["auto", "none", "light", "standard", "strong"] = "auto"
    """Augmentation preset of the training images."""
    batch_size: int | None = None
    """Images per optimizer step. Default: depends on the model."""
    workers: int | None = None
    """Loader processes. Default: chosen from the data and the processor."""

    def __post_init__(self) -> None:
        if not 0 < self.val_fraction < 1 or not 0 <= self.test_fraction < 1:
            raise ValueError(
                f"val_fraction={self.val_fraction} must lie in (0, 1) and test_fraction={self.test_fraction} in [0, 1)"
            )
        if self.val_fraction + self.test_fraction >= 1:
            raise ValueError(
                f"val_fraction={self.val_fraction} + test_fraction={self.test_fraction} leave nothing to train on"
            )
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"batch_size={self.batch_size} must be at least 1")
        if self.workers is not None and self.workers < 0:
            raise ValueError(f"workers={self.workers} must be 0 or more")
