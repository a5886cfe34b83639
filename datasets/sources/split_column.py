"""The column of a table that says the split of each image, under whatever name."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from common.errors import DataError
from common.text import shorten_list
from datasets.sources.reading import SPLIT_FOLDERS, split_word

BESIDE = frozenset(("is", "in", "for", "set", "split", "data", "flag", "or", "and"))
"""Words that may stand beside a split in the name of a column of yes and no."""
YES_OR_NO = frozenset(("0", "1", "true", "false", "t", "f", "yes", "no", "y", "n"))
MOST_VALUES = 10


def split_column(cells: Mapping[str, Collection[str]], roles: Collection[str], table: Path) -> str:
    """Return the column whose cells say train, val or test; empty: there is none.

    `roles`: the columns that mean something else. Raises DataError: a column seems to say it in words that are not
    sure, or several do, for test images must not be trained on.
    """
    if any(cells.get("split", ())):
        return "split"
    values = {name: {cell.strip() for cell in column} - {""} for name, column in cells.items() if name not in roles}
    found = [name for name in values if _says_splits(name, values[name])]
    if not found:
        return ""
    if len(found) == 1 and {value.lower() for value in values[found[0]]} <= SPLIT_FOLDERS.keys():
        return found[0]
    raise DataError(
        f"{table}: the column {found[0]!r} seems to say the split ({shorten_list(sorted(values[found[0]]))}); rename it"
        " to split, with train, val or test in it, or take it out"
    )


def _says_splits(name: str, values: Collection[str]) -> bool:
    """Return whether a column may say the split: by yes and no under a name like is_train, or by its words."""
    if not 0 < len(values) <= MOST_VALUES:
        return False
    if {value.lower().removesuffix(".0") for value in values} <= YES_OR_NO:
        named = _split_of(name)
        return len(values) == 2 and named is not None and BESIDE.issuperset(named[1].split())
    found = [_split_of(value) for value in values]
    splits = {split for split, _ in filter(None, found)}
    return None not in found and (len(splits) > 1 or not any(rest for _, rest in filter(None, found)))


def _split_of(text: str) -> tuple[str, str] | None:
    return split_word(re.sub("devel(opment)?", "dev", text, flags=re.IGNORECASE))
