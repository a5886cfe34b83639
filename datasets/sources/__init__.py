"""Readers of sets of images, each a function to a `Reading`."""

from pathlib import Path

from common.errors import OptionError
from datasets.built_in import BUILT_IN
from datasets.config import USUAL_COLUMNS, Columns
from datasets.sources.reading import Reading


def read(source: str, root: Path, *, columns: Columns = USUAL_COLUMNS, needs_labels: bool = True) -> Reading:
    """Read a built-in set by its name, or a person's own data by its path. Only the readers that it needs are imported.

    Without `needs_labels` pictures may lack a label: their class is "", as is that of all pictures in a folder, whose
    sub-folders mean nothing. Raises FileNotFoundError: no such data, or a set that cannot be downloaded. DataError: it
    cannot be read. OptionError: columns of what is no table. UnknownDataSet: neither a built-in set nor a path.
    """
    if source not in BUILT_IN:
        from datasets.sources.own_data import read_source

        return read_source(source, root, columns=columns, needs_labels=needs_labels)
    if columns.path or columns.label:
        raise OptionError(f"path_column and label_column are for a table, and {source} is a built-in set")
    from datasets.sources import builtin

    found = getattr(builtin, BUILT_IN[source].reader)(root)
    return found if isinstance(found, Reading) else Reading.of(found)
