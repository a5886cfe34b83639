"""Write a set of images as tar shards (`pack`), which programs of the WebDataset convention read."""

import io
import os
import tarfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import numpy as np
from tqdm import tqdm

from common.errors import DataError
from common.files import flush, temporary_folder
from datasets.bundle import SPLITS, UNSPLIT, Samples
from datasets.images import picture_of
from datasets.known import file_sizes
from datasets.sources.shards import add, write_class_names

SHARD_BYTES = 2**29  # pictures, about: few enough files to list, small enough to copy one


def pack(samples: Samples, folder: Path) -> list[Path]:
    """Write the new folder whole or not at all, pictures as they are, in the order of the set; returns its shards.
    Equal sets make equal bytes. Raises DataError: `folder` is there already, or cannot be written."""
    if folder.exists():
        raise DataError(f"{folder} is there already: name a new folder")
    used: set[str] = set()
    try:
        with temporary_folder(folder) as aside, tqdm(total=len(samples), unit="image", disable=None) as progress:
            write_class_names(aside, samples.class_names)
            for shard, rows in _shards(samples):
                with tarfile.open(aside / shard, "x") as tar:
                    for row in rows:
                        add(tar, row, *_content(samples, row), samples.labels[row], used, samples.group_of(row))
                        progress.update()
                flush(aside / shard, os.O_RDWR)
            aside.rename(folder)
    except OSError as error:
        raise DataError(f"cannot pack {error.filename or folder}: {error.strerror}") from error
    return sorted(folder.glob("*.tar"))


def _shards(samples: Samples) -> Iterator[tuple[str, list[int]]]:
    """Yield the name and the samples of each shard, split by split."""
    for code, split in ((UNSPLIT, "all"), *enumerate(SPLITS)):
        rows = np.flatnonzero(samples.splits == code)
        numbers = np.cumsum(file_sizes(samples, rows)) // SHARD_BYTES
        for number, part in groupby(zip(numbers.tolist(), rows.tolist(), strict=True), lambda pair: pair[0]):
            yield f"{split}-{number:06}.tar", [row for _, row in part]


def _content(samples: Samples, row: int) -> tuple[str, bytes]:
    """Return the path of a picture, and its bytes."""
    path = samples.paths[row]
    if samples.pixels is None:
        return path, samples.file(row).read_bytes()
    file = io.BytesIO()
    picture_of(samples, row).save(file, "PNG")
    return f"{path}.png", file.getvalue()
