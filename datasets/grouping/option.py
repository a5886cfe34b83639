"""`--group`: which images belong together, from a column of their table, from folders or from a pattern of the path."""

import re
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np

from common.errors import DataError
from common.text import normal, printable
from datasets.bundle import Samples
from datasets.sources.reading import SPLIT_FOLDERS

FOLDER = "folder"
Names = Sequence[str | None]
"""The group of each image, None where it stands alone."""


def with_groups(samples: Samples, option: str | None) -> Samples:
    """The samples with the groups that `--group` asks for; without it with those that shards bring. Raises DataError:
    there are no such groups; the line names three paths."""
    if option is None or (samples.groups is not None and samples.grouped_by == by_column(option)):
        return samples
    return numbered(samples, *(folders(samples) if option == FOLDER else matches(samples, option)))


def column_of(option: str | None) -> str | None:
    """The column or field that the option may name; None where it can only be something else."""
    return option if option and option != FOLDER and re.fullmatch(r"[\w -]+", option) else None


def by_column(option: str) -> str:
    return f"by the column {option.strip().lower()!r}"


def numbered(samples: Samples, names: Names, how: str) -> Samples:
    """The samples with these groups, numbered as they come."""
    numbers: dict[str, int] = {}
    codes = [-1 if name is None else numbers.setdefault(name, len(numbers)) for name in names]
    return samples.replace(groups=np.array(codes, np.int32), group_names=tuple(numbers), grouped_by=how)


def folders(samples: Samples, rows: Sequence[int] | None = None) -> tuple[Names, str]:
    """The folder below the class; where that is one and the same, the one above it; of paths without their class, the
    first that differs. Of these rows, or of all."""
    rows = range(len(samples)) if rows is None else rows
    parts = [_folders_of(samples, row) for row in rows]
    labels = [samples.class_names[label] for label in samples.labels[list(rows)]]
    places = [path.index(label) if label in path else -1 for path, label in zip(parts, labels, strict=True)]
    if min(places) < 0:
        for level in range(max(map(len, parts))):
            names = [path[level] if level < len(path) else None for path in parts]
            if _several(names):
                above = {"/".join(path[:level]) for path in parts if level < len(path)}
                where = f"in {min(above)!r}" if above != {""} and len(above) == 1 else "at the top"
                return names, f"by the folder {where}"
        raise _no_groups(samples, FOLDER, "all images lie in one folder")
    below = [path[at + 1] if at + 1 < len(path) else None for path, at in zip(parts, places, strict=True)]
    if _several(below):
        return below, "by the folder below the class"
    above_class = [path[at - 1] if at else None for path, at in zip(parts, places, strict=True)]
    if _several(above_class):
        return above_class, "by the folder above the class"
    raise _no_groups(samples, FOLDER, "no two folders lie below a class, or above one")


def _folders_of(samples: Samples, row: int) -> list[str]:
    """The names of the folders that an image lies in, without those of a split and without the shard."""
    parts = normal(samples.paths[row]).split("/")[:-1]
    if samples.members is not None:
        parts = parts[next((at + 1 for at, part in enumerate(parts) if part.endswith(".tar")), 0) :]
    label = samples.class_names[samples.labels[row]]
    is_class = parts[:1] == [normal(label)] and label not in parts[1:]  # one that is called train or test
    return parts[1:] if parts and parts[0].lower() in SPLIT_FOLDERS and not is_class else parts


def _several(names: Names) -> bool:
    return len({name for name in names if name is not None}) > 1


def matches(samples: Samples, option: str) -> tuple[Names, str]:
    """Return what a regular expression finds in each path."""
    try:
        names = found_names(option, samples.paths)
    except re.error as error:
        raise _no_groups(samples, repr(option), f"no regular expression: {error}", verb="is") from None
    distinct = set(names) - {None}
    if not distinct:
        raise _no_groups(samples, repr(option), f"no path of {len(samples):,}", verb="matches")
    if len(distinct) == 1 and None not in names:
        alike = f"all {len(samples):,} images into one group, {distinct.pop()!r}"
        raise _no_groups(samples, repr(option), alike, verb="puts")
    return names, f"by the pattern '{printable(option)}'"


def found_names(option: str, paths: Iterable[str]) -> Names:
    """Return what a regular expression finds in each path: its first parenthesis, else the whole match. Raises
    re.error."""
    pattern = re.compile(unicodedata.normalize("NFC", option))
    found = map(pattern.search, map(normal, paths))
    return [(match and match.group(min(1, pattern.groups))) or None for match in found]


def _no_groups(samples: Samples, option: str, why: str, *, verb: str = "") -> DataError:
    examples = ", ".join(repr(path) for path, _ in zip(samples.paths, range(3), strict=False))
    said = f"--group {option} {verb} {why}" if verb else f"--group {option}: {why}"
    return DataError(printable(f"{said}; paths are such as {examples}"))
