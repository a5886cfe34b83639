"""What makes runs comparable: the same images, classes and labels."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from comparison.runs import SCORED, Run, read_table
from datasets.errors import DataError
from datasets.text import some


def require_same_data(runs: Sequence[Run]) -> None:
    """Refuse to compare runs that were given different images, classes or labels.

    Raises:
        DataError: how the first run that differs from the first of all does.
    """
    first = runs[0]
    for other in runs[1:]:
        reasons = differences(first, other)
        if reasons:
            raise DataError(f"{first.run_dir} and {other.run_dir} cannot be compared: {'; '.join(reasons)}")


def differences(first: Run, other: Run) -> list[str]:
    """How the data of two runs differ, one phrase each, A being the first run and B the other."""
    if first.class_names != other.class_names:
        return [_different_classes(first.class_names, other.class_names)]
    reasons = []
    if first.scored != other.scored:
        reasons.append(f"A is scored on {SCORED[first.scored]} images, B on {SCORED[other.scored]} images")
    ours, theirs = _split_table(first), _split_table(other)
    for split in ("test", "val", "train"):
        reasons += _different_images(split, *(table.index[table["split"] == split] for table in (ours, theirs)))
    both = ours.index.intersection(theirs.index)
    for column, change in (("hash", "changed content"), ("label", "changed label")):
        changed = both[(ours.loc[both, column] != theirs.loc[both, column]).to_numpy()]
        if len(changed):
            reasons.append(f"{len(changed):,} image{'s' * (len(changed) != 1)} {change}, first {changed[0]!r}")
    if not reasons and first.paths != other.paths:
        reasons.append(f"predictions for {len(first.paths):,} images in A, {len(other.paths):,} in B")
    return reasons


def _different_classes(ours: Sequence[str], theirs: Sequence[str]) -> str:
    only = {"A": set(ours) - set(theirs), "B": set(theirs) - set(ours)}
    if not any(only.values()):
        return "the same classes in another order"
    parts = [f"; only in {run}: {some(sorted(names), 5)}" for run, names in only.items() if names]
    return f"{len(ours)} classes in A, {len(theirs)} in B{''.join(parts)}"


def _different_images(split: str, ours: pd.Index, theirs: pd.Index) -> list[str]:
    only = {"A": ours.difference(theirs), "B": theirs.difference(ours)}
    parts = [f"{len(paths):,} only in {run}, first {paths[0]!r}" for run, paths in only.items() if len(paths)]
    return [f"{len(ours):,} {split} images in A, {len(theirs):,} in B ({'; '.join(parts)})"] if parts else []


def _split_table(run: Run) -> pd.DataFrame:
    """The used images of split.csv with the columns label, split and hash, indexed and sorted by path."""
    table = read_table(run.run_dir / "split.csv", ("path", "label", "split", "hash")).set_index("path").sort_index()
    return table[table["split"].isin(("test", "val", "train"))]
