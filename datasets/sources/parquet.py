"""Hugging Face data sets as local parquet, or as `save_to_disk` leaves them, Arrow's streams: a column of pictures,
{bytes, path}, and one of labels."""

import json
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from datasets.config import Columns
from datasets.errors import DataError
from datasets.files import folder_aside, require_told
from datasets.sources.csv_table import column_names
from datasets.sources.shards import CLASS_NAMES, add


def unpack_parquet(files: Sequence[Path], folder: Path, columns: Columns) -> None:
    """Write the tables as the tar shards of a new folder, one for each; rows without a label, -1, are left out. Raises
    DataError: pyarrow is missing, a file is no parquet and no Arrow, or has no column of pictures or of labels."""
    require_told(folder)
    try:
        import pyarrow
    except ImportError as error:
        raise DataError(f"{files[0]} needs pyarrow ({error}): pip install -r requirements-extras.txt") from error
    try:
        with folder_aside(folder) as aside:
            for file in files:
                with (
                    _opened(file, columns) as (picture, label, names, batches),
                    tarfile.open(aside / f"{file.stem}-{file.parent.name}.tar", "x") as tar,
                ):
                    used: set[str] = set()
                    for number, row in enumerate(row for batch in batches for row in batch.to_pylist()):
                        if row[label] not in (None, -1):
                            content = row[picture]["bytes"] or b""
                            path = row[picture]["path"] or f"{number:08}{'.png' if content[1:4] == b'PNG' else '.jpg'}"
                            add(tar, number, path, content, row[label], used)
            if names:
                (aside / CLASS_NAMES).write_text("\n".join(names), encoding="utf-8")
            aside.rename(folder)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"cannot read {file}: {error}") from error


@contextmanager
def _opened(file: Path, columns: Columns) -> Iterator[tuple[str, str, list[str], Iterator[Any]]]:
    """What `_columns` says of a table, and the batches of its rows."""
    from pyarrow import ipc, memory_map, parquet

    if file.suffix == ".arrow":
        with memory_map(str(file)) as mapped, ipc.open_stream(mapped) as stream:
            picture, label, names = _columns(file, stream.schema, columns)
            checked = (batch.validate(full=True) or batch for batch in stream)  # a damaged one must not be walked
            batches = (part.slice(at, 64) for part in checked for at in range(0, len(part), 64))
            yield picture, label, names, (batch.select([picture, label]) for batch in batches)
    else:
        with parquet.ParquetFile(file) as table:
            picture, label, names = _columns(file, table.schema_arrow, columns)
            yield picture, label, names, table.iter_batches(64, columns=[picture, label])


def _columns(file: Path, schema, columns: Columns) -> tuple[str, str, list[str]]:  # a pyarrow.Schema
    """The columns of pictures and labels, and the names of the classes, where the labels are numbers."""
    parts = {field.name: {part.name.rpartition(".")[2] for part in field.flatten()} for field in schema}
    pictures = [name for name in schema.names if parts[name] == {"bytes", "path"}]
    labels = [name for name in column_names("label", columns) if name in schema.names]
    if not pictures or not labels:
        raise DataError(f"{file}: no column of pictures, {{bytes, path}}, and of labels in {', '.join(schema.names)}")
    features = json.loads((schema.metadata or {}).get(b"huggingface", "{}")).get("info", {}).get("features", {})
    return pictures[0], labels[0], features.get(labels[0], {}).get("names", [])
