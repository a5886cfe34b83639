"""Limits of few images: how sure a score of theirs is, and whether they show that a model learns."""

import math
from collections.abc import Sequence

import numpy as np

from common.text import pluralise

FEW = 100
"""Images below which a score stands with its interval: from here on it reaches no more than 10 points either way."""
LEAST = 20
"""Images below which no share is told from another by its standard error."""


def needed_to_tell(share: float) -> int:
    """Count the images that tell half of a share of errors from all of it, by two standard errors."""
    return max(LEAST, math.ceil(round(16 * share / (1 - share), 6)))


def cannot_tell(labels: np.ndarray, class_names: Sequence[str]) -> str:
    """Say why validation images do not show whether a model learns; empty where they do."""
    counts, images = np.bincount(labels), pluralise(len(labels), "validation image")
    share = counts.max() / len(labels)
    if share == 1 and len(labels) >= LEAST:
        return f"all {images} are {class_names[int(counts.argmax())]!r}: they cannot tell whether the model learns"
    needed = needed_to_tell(share if share < 1 else 1 / max(2, len(class_names)))
    return "" if len(labels) >= needed else f"{images} cannot tell whether the model learns: about {needed:,} can"
