"""The column of a table that says the split of each image, under whatever name."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from common.errors import DataError
from common.text import shorten_list
from datasets.sources.reading import SPLIT_FOLDERS

MEANINGS = SPLIT_FOLDERS | {
    "trainval": "train", "dev": "val", "devel": "val", "development": "val", "eval": "val", "evaluation": "val",
    "holdout": "test", "hold": "test", "held": "test",
}  # fmt: skip
"""Words that people have for a split; those that are no names of folders are not sure."""
BESIDE = frozenset(("is", "in", "for", "set", "split", "data", "flag", "or", "and"))
YES_OR_NO = frozenset(("0", "1", "true", "false", "t", "f", "yes", "no", "y", "n"))
MOST_VALUES = 10
_WORDS = re.compile("[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def split_column(cells: Mapping[str, Collection[str]], roles: Collection[str], table: Path) -> str:
    """Return the column whose cells say train, val or test; empty where there is none.

    `roles`: the columns that mean something else. Raises DataError: a column seems to say it in words that are not
    sure, or several do, for test images must not be trained on.
    """
    if any(cells.get("split", ())):
        return "split"
    values = {name: {cell.strip() for cell in column} - {""} for name, column in cells.items() if name not in roles}
    found = [name for name in values if _says_splits(name, values[name])]
    if len(found) == 1 and {value.lower() for value in values[found[0]]} <= SPLIT_FOLDERS.keys():
        return found[0]
    if found:
        name, words = found[0], shorten_list(sorted(values[found[0]]))
        raise DataError(
            f"{table}: the column {name!r} seems to say the split ({words}); rename it to split, with train, val or"
            " test in it, or take it out"
        )
    return ""


def _says_splits(name: str, values: Collection[str]) -> bool:
    if not 0 < len(values) <= MOST_VALUES:
        return False
    of_name = {*_words(name)}
    if {value.lower().removesuffix(".0") for value in values} <= YES_OR_NO:
        return len(values) == 2 and of_name <= MEANINGS.keys() | BESIDE and not of_name <= BESIDE
    splits = [_split_of(value) for value in values]
    return all(splits) and (len({*splits}) > 1 or all(value.lower() in MEANINGS for value in values))


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORDS.findall(text)]


def _split_of(value: str) -> str:
    return next((MEANINGS[word] for word in _words(value) if word in MEANINGS), "")
