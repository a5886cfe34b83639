"""Split by groups: whether parts and folds can keep groups together, and what a person has to know about it."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from common.errors import DataError
from common.text import pluralise
from datasets.bundle import LEFT_OUT, SPLITS, UNSPLIT, Samples
from datasets.config import DataConfig
from datasets.grouping.torn import named_groups, torn
from datasets.suspect import suspect_groups
from datasets.units import units_of

MOST = 0.5
"""A group with more of a class than this decides alone what is learnt of it, or how it is scored."""
NAMED = 3
"""Classes or groups that a note names by a line of their own."""


def split_by_groups(
    samples: Samples, config: DataConfig, assign_splits: Callable[[Samples, DataConfig], Samples]
) -> Samples:
    """Return what `assign_splits` makes of the samples, where it can keep their groups together, with a line for each
    class of which it cannot make several parts, and for groups that a given split tears. Raises DataError: there are
    fewer groups than parts or folds, or groups so large that a part is left without an image."""
    parts = _drawn(samples, config)
    if not named_groups(samples).any():
        split = assign_splits(samples, config)
        found = suspect_groups(split, drawn=bool(parts))
        return split if found is None else split.note(found.sentence)
    if not parts:
        return say_torn(assign_splits(samples, config))
    pool = np.flatnonzero((samples.splits != LEFT_OUT) & (samples.splits != SPLITS.index("test")))
    units = units_of(samples, pool)
    if len(pool):
        _require_enough(samples, config, parts, len(np.unique(units)))
    samples = assign_splits(samples.note(*_narrow_classes(samples, pool, units)), config)
    if empty := [part for part in parts if not len(samples.indices(part))]:
        raise DataError(
            f"{samples.name}: its groups are so large that no image is left for {' and '.join(empty)}; give a --split"
            " of your own, or groups of fewer images"
        )
    return say_torn(samples)


def _require_enough(samples: Samples, config: DataConfig, parts: Sequence[str], count: int) -> None:
    wanted = f"{config.folds} folds" if config.folds else f"{len(parts)} parts, {', '.join(parts[:-1])} and {parts[-1]}"
    if count < (config.folds or len(parts)):
        cure = "use fewer folds" if config.folds else "--test-fraction 0 or a --split of your own needs fewer"
        raise DataError(f"{samples.name} has {pluralise(count, 'group')} for {wanted}: {cure}")


def _sizes(samples: Samples) -> np.ndarray:
    """int64: the images in use of each group that a person named and that has some."""
    assert samples.groups is not None
    used = samples.groups[samples.splits != LEFT_OUT]
    sizes = np.bincount(used[used >= 0], minlength=len(samples.group_names))[named_groups(samples)]
    return sizes[sizes > 0]


def _drawn(samples: Samples, config: DataConfig) -> tuple[str, ...]:
    """The parts that are still to be drawn, train among them; none where the split is given."""
    if config.split is not None:
        return ()
    brought = set(np.unique(samples.splits[samples.splits >= 0]).tolist())
    test = () if brought or config.test_fraction == 0 else ("test",)
    if config.folds is None and SPLITS.index("val") in brought:
        return ()
    return ("train", "val", *test)


def _narrow_classes(samples: Samples, rows: np.ndarray, units: np.ndarray) -> Iterator[str]:
    """Classes that lie in one group only, and groups with most of a class."""
    alone, most = [], []
    for label, name in enumerate(samples.class_names):
        of_class = units[samples.labels[rows] == label]
        numbers, counts = np.unique(of_class, return_counts=True)
        if not len(of_class) or counts.max() == 1:
            continue
        group, largest = samples.group_names[numbers[counts.argmax()]], int(counts.max())
        if len(numbers) == 1:
            alone.append(f"class {name!r} is in one group only, {group!r}: it cannot be both learnt and validated")
        elif largest > MOST * len(of_class):
            most.append(
                f"group {group!r} has {largest:,} of the {len(of_class):,} images of class {name!r}: the parts cannot"
                " have their shares of it"
            )
    for lines in (alone, most):
        yield from lines[:NAMED]
        if len(lines) > NAMED:
            yield f"and {len(lines) - NAMED} more classes like these"


def say_torn(samples: Samples) -> Samples:
    """The samples, with a line where their split tears groups: one that they bring, or one of --split."""
    problems = torn(samples)
    if not problems:
        return samples
    lie = f"{len(problems)} of {pluralise(len(_sizes(samples)), 'group')}"
    group = problems[0].detail.partition(":")[0].removeprefix("group ")
    return samples.note(
        f"{lie} lie in more than one part of the split, such as {group}: the score would be too good; `check` lists"
        " them"
    )


def line(samples: Samples) -> str:
    """Number of groups, how they were made and how large they are; empty where there are none."""
    sizes = _sizes(samples) if samples.groups is not None else ()
    if not len(sizes):
        return ""
    few, many = int(min(sizes)), int(max(sizes))
    images = f"{few:,} to {pluralise(many, 'image')}" if few < many else pluralise(many, "image")
    words = f"groups: {' '.join(filter(None, (f'{len(sizes):,}', samples.grouped_by)))}, {images} each"
    if (samples.splits == UNSPLIT).any() or not torn(samples):
        words += "; each stays in one part" if many > 1 else "; each image is a group of its own, which changes nothing"
    alone = int((samples.splits != LEFT_OUT).sum() - sum(sizes))
    return words + (f"; {pluralise(alone, 'image')} {'stands' if alone == 1 else 'stand'} alone" if alone else "")
