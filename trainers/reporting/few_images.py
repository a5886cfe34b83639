"""Limits of few images: how sure a score of theirs is, and whether they show that a model learns."""

import math
from collections.abc import Sequence

import numpy as np

FEW = 100
"""Images below which a score stands with its interval: from here on it reaches no more than 10 points either way."""
LEAST = 20
"""Images below which no share is told from another by its standard error."""


def needed_to_tell(share: float) -> int:
    """Validation images that tell a model that learns from the answer that is always the same, right on this share of
    them: one that makes half of its errors is better by two standard errors."""
    return max(LEAST, math.ceil(round(16 * share / (1 - share), 6)))


def cannot_tell(labels: np.ndarray, class_names: Sequence[str]) -> str:
    """Reason why these validation images do not show whether a model learns; empty where they do."""
    counts, images = np.bincount(labels), len(labels)
    share, commonest = counts.max() / images, class_names[int(counts.argmax())]
    if share == 1 and images >= LEAST:
        return f"all {images:,} validation images are {commonest!r}: they cannot tell whether the model learns"
    needed = needed_to_tell(share if share < 1 else 1 / max(2, len(class_names)))
    if images >= needed:
        return ""
    what = "1 validation image cannot" if images == 1 else f"{images:,} validation images cannot"
    return f"{what} tell whether the model learns: about {needed:,} can, and {FEW} give an accuracy to within 10 points"
