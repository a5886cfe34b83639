"""The one hook of `datasets/sources/large/`: shards, Parquet, sets of a hub, and the index of a set too large to list.

Without that folder there are none of these, and each set is listed at every start.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from datasets.config import Columns
from datasets.errors import MissingPackage
from datasets.sources.reading import Reading

try:
    from datasets.sources.large.door import read_shards
    from datasets.sources.large.hub import obtain_from_hub
    from datasets.sources.large.index import indexed
    from datasets.sources.large.shards import shards_at, shards_in
except ModuleNotFoundError as error:
    if "large" not in str(error.name).split("."):
        raise

    def shards_in(folder: Path) -> list[Path]:
        return []

    def shards_at(path: Path) -> list[Path]:
        return []

    def indexed(read: Callable[[], Reading], data_root: Path, name: str, *key: object) -> Reading:
        return read()

    def read_shards(files: Sequence[Path], name: str, root: Path, columns: Columns) -> Reading:
        raise AssertionError("none are found")

    def obtain_from_hub(source: str, root: Path) -> Path:
        raise MissingPackage(f"{source}: this copy of the application has no folder datasets/sources/large")


__all__ = ["indexed", "obtain_from_hub", "read_shards", "shards_at", "shards_in"]
