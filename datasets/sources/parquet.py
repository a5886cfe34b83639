"""Hugging Face data sets as local parquet, or as Arrow streams of `save_to_disk`: a column of pictures, {bytes, path},
and one of labels."""

import json
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common.errors import DataError, import_optional, system_reason
from common.files import cut_name, require_writable_data_root, settle, temporary_folder
from common.shell import EXTRAS
from common.text import normal
from datasets.config import Columns, by_column, column_of
from datasets.sources.archives import mark_of
from datasets.sources.csv_table import MOST_SPLITS, column_names, split_column
from datasets.sources.reading import Reading
from datasets.sources.shards import add, read_tar_shards, shards_in, write_class_names

Read = Callable[[list[str]], Iterable[dict[str, Any]]]
"""Function from names of columns to the rows of a table."""


def read_parquet(files: Sequence[Path], name: str, root: Path, columns: Columns) -> Reading:
    """Write the tables as tar shards below `root`/unpacked, and read these: parquet has no single pictures.

    Once for each choice of columns, and for each set of names of files, which may say the split.
    """
    group = column_of(columns.group)
    how = repr((columns.label, group, [file.parts[-2:] for file in files]))
    folder = root / "unpacked" / f"{cut_name(name)}-{mark_of(*files)}-{zlib.crc32(how.encode()):08x}"
    if not folder.is_dir():
        _unpack(files, folder, columns)
    return read_tar_shards(shards_in(folder), name, root, **({"grouped_by": by_column(group)} if group else {}))


def _unpack(files: Sequence[Path], folder: Path, columns: Columns) -> None:
    """Write each table as a tar shard of a new folder, without rows of label -1.

    Raises MissingPackage: no pyarrow. DataError: a file is no such table, or the folder cannot be written.
    """
    require_writable_data_root(folder)
    pyarrow = import_optional("pyarrow", f"{files[0]} needs pyarrow: {EXTRAS}")
    place = folder
    try:
        with temporary_folder(folder) as aside:
            for place in files:
                shard = aside / f"{place.stem}-{place.parent.name}.tar"
                with _opened(place) as (schema, read), tarfile.open(shard, "x") as tar:
                    names = _write(tar, place, schema, read, columns)
            place = folder
            if names:
                write_class_names(aside, names)
            settle(aside, folder)
    except (OSError, pyarrow.ArrowException) as error:
        why = system_reason(error, "--data-root") if isinstance(error, OSError) else error
        raise DataError(f"cannot {'write' if place == folder else 'read'} {place}: {why}") from error


@contextmanager
def _opened(file: Path) -> Iterator[tuple[Any, Read]]:
    """Open a table: its pyarrow.Schema, and what reads its rows."""
    from pyarrow import ipc, memory_map, parquet

    if file.suffix == ".parquet":
        with parquet.ParquetFile(file) as table:
            yield (
                table.schema_arrow,
                lambda names: (row for part in table.iter_batches(64, columns=names) for row in part.to_pylist()),
            )
    else:
        with memory_map(str(file)) as mapped, ipc.open_stream(mapped) as stream:

            def rows(names: list[str]) -> Iterator[dict[str, Any]]:
                for batch in stream:
                    batch.validate(full=True)  # a damaged one must not be walked
                    for at in range(0, len(batch), 64):
                        yield from batch.slice(at, 64).select(names).to_pylist()

            yield stream.schema, rows


def _write(tar: tarfile.TarFile, file: Path, schema: Any, read: Read, columns: Columns) -> list[str]:
    """Write the rows that have a label; return the class names, if labels are numbers.

    Raises DataError: a column is missing, the rows hold no pictures, or a column says the split.
    """
    picture, label, group = _roles(file, schema, columns)
    words = [field.name for field in schema if str(field.type).startswith(("string", "large_string", "bool", "int"))]
    values = {name: set[str]() for name in words if name not in (label, group)}
    used, held, path = set[str](), False, ""
    for number, row in enumerate(read([*dict.fromkeys([picture, label, *filter(None, [group]), *values])])):
        if row[label] in (None, -1):
            continue
        cell, of_group = row[picture] or {}, row.get(group or "")
        content = cell.get("bytes") or b""
        held = held or bool(content)
        path = cell.get("path") or f"{number:08}{'.png' if content[1:4] == b'PNG' else '.jpg'}"
        add(tar, number, path, content, row[label], used, "" if of_group is None else normal(str(of_group)))
        for name, found in values.items():
            if len(found) <= MOST_SPLITS:
                found.add(str(row[name] or ""))
    if used and not held:
        raise DataError(
            f"{file} holds names of files, such as {path!r}, and not their bytes; in Hugging Face's library"
            " save_to_disk and push_to_hub put them in"
        )
    if split := split_column({name: found for name, found in values.items() if len(found) > 1}, (), file):
        raise DataError(
            f"{file}: the column {split!r} says the split of each row, and only names of files and folders are read"
            " as that: write a file for each, such as train.parquet, or take it out"
        )
    features = json.loads((schema.metadata or {}).get(b"huggingface", "{}")).get("info", {}).get("features", {})
    return features.get(label, {}).get("names", [])


def _roles(file: Path, schema: Any, columns: Columns) -> tuple[str, str, str | None]:
    """Return the columns of pictures, labels and, if --group names one, groups. Raises DataError: one is missing."""
    parts = {field.name: {part.name.rpartition(".")[2] for part in field.flatten()} for field in schema}
    pictures = [name for name in schema.names if parts[name] == {"bytes", "path"}]
    labels = [name for name in column_names("label", columns) if name in schema.names]
    if not pictures or not labels:
        raise DataError(f"{file}: no column of pictures, {{bytes, path}}, and of labels in {', '.join(schema.names)}")
    group = column_of(columns.group)
    if group is not None and group not in schema.names:
        raise DataError(f"{file} has no column {group!r}: found {', '.join(schema.names)}")
    return pictures[0], labels[0], group
