"""One split for all runs of a comparison, and what is known to be wrong with it before any of them trains."""

from dataclasses import dataclass

from datasets.bundle import Samples
from datasets.checking.check import check
from datasets.config import DataConfig
from datasets.loaders import split_samples
from datasets.sources.reading import Reading
from datasets.splits import hold_out_half_of_val, require_complete

SEARCHED_UP_TO = 20_000
"""Images. Larger sets are not searched for copies before a comparison; `check` does that."""

PRETRAINED_ON = {
    "hymenoptera": "hymenoptera is a subset of ImageNet-1k (classes ant and bee)",
    "dog_breed": "dog_breed (Stanford Dogs) is taken from ImageNet, 120 of its classes",
    "fashion_mnist": "fashion_mnist is what the embedded weights were trained on",
}
"""Sets that are known to be part of what usual weights were trained on: their test images are no news to them."""


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
    if int((samples.splits >= 0).sum()) > SEARCHED_UP_TO:
        return None
    report = check(Reading.of(samples))
    split_of = {picture.path: picture.split for picture in report.pictures}
    copies = set()
    for finding in report.findings:
        if finding.kind.endswith("duplicate_across_splits"):
            splits = {split_of[path]: path for path in (finding.path, finding.other)}
            if splits.keys() == {"train", "test"}:
                copies.add(splits["test"])
    return sorted(copies)
