"""Reader of a person's own shards: tar shards where they lie, tables of pictures unpacked to such first."""

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from datasets.config import Columns
from datasets.grouping.option import by_column, column_of
from datasets.sources.archives import mark_of
from datasets.sources.large.index import indexed
from datasets.sources.large.shards import TABLES, read_tar_shards, shards_in
from datasets.sources.reading import Reading


def read_shards(files: Sequence[Path], name: str, root: Path, columns: Columns) -> Reading:
    """Tar shards where they lie; parquet and Arrow, which give pictures by the thousand, once written as such."""
    group = column_of(columns.group) if files[0].suffix in TABLES else None
    if files[0].suffix in TABLES:
        from datasets.sources.large.parquet import unpack_parquet

        unpacked = root / "unpacked" / f"{name}-{mark_of(*files)}"
        if group is not None:  # the groups of another column are other files
            mark = hashlib.blake2b(group.encode(), digest_size=4).hexdigest()
            unpacked = unpacked.with_name(f"{unpacked.name}-{mark}")
        if not unpacked.is_dir():
            unpack_parquet(files, unpacked, columns)
        files = shards_in(unpacked)
    key = [(file, file.absolute()) for file in files]
    reading = indexed(partial(read_tar_shards, files, name, columns), root, name, key, columns)
    if group is not None:
        reading.samples = reading.samples.replace(grouped_by=by_column(group))
    return reading
