"""`--exclude`: the images that a table says to leave out, if it was written for this set."""

import os
from collections.abc import Mapping, Sequence

from datasets.bundle import LEFT_OUT, Samples
from datasets.config import DataConfig, data_place
from datasets.errors import DataError
from datasets.options import named_set
from datasets.shell import command
from datasets.tables import read_rows
from datasets.text import pluralise


def listed_images(config: DataConfig) -> frozenset[str]:
    """The paths in the table that `config.exclude` names; of one with a severity, such as that of `check`, those of its
    errors. Raises DataError: the table says that it is about another set, which is still there."""
    if config.exclude is None:
        return frozenset()
    rows = read_rows(config.exclude, ("path",), what="list of images to exclude")
    there, here = _place(rows), data_place(config.source)
    if there and os.path.lexists(there) and not _overlap(there, here):
        raise _of_another_set(config, there)
    return frozenset(row["path"] for row in rows if row.get("severity", "error") == "error")


def without_listed(samples: Samples, listed: frozenset[str], config: DataConfig) -> Samples:
    """The samples without the images of the table. Raises DataError: it was written for a set that is elsewhere, or is
    gone, and none of its images is here."""
    if config.exclude is None or not listed:
        return samples
    rows = [row for row, path in enumerate(samples.paths) if path in listed]
    there = _place(read_rows(config.exclude, ("path",)))
    if not rows and there not in ("", data_place(config.source)):
        raise _of_another_set(config, there)
    left_out = pluralise(len(rows), "image")
    return samples.with_splits({LEFT_OUT: rows}).note(f"{left_out} left out, as {config.exclude} asks")


def _place(rows: Sequence[Mapping[str, str]]) -> str:
    """The set that `check` wrote a table for; empty where the table does not say."""
    return next((row["data"] for row in rows if row.get("data")), "")


def _overlap(one: str, other: str) -> bool:
    """Return whether a folder or file is the other, or lies in it, as a table in a folder of images does."""
    paths = [one, other] if all(map(os.path.isabs, (one, other))) else []
    return one == other or (bool(paths) and os.path.commonpath(paths) in paths)


def _of_another_set(config: DataConfig, there: str) -> DataError:
    here = data_place(config.source)
    check = command("check", *named_set(config))
    return DataError(f"{config.exclude} was written for {there}, not for {here}; this writes one: {check}")
