"""Notice images that may belong together, by a folder, by a column of their table or by the beginning of their names.

Nothing is grouped by this: a sentence names the option that would do so, and a person decides.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np

from common.shell import quoted
from common.text import normal, printable
from datasets.bundle import LEFT_OUT, Samples
from datasets.config import FOLDER

LEAST_GROUPS = 5
LEAST_COVERED, LARGEST = 0.6, 0.4
"""Share of the images that groups of several hold together, at least, and that one group holds, at most."""
LOOKED_AT = 20_000
"""Names that are looked at before the others are read as well."""
PATTERNS = (
    r"(?:^|/)([^/]+)([-_. ][^-_. /]+){6}\.\w+$",
    r"(?:^|/)([^/]+)([-_. ][^-_. /]+){3}\.\w+$",
    r"(?:^|/)([^/]+)([-_. ][^-_. /]+){2}\.\w+$",
    r"(?:^|/)([^/]+)[-_. ][^-_. /]+\.\w+$",
    r"(?:^|/)([^\W\d_]+\d+)[^\W\d_]+\d*\.\w+$",
)
"""Names without their last 6 (a date and a time), 3, 2 or 1 words; and the first number of names such as P7S12."""
COLUMNS = frozenset((
    "patient", "subject", "person", "individual", "participant", "case", "donor", "identity", "animal", "specimen",
    "plant", "lesion", "slide", "study", "series", "scan", "session", "sequence", "scene", "video", "clip", "burst",
    "track", "camera", "site", "location", "plot", "group", "object", "instance",
))  # fmt: skip
"""Words that name a column of groups, alone or with one of `IDS`."""
IDS = frozenset(("id", "ids", "no", "nr", "num", "number", "name", "index", "idx", "code", "uid", "key"))
_DATE = re.compile(
    r"^(19|20)\d\d$|(?<!\d)((19|20)\d\d[-_. ]?[01]\d([-_. ]?[0-3]\d)?|[0-3]?\d[-_. ][01]?\d[-_. ](19|20)\d\d)\D*$"
)
"""The end of a key that is a day, month or year: images share it for no other reason."""


class GroupsInNames(NamedTuple):
    """Groups that a set seems to have and that its split tears, or would tear."""

    option: str
    """Value of `--group` that makes them."""
    sentence: str
    """Sentence with the reason, an example, the consequence and the option."""


def suspect_groups(samples: Samples, *, drawn: bool) -> GroupsInNames | None:
    """Return the groups that folders or names suggest; None for most sets.

    `drawn`: the split is drawn at random; one that is given is checked for the groups that it tears.
    """
    if samples.root is None or samples.grouped_by:
        return None
    rows = np.flatnonzero(samples.splits != LEFT_OUT)
    some = rows[:LOOKED_AT]
    labels, paths = samples.labels[some].tolist(), [samples.paths[row] for row in some]
    for option in (FOLDER, *PATTERNS):
        keys = _keys(samples, option, some)
        several_a_class = len({(key, label) for key, label in zip(keys, labels, strict=True) if key}) > 2 * len(
            {*labels}
        )
        if several_a_class and _recur(keys) and (option == FOLDER or _are_numbered(keys, paths)):
            keys = _keys(samples, option, rows)
            torn = 0 if drawn else _torn(keys, samples.splits[rows].tolist())
            return (
                GroupsInNames(option, _sentence(samples, option, rows.tolist(), keys, torn)) if drawn or torn else None
            )
    return None


def _keys(samples: Samples, option: str, rows: Iterable[int]) -> list[str | None]:
    """Return each image's group: the folder below its class, or what a pattern finds."""
    if option != FOLDER:
        return [
            found and found[1] for found in map(re.compile(option).search, (normal(samples.paths[row]) for row in rows))
        ]
    keys = []
    for row in rows:
        label = normal(samples.class_names[samples.labels[row]])
        folders = [normal(name) for name in samples.paths[row].split("/")[:-1]]
        below = folders[folders.index(label) + 1 :] if label in folders else []
        keys.append(below[0] if below else None)
    return keys


def _recur(keys: Sequence[str | None]) -> bool:
    """Return whether enough keys are those of several images, and none that of most."""
    sizes = [size for key, size in Counter(keys).items() if key and size > 1]
    return len(sizes) >= LEAST_GROUPS and sum(sizes) >= LEAST_COVERED * len(keys) and max(sizes) <= LARGEST * len(keys)


def _are_numbered(keys: Sequence[str | None], paths: Sequence[str]) -> bool:
    """Return whether most keys have a number that is no date.

    A short number, such as an age, counts only where the rests of the names recur."""
    rests = {normal(path).rpartition(key)[2] for key, path in zip(keys, paths, strict=True) if key}
    least = 1 if len(rests) < len(keys) / 2 else 3
    distinct = {key for key in keys if key}
    numbered = [any(map(str.isdigit, key)) and len(key) >= least and not _DATE.search(key) for key in distinct]
    return sum(numbered) >= 0.8 * len(distinct)


def _torn(keys: Sequence[str | None], parts: Sequence[object]) -> int:
    """Count the keys of images in more than one split."""
    return sum(count > 1 for count in Counter(key for key, _ in {*zip(keys, parts, strict=True)} if key).values())


def _sentence(samples: Samples, option: str, rows: Sequence[int], keys: Sequence[str | None], torn: int) -> str:
    several = [key for key, size in Counter(keys).items() if key and size > 1]
    first = [samples.paths[row] for row, key in zip(rows, keys, strict=True) if key == several[0]][:2]
    shown = " and ".join(first if option == FOLDER else [PurePosixPath(path).name for path in first])
    split = f"the split has images of {torn:,} of them" if torn else "a random split puts images of one group"
    return printable(
        f"{'folders' if option == FOLDER else 'names'} suggest {len(several):,} groups of several images, such as"
        f" {shown}; {split} in more than one split, which inflates the score. If they belong together: --group"
        f" {quoted(option)}"
    )


def suspect_column(cells: Mapping[str, Sequence[str]], split: str) -> str | None:
    """Return a sentence on a column of a table that names groups.

    None: there is none, or `split` keeps them whole."""
    for name, values in cells.items():
        words = {word for word in re.split(r"[\W_\d]+", name.lower()) if word}
        if not words <= COLUMNS | IDS or not words & COLUMNS or not _recur(values):
            continue
        torn = _torn(values, cells[split]) if split else 0
        apart = f", of which the table's splits tear {torn:,}" if split else ""
        said = f"the column {name!r} names {len({*values} - {''}):,} groups{apart}; to keep each in one split: --group"
        return f"{said} {quoted(name)}" if torn or not split else None
    return None
