"""Groups of images that belong together (`--group`): how they are read, kept in one split and described."""

import re
import unicodedata
from collections.abc import Sequence

import numpy as np

from common.errors import DataError
from common.text import normal, pluralise, printable
from datasets.bundle import LEFT_OUT, SPLITS, UNSPLIT, Samples
from datasets.config import FOLDER, DataConfig, by_column
from datasets.copies import are_copies
from datasets.sources.problems import Problem
from datasets.sources.reading import SPLIT_FOLDERS
from datasets.suspect import suspect_groups

Names = Sequence[str | None]
"""The group of each image, None where it stands alone."""


def with_groups(samples: Samples, option: str | None) -> Samples:
    """Return the samples with the groups that `--group` names; without it with those that shards bring.

    Raises DataError: there are no such groups; the line names three paths.
    """
    if option is None or (samples.groups is not None and samples.grouped_by == by_column(option)):
        return samples
    names, how = folders(samples) if option == FOLDER else _matches(samples, option)
    numbers: dict[str, int] = {}
    codes = [-1 if name is None else numbers.setdefault(name, len(numbers)) for name in names]
    return samples.replace(groups=np.array(codes, np.int32), group_names=tuple(numbers), grouped_by=how)


def folders(samples: Samples, rows: Sequence[int] | None = None) -> tuple[Names, str]:
    """Return the folder below the class, or else above it, and in words which it is.

    Of paths without their class the first folder that differs. `rows`: of these images only.
    """
    rows = range(len(samples)) if rows is None else rows
    paths = [_folders_of(samples, row) for row in rows]
    labels = [normal(samples.class_names[label]) for label in samples.labels[list(rows)]]
    places = [path.index(label) if label in path else -1 for path, label in zip(paths, labels, strict=True)]
    if min(places) >= 0:
        for step, where in ((1, "below"), (-1, "above")):
            names = [
                path[at + step] if 0 <= at + step < len(path) else None for path, at in zip(paths, places, strict=True)
            ]
            if len({*names} - {None}) > 1:
                return names, f"by the folder {where} the class"
        raise _no_groups(samples, "folder: no two folders lie below a class, or above one")
    for level in range(max(map(len, paths))):
        names = [path[level] if level < len(path) else None for path in paths]
        if len({*names} - {None}) > 1:
            above = {"/".join(path[:level]) for path in paths if level < len(path)}
            where = f"in {above.pop()!r}" if level and len(above) == 1 else "at the top"
            return names, f"by the folder {where}"
    raise _no_groups(samples, "folder: all images lie in one folder")


def _folders_of(samples: Samples, row: int) -> list[str]:
    """Return the folders that an image lies in, without those of splits and without the shard."""
    above = [normal(name) for name in samples.paths[row].split("/")[:-1]]
    if samples.members is not None:
        above = above[next((at + 1 for at, name in enumerate(above) if name.endswith(".tar")), 0) :]
    label = normal(samples.class_names[samples.labels[row]])
    is_class = above[:1] == [label] and label not in above[1:]  # one that is called train or test
    return above[1:] if above and above[0].lower() in SPLIT_FOLDERS and not is_class else above


def _matches(samples: Samples, option: str) -> tuple[Names, str]:
    """Return what a regular expression finds in each path: its first parenthesis, else the whole match."""
    try:
        pattern = re.compile(unicodedata.normalize("NFC", option))
    except (re.error, OverflowError, RecursionError) as error:
        raise _no_groups(samples, f"{option!r} is no regular expression: {error}") from None
    found = map(pattern.search, map(normal, samples.paths))
    names = [(match and match.group(min(1, pattern.groups))) or None for match in found]
    distinct = {*names} - {None}
    if not distinct:
        raise _no_groups(samples, f"{option!r} matches no path of {len(samples):,}")
    if len(distinct) == 1 and None not in names:
        raise _no_groups(samples, f"{option!r} puts all {len(samples):,} images into one group, {distinct.pop()!r}")
    return names, f"by the pattern '{printable(option)}'"


def _no_groups(samples: Samples, why: str) -> DataError:
    examples = ", ".join(repr(path) for path, _ in zip(samples.paths, range(3), strict=False))
    return DataError(printable(f"--group {why}; paths are such as {examples}"))


def about_groups(samples: Samples, parts: Sequence[str]) -> Samples:
    """Note on split samples which groups are torn, or which seem to be there.

    Raises DataError: a part that was drawn has no image, as groups are large.
    """
    if not _named(samples).any():
        found = suspect_groups(samples, drawn=bool(parts))
        return samples if found is None else samples.note(found.sentence)
    if empty := [part for part in parts if not len(samples.indices(part))]:
        raise DataError(
            f"{samples.name}: its groups are so large that no image is left for {' and '.join(empty)}; give a --split"
            " of your own, or groups of fewer images"
        )
    if problems := torn(samples):
        samples = samples.note(
            f"{len(problems)} of {pluralise(len(_sizes(samples)), 'group')} lie in more than one split,"
            f" which inflates the score; the first is {problems[0].detail}; `check` lists them"
        )
    return samples


def parts_drawn(samples: Samples, config: DataConfig) -> tuple[str, ...]:
    """Return the parts still to be drawn, with train; none where the split is given."""
    brings = {SPLITS[code] for code in np.unique(samples.splits[samples.splits >= 0])}
    if config.split is not None or (config.folds is None and "val" in brings):
        return ()
    return ("train", "val") if brings or config.test_fraction == 0 else ("train", "val", "test")


def _named(samples: Samples) -> np.ndarray:
    """Return which groups a person named, not copies of one picture: bool (groups,)."""
    return np.array([not are_copies(name) for name in samples.group_names], bool)


def _sizes(samples: Samples) -> np.ndarray:
    """Count the images in use of each group that a person named, without empty ones: int64."""
    assert samples.groups is not None
    used = samples.groups[samples.splits != LEFT_OUT]
    sizes = np.bincount(used[used >= 0], minlength=len(samples.group_names))[_named(samples)]
    return sizes[sizes > 0]


def torn(samples: Samples) -> list[Problem]:
    """Return the groups that lie in several parts of the split.

    Each by an image of the second part, and one of the first."""
    if samples.groups is None:
        return []
    splits, groups = samples.splits, samples.groups
    used = np.flatnonzero((splits >= 0) & np.isin(groups, np.flatnonzero(_named(samples))))
    order = used[np.lexsort((used, splits[used], groups[used]))]
    problems = []
    for rows in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
        if not len(rows) or splits[rows[0]] == splits[rows[-1]]:
            continue
        codes, starts, counts = np.unique(splits[rows], return_index=True, return_counts=True)
        sizes = ", ".join(f"{n:,} in {SPLITS[code]}" for code, n in zip(codes, counts, strict=True))
        row, detail = rows[starts[1]], f"group {samples.group_of(rows[0])!r}: {sizes}"
        label = samples.class_names[samples.labels[row]]
        problem = Problem("group_across_splits", samples.paths[row], SPLITS[codes[1]], label, samples.paths[rows[0]])
        problems.append(problem._replace(detail=detail))
    return problems


def group_line(samples: Samples) -> str:
    """Describe the number of groups, their origin and sizes; empty where there are none."""
    sizes = _sizes(samples) if samples.groups is not None else ()
    if not len(sizes):
        return ""
    few, many = int(min(sizes)), int(max(sizes))
    images = f"{few:,} to {pluralise(many, 'image')}" if few < many else pluralise(many, "image")
    words = f"groups: {' '.join(filter(None, (f'{len(sizes):,}', samples.grouped_by)))}, {images} each"
    if many == 1:
        words += "; every group has one image, so --group has no effect"
    elif (samples.splits == UNSPLIT).any() or not torn(samples):
        words += "; each stays in one split"
    alone = int((samples.splits != LEFT_OUT).sum() - sum(sizes))
    return words + (f"; {pluralise(alone, 'image')} {'stands' if alone == 1 else 'stand'} alone" if alone else "")
