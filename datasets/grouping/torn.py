"""Groups that a split tears: some of their images lie in one part, some in another."""

import numpy as np

from common.text import pluralise
from datasets.bundle import SPLITS, Samples
from datasets.sources.problems import Problem
from datasets.units import are_copies


def named_groups(samples: Samples) -> np.ndarray:
    """bool (groups,): which groups are a person's, and no mere copies of one picture (`datasets.units`)."""
    return np.array([not are_copies(name) for name in samples.group_names], bool)


def torn(samples: Samples) -> list[Problem]:
    """The groups that lie in more than one part of the split: the first image in the later part, beside the first in
    the earliest."""
    if samples.groups is None:
        return []
    named = np.isin(samples.groups, np.flatnonzero(named_groups(samples)))
    used = np.flatnonzero((samples.splits >= 0) & named)
    order = used[np.lexsort((used, samples.splits[used], samples.groups[used]))]
    starts = np.flatnonzero(np.diff(samples.groups[order], prepend=-1))
    problems = []
    for rows in np.split(order, starts[1:]) if len(order) else ():
        splits = samples.splits[rows]
        if splits[0] == splits[-1]:
            continue
        codes, counts = np.unique(splits, return_counts=True)
        sizes = [f"{pluralise(int(n), 'image')} in {SPLITS[code]}" for code, n in zip(codes, counts, strict=True)]
        sizes[1:] = [size.replace(" images", "").replace(" image", "") for size in sizes[1:]]
        row = rows[np.flatnonzero(splits != splits[0])[0]]
        detail = f"group {samples.group_of(row)!r}: {', '.join(sizes)}"
        label = samples.class_names[samples.labels[row]]
        path, other = samples.paths[row], samples.paths[rows[0]]
        problems.append(Problem("group_across_splits", path, SPLITS[samples.splits[row]], label, other, detail))
    return problems
