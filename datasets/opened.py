"""The images of one command, opened once: listed, identified and split for every run that trains on them alike."""

from typing import Any

from datasets.bundle import Samples
from datasets.config import DataConfig
from datasets.loaders import open_samples, split_opened

LISTING = ("source", "root", "path_column", "label_column", "group", "exclude", "on_bad_image")
"""Options that say which images there are."""
SPLITTING = (*LISTING, "split", "grow", "split_seed", "val_fraction", "test_fraction", "folds", "fold")
"""Options that say how they are split. The others choose among the training images, and feed them."""


class OpenedImages:
    """Sample tables by the options that they depend on.

    A command that plans, measures and trains makes one and hands it to each step, so that a folder is listed once and
    its images are read once to identify them. All steps then see the images as they were when the first one opened
    them. In another process it is empty: that process opens the images itself.
    """

    def __init__(self) -> None:
        self._listed: dict[tuple[Any, ...], Samples] = {}
        self._split: dict[tuple[Any, ...], Samples] = {}
        self.told: list[str] = []
        """The description of them that a person has been told, which the next run need not repeat."""
        self.told_of_weights: set[str] = set()
        """Lines about loaded weights that a person has been told likewise."""

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenedImages, ()

    def split(self, config: DataConfig) -> Samples:
        """The sample table of these options with a split for every image, as `datasets.loaders.split_samples` makes it.

        Raises what that raises, and then keeps nothing.
        """
        listing, splitting = (tuple(getattr(config, name) for name in names) for names in (LISTING, SPLITTING))
        if listing not in self._listed:
            self._listed[listing] = open_samples(config)
        if splitting not in self._split:
            self._split[splitting] = split_opened(self._listed[listing], config)
        return self._split[splitting]
