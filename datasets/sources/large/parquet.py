"""Hugging Face data sets as local parquet, or as `save_to_disk` leaves them, Arrow's streams: a column of pictures,
{bytes, path}, and one of labels."""

import json
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from common.errors import DataError, MissingPackage
from common.files import folder_aside, require_writable_data_root
from datasets.config import Columns
from datasets.grouping.option import column_of, normal
from datasets.sources.csv_table import column_names
from datasets.sources.large.shards import CLASS_NAMES, add
from datasets.sources.split_column import MOST_VALUES, split_column


def unpack_parquet(files: Sequence[Path], folder: Path, columns: Columns) -> None:
    """Write the tables as the tar shards of a new folder, one for each; rows without a label, -1, are left out. Raises
    MissingPackage: no pyarrow. DataError: a file is no parquet and no Arrow, or has no column of pictures or of
    labels."""
    require_writable_data_root(folder)
    try:
        import pyarrow
    except ImportError as error:
        raise MissingPackage(f"{files[0]} needs pyarrow ({error}): pip install -r requirements-extras.txt") from error
    file: Path = folder
    try:
        with folder_aside(folder) as aside:
            for file in files:
                with (
                    _opened(file, columns) as (roles, batches),
                    tarfile.open(aside / f"{file.stem}-{file.parent.name}.tar", "x") as tar,
                ):
                    used: set[str] = set()
                    held, values = False, {name: set[str]() for name in roles.others}
                    for number, row in enumerate(row for batch in batches for row in batch.to_pylist()):
                        label, picture, group = row[roles.label], row[roles.picture], row.get(roles.group)
                        if label not in (None, -1):
                            content = picture["bytes"] or b""
                            held = held or bool(content)
                            path = picture["path"] or f"{number:08}{'.png' if content[1:4] == b'PNG' else '.jpg'}"
                            add(tar, number, path, content, label, used, "" if group is None else normal(str(group)))
                            for name, found in values.items():
                                found |= {str(row[name] or "")} if len(found) <= MOST_VALUES else set()
                    if used and not held:
                        raise DataError(
                            f"{file} holds names of files, such as {path!r}, and not their bytes; in Hugging Face's"
                            " library save_to_disk and push_to_hub put them in"
                        )
                    if split := split_column(
                        {name: found for name, found in values.items() if len(found) > 1}, (), file
                    ):
                        raise DataError(
                            f"{file}: the column {split!r} says the split of each row, and only names of files and"
                            " folders are read as that: write a file for each, such as train.parquet, or take it out"
                        )
            if roles.names:
                file = folder
                (aside / CLASS_NAMES).write_text("\n".join(roles.names), encoding="utf-8")
            aside.rename(folder)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"cannot read {file}: {error}") from error


class _Roles(NamedTuple):
    """Roles of the columns."""

    picture: str
    label: str
    group: str | None
    names: list[str]
    """Names of the classes, where the labels are numbers."""
    others: list[str]
    """Columns that may say the split."""

    @property
    def columns(self) -> list[str]:
        return [*dict.fromkeys([self.picture, self.label, *([] if self.group is None else [self.group]), *self.others])]


@contextmanager
def _opened(file: Path, columns: Columns) -> Iterator[tuple[_Roles, Iterator[Any]]]:
    """Open a table: what `_columns` says of it, and the batches of its rows."""
    from pyarrow import ipc, memory_map, parquet

    if file.suffix == ".arrow":
        with memory_map(str(file)) as mapped, ipc.open_stream(mapped) as stream:
            roles = _columns(file, stream.schema, columns)
            checked = (batch.validate(full=True) or batch for batch in stream)  # a damaged one must not be walked
            batches = (part.slice(at, 64) for part in checked for at in range(0, len(part), 64))
            yield roles, (batch.select(roles.columns) for batch in batches)
    else:
        with parquet.ParquetFile(file) as table:
            roles = _columns(file, table.schema_arrow, columns)
            yield roles, table.iter_batches(64, columns=roles.columns)


def _columns(file: Path, schema, columns: Columns) -> _Roles:  # a pyarrow.Schema
    """The columns of pictures, labels and, if --group names one, groups."""
    parts = {field.name: {part.name.rpartition(".")[2] for part in field.flatten()} for field in schema}
    pictures = [name for name in schema.names if parts[name] == {"bytes", "path"}]
    labels = [name for name in column_names("label", columns) if name in schema.names]
    if not pictures or not labels:
        raise DataError(f"{file}: no column of pictures, {{bytes, path}}, and of labels in {', '.join(schema.names)}")
    features = json.loads((schema.metadata or {}).get(b"huggingface", "{}")).get("info", {}).get("features", {})
    group = column_of(columns.group)
    if group is not None and group not in schema.names:
        raise DataError(f"{file} has no column {group!r}: found {', '.join(schema.names)}")
    others = [field.name for field in schema if str(field.type).startswith(("string", "large_string", "bool", "int"))]
    others = [name for name in others if name not in (labels[0], group)]
    return _Roles(pictures[0], labels[0], group, features.get(labels[0], {}).get("names", []), others)
