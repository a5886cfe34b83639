"""One split for all runs of a comparison, and what is known to be wrong with it before any of them trains."""

from dataclasses import dataclass

import numpy as np

from datasets.bundle import SPLITS, Samples
from datasets.checking.copies import groups_of_copies
from datasets.config import DataConfig
from datasets.loaders import split_samples
from datasets.splits import hold_out_half_of_val, require_complete

SEARCHED_UP_TO = 20_000
"""Images. Larger sets are not searched for copies before a comparison; `check` does that."""

PRETRAINED_ON = {
    "hymenoptera": "hymenoptera is a subset of ImageNet-1k (classes ant and bee)",
    "dog_breed": "dog_breed (Stanford Dogs) is taken from ImageNet, 120 of its classes",
    "fashion_mnist": "fashion_mnist is what the embedded weights were trained on",
}
"""Sets that are known to be part of what usual weights were trained on: their test images are no news to them."""


def have_seen(weights: str | None, source: str) -> bool:
    """Whether these usual weights were trained on a set, as far as their names tell; None: those of a library."""
    seen = (weights == "fashion_mnist") == (source == "fashion_mnist")
    return source in PRETRAINED_ON and weights != "none" and seen


@dataclass(frozen=True)
class SharedSplit:
    """The sample table that all runs use."""

    samples: Samples
    halved: bool
    """The set has no test images: half of its validation images, drawn class by class, became the test split."""

    def size(self, split: str) -> int:
        return len(self.samples.indices(split))


def shared_split(config: DataConfig) -> SharedSplit:
    """The split a single run would draw, with a test split in any case.

    `labels_per_class` and `fraction` are left to the runs, which take them out of the same training images.
    """
    samples = require_complete(split_samples(config))
    if len(samples.indices("test")):
        return SharedSplit(samples, halved=False)
    return SharedSplit(hold_out_half_of_val(samples, config.split_seed), halved=True)


def copies_of_training_images(samples: Samples) -> list[str] | None:
    """Test images that are, exactly or nearly, training images too: their paths. None: too many to look for."""
    rows = np.flatnonzero(samples.splits >= 0)
    if len(rows) > SEARCHED_UP_TO:
        return None
    groups, splits = groups_of_copies(samples, rows, workers=0), samples.splits[rows]
    learnt = np.isin(groups, groups[splits == SPLITS.index("train")])
    return sorted(samples.paths[row] for row in rows[learnt & (splits == SPLITS.index("test"))])
