"""The one door to every set of images: a built-in one by its name, a person's own data by its path."""

from pathlib import Path

from datasets.config import DATASETS, USUAL_COLUMNS, Columns
from datasets.sources.reading import Reading


def read(source: str, root: Path, *, columns: Columns = USUAL_COLUMNS) -> Reading:
    """Read a built-in set, or a person's own data, with what is wrong with it. Each has readers that the other does
    without, so they are imported here.

    Raises FileNotFoundError: no such data, or a set that cannot be downloaded. DataError: it cannot be read.
    UnknownDataSet: neither a built-in set nor a path."""
    if source not in DATASETS:
        from datasets.sources.own_data import read_source

        return read_source(source, root, columns=columns)
    from datasets.sources.builtin import READERS

    built_in = READERS[source](root)
    return built_in if isinstance(built_in, Reading) else Reading.of(built_in)
