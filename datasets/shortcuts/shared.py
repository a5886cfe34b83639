"""Facts that the test images of a split share with those that are trained on: the camera, and the day."""

from collections.abc import Iterator, Sequence

import numpy as np

from common.text import pluralise
from datasets.bundle import SPLITS, TRAIN, Samples
from datasets.facts import ImageFacts

MOST_KNOWN = 0.5
"""Share of the images of a part whose EXIF must tell."""
MUCH = 0.5
"""Share of these that training shares, from which on it is said."""


def shared_with_training(samples: Samples, rows: Sequence[int], facts: Sequence[ImageFacts | None]) -> Iterator[str]:
    """One line for each part but train whose images were mostly taken by a camera, or on a day by a camera, that images
    of train were taken by, too, where several are known."""
    splits = samples.splits[list(rows)]
    cameras = np.array([fact.camera if fact else "" for fact in facts])
    days = np.array([f"{fact.camera} {fact.day}" if fact and fact.day else "" for fact in facts])
    for code, split in enumerate(SPLITS):
        for what, values, option in (("on a day", days, "day"), ("by a camera", cameras, "camera")):
            part, train = values[splits == code], values[splits == TRAIN]
            known = part[part != ""]
            if code == TRAIN or not len(part) or len(known) < MOST_KNOWN * len(part) or len(set(values) - {""}) < 2:
                continue
            shared = int(np.isin(known, train).sum())
            if shared >= MUCH * len(known):
                yield (
                    f"{shared:,} of {pluralise(len(part), f'{split} image')} were taken {what} that train has, too, so "
                    f"the score says little of other{' days' if option == 'day' else ' cameras'}; a split that keeps "
                    f"each in one part: --group {option}"
                )
                break
