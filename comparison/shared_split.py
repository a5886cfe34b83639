"""Draw one split for all runs of a comparison, and find copies across it."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from datasets.bundle import LEFT_OUT, TEST, TRAIN, Samples
from datasets.config import DataConfig
from datasets.copies import copies_of
from datasets.known import SEARCHED_UP_TO
from datasets.open import OpenedImages
from datasets.split import hold_out_half_of_val, require_complete


@dataclass(frozen=True)
class SharedSplit:
    """The sample table that all runs use."""

    samples: Samples
    halved: bool
    """The set has no test images: half of its validation images, drawn class by class, became the test split."""

    def size(self, split: str) -> int:
        return len(self.samples.indices(split))


def shared_split(config: DataConfig, opened: OpenedImages | None = None) -> SharedSplit:
    """Return the split of a single run, with test images in any case.

    `labels_per_class` and `fraction` are left to the runs, which take them out of the same training images.
    """
    samples = require_complete((opened or OpenedImages()).split(config))
    if len(samples.indices("test")):
        return SharedSplit(samples, halved=False)
    return SharedSplit(hold_out_half_of_val(samples, config.split_seed), halved=True)


def copies_of_training_images(samples: Samples, data_root: Path | None = None) -> list[str] | None:
    """Return the paths of test images that are copies of training images.

    None: there are too many images to look for them."""
    if (samples.splits != LEFT_OUT).sum() > SEARCHED_UP_TO or (copies := copies_of(samples, data_root)) is None:
        return None
    learnt = (copies >= 0) & np.isin(copies, copies[samples.splits == TRAIN])
    return sorted(samples.paths[row] for row in np.flatnonzero(learnt & (samples.splits == TEST)))
