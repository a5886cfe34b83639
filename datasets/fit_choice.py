"""`--fit auto`: which fit suits the shapes of the training images, and how much of each picture the model then sees."""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np

from common.errors import DataError
from common.image_spec import ImageSpec
from datasets.bundle import LEFT_OUT, TEST, Samples
from datasets.fitting import Fit, seen_share
from datasets.images import image_size

LOOKED_AT = 500
"""Pictures, spread over a set, whose sizes are read from their headers."""
LOST = 0.4
"""Share of a picture that is much to lose: `crop` cuts it off beyond 5 : 3."""
MANY = 0.25
"""Share of the pictures that makes it worth while to show the whole of each, at a smaller scale."""
ALIKE = 1.5
"""Factor within which nine tenths of the pictures' proportions must lie: squashing then distorts all of them alike."""
MILD = 2.2
"""Largest ratio of the sides at which pictures are squashed: docs/evidence/benchmarks.md, "Whole pictures"."""


_CHOSEN: WeakKeyDictionary[Samples, Fit] = WeakKeyDictionary()


def chosen_fit(samples: Samples) -> Fit:
    """The fit for the images that no test is held out of: `crop`, unless it would cut much off many of them."""
    if samples not in _CHOSEN:
        rows = np.flatnonzero((samples.splits != LEFT_OUT) & (samples.splits != TEST))
        spread = np.unique(np.linspace(0, len(rows) - 1, min(LOOKED_AT, len(rows))).astype(int))
        _CHOSEN[samples] = choose(native_sizes(samples, rows[spread]))
    return _CHOSEN[samples]


def native_sizes(samples: Samples, rows: np.ndarray) -> np.ndarray:
    """(n, 2): width and height of the pictures whose headers can be read."""
    if samples.pixels is not None:
        return np.tile([samples.pixels.shape[2], samples.pixels.shape[1]], (len(rows), 1))
    sizes = []
    for row in rows.tolist():
        try:
            sizes.append(image_size(samples.file(row)))
        except DataError:  # whoever decodes it names it
            continue
    return np.array(sizes, np.int64).reshape(-1, 2)


def choose(sizes: np.ndarray) -> Fit:
    """The fit for pictures of these sizes (n, 2)."""
    if not len(sizes) or (seen(sizes, "crop") <= 1 - LOST).mean() < MANY:
        return "crop"
    low, high = np.quantile(sizes[:, 0] / sizes[:, 1], (0.05, 0.95))
    ratio = float(np.median(sizes.max(axis=1) / sizes.min(axis=1)))
    return "squash" if high <= ALIKE * low and ratio <= MILD else "pad"


def in_words(fit: str, sizes: np.ndarray) -> str:
    """Say what a fit does to pictures of these sizes (n, 2), and what speaks for it: one line; empty where all of them
    are square."""
    cut = 1 - seen(sizes, "crop").mean()
    if cut < 0.01:
        return ""
    if fit == "crop":
        return f"fit crop: {cut:.0%} of the average picture is cut off; --fit pad or squash shows whole pictures"
    reasons = {"squash": ", and all have similar proportions", "pad": ", and their proportions differ or are extreme"}
    why = reasons[fit] if choose(sizes) == fit else ""
    return f"fit {fit}: whole pictures; crop would cut {cut:.0%} off the average one{why}"


def seen(sizes: np.ndarray, fit: Fit) -> np.ndarray:
    """(n,): the share of each picture that a model sees."""
    spec, (different, which) = ImageSpec(fit=fit), np.unique(sizes, axis=0, return_inverse=True)
    return np.array([seen_share(width, height, spec) for width, height in different.tolist()])[which]


def never_seen(sizes: Sequence[tuple[int, int]], labels: Sequence[str]) -> str:
    """Say what a model sees of pictures of these sizes and classes, by the fit that `auto` chooses, and by `crop`: one
    line; empty where every picture is nearly square."""
    table = np.array(sizes, np.int64).reshape(-1, 2)
    cropped = seen(table, "crop")
    if not len(table) or cropped.mean() > 0.95:
        return ""
    means = {label: cropped[np.array(labels) == label].mean() for label in dict.fromkeys(labels)}
    hit = sorted((share, label) for label, share in means.items() if share <= 1 - LOST)
    most = ", ".join(f"{label!r} ({1 - share:.0%})" for share, label in hit[:3])
    more = f" and {len(hit) - 3} more" if len(hit) > 3 else ""
    worst = f", most of {most}{more}" if hit else ""
    fit = choose(table)
    line = f"{1 - cropped.mean():.0%} of the pixels are never seen with --fit crop{worst}"
    return f"{line}; `train` chooses {fit}" + ("" if fit == "crop" else ", which shows whole pictures")
