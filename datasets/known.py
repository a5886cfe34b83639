"""What is known of the images of a set, their identity first, in columns: it is found out once, and kept for later.

The identity of an image is a hash of its contents or, in large sets, of its path and size. The split is drawn from
these hashes, split.csv holds them, and runs are compared by them. A hash of contents survives renamed files, classes
and folders; a hash of a path is of the NFC form with `/` between parts, so that the same folder copied to another
system has the same hashes.

Who asks, and for what:
- `identified`, and through it splits, fingerprints and runs: the hash of the content, of sets that are read at a start;
- `copies`: the thumbnail, of up to SEARCHED_UP_TO images of LEAST_SIDE pixels and more;
- `open`: faults, of all images where unreadable ones are left out; the largest value of 16 bits, of a few images;
- `fitting`, the cache of pixels and the description of a set: the size, of some hundred images;
- `clean` and `next`: everything of every image; `check` does so anew, in processes, with facts of some thousand.

`look_ahead` foresees what the start of a command will ask, so that each file is opened once for all of it:
- up to SEARCHED_UP_TO images, and READ_UP_TO_BYTES: content, header and, of LEAST_SIDE pixels and more, all pixels;
- up to READ_UP_TO_FILES images, and READ_UP_TO_BYTES: the content alone; larger sets: no more than sizes of files;
- where unreadable images are left out, the whole of each file.
What is not known is read when somebody asks. Sets in memory are not looked at ahead.

Kept for later starts is one file for each folder and name of a set (`remembered`): hashes, depths, sizes, largest
values and faults. They count as long as paths, sizes and times of all files are those that they were, of shards those
of the tars, and the versions of this program and of Pillow, as one may read what another cannot. Not kept are
thumbnails, but the pairs that are found by them (`copies`); what changed just before it was read; and small sets.
"""

import hashlib
import json
import os
import time
import unicodedata
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from common.errors import DataError
from common.files import stamp
from common.versions import versions_of
from datasets.bundle import LEFT_OUT, Samples
from datasets.facts import Facts
from datasets.images import Size
from datasets.look import (
    COMPARED,
    DIGEST_BYTES,
    HEADER,
    LEAST_SIDE,
    THUMBNAIL_SIZE,
    VALUES,
    WHOLE,
    Fault,
    Looked,
    digest_of,
    file_digest,
    look_at,
    look_at_pixels,
    look_inside,
)
from datasets.processes import cpu_count
from datasets.remembered import recall, remember

CONTENT_HASH, PATH_HASH = "content_hash", "path_hash"
"""Kinds of hash, and the name of its column in split.csv. A path hash covers the size of a file, too."""
READ_UP_TO_BYTES, READ_UP_TO_FILES = 2**32, 500_000
"""A set of more bytes or files is known by its paths: reading it would take longer than some ten seconds."""
SEARCHED_UP_TO = 20_000
"""Images. Near duplicates are not looked for in larger sets before a run; `check` does that."""
KEPT_FROM = 256
"""Images. What is known of fewer is read anew at every start."""
SETTLED = 2e9
"""Nanoseconds. What changed so shortly before it was read may change again and keep its times: it is not kept."""
BAR: dict[str, Any] = {"disable": None, "leave": False}
"""Options of progress bars: silent unless a terminal watches."""
_BLOCK = 1024  # files that wait for a thread: a future each, so not all at once


class Known:
    """What is known of N images, in columns; of each as far as its depth says."""

    is_read = True
    """The files in use are so few, and of so few bytes, that a start reads them."""
    lengths: np.ndarray | None = None
    """int64 (N,): bytes of each file in use, -1 of one that is gone; None of sets that are read."""
    kept: tuple[str, bytes, Path] | None = None
    """Key, stamp and folder under which what is known is kept."""

    def __init__(self, splits: np.ndarray) -> None:
        count, self._splits = len(splits), splits
        self.depth = np.zeros(count, np.uint8)
        self.hashed = np.zeros(count, np.bool_)
        self.digests = np.zeros((count, DIGEST_BYTES), np.uint8)
        self.sizes = np.zeros((count, 2), np.int32)
        self.largest = np.zeros(count, np.int32)
        self.formats = np.zeros(count, "S5")
        self.faults: dict[int, Fault] = {}
        self.facts: dict[int, Facts] = {}
        self.thumbnails = np.zeros((0, THUMBNAIL_SIZE, THUMBNAIL_SIZE), np.uint8)
        """(N, 32, 32) once there is one."""
        self.pictured = np.zeros(count, np.bool_)
        """Whose thumbnail is there."""

    def __reduce__(self) -> tuple[type["Known"], tuple[np.ndarray]]:
        return Known, (self._splits,)  # a loader process needs none of it

    @property
    def rows(self) -> np.ndarray:
        """Return the rows that were in use when the set was opened: int64 (n,)."""
        return np.flatnonzero(self._splits != LEFT_OUT)

    def put(self, row: int, found: Looked, *, with_thumbnail: bool = True) -> None:
        """Fill in what a look at an image has found."""
        self.depth[row], self.sizes[row], self.largest[row] = found.depth, found.size, found.largest
        self.formats[row] = found.format.encode()
        self.faults.pop(row, None)
        if found.digest:
            self.digests[row], self.hashed[row] = np.frombuffer(found.digest, np.uint8), True
        if found.fault:
            self.faults[row] = found.fault
        if found.facts:
            self.facts[row] = found.facts
        if found.thumbnail and with_thumbnail:
            if not len(self.thumbnails):
                self.thumbnails = np.zeros((len(self.depth), THUMBNAIL_SIZE, THUMBNAIL_SIZE), np.uint8)
            self.thumbnails[row] = np.frombuffer(found.thumbnail, np.uint8).reshape(THUMBNAIL_SIZE, THUMBNAIL_SIZE)
            self.pictured[row] = True

    def copy(self, row: int, other: int) -> None:
        """Fill in what is known of an image of equal content."""
        columns: list[np.ndarray] = [self.depth, self.sizes, self.largest, self.formats, self.pictured]
        for column in columns + [self.thumbnails] * int(self.pictured[other]):
            column[row] = column[other]
        if fault := self.faults.get(other):
            self.faults[row] = fault

    def readable(self, rows: np.ndarray) -> np.ndarray:
        """Return which of these rows have no fault: bool (n,)."""
        return ~np.isin(rows, np.fromiter(self.faults, np.int64))

    def compared(self, rows: np.ndarray) -> np.ndarray:
        """Return which of these rows have a thumbnail and are large enough to be compared: bool (n,)."""
        return self.pictured[rows] & (self.sizes[rows].min(axis=1) >= LEAST_SIDE)

    def drop_thumbnails(self) -> None:
        self.thumbnails = self.thumbnails[:0].copy()
        self.pictured[:] = False

    def recall(self) -> None:
        """Fill in what an earlier start has kept."""
        if self.kept is None or (columns := recall("look", *self.kept[:2], data_root=self.kept[2])) is None:
            return
        faults = json.loads(columns.pop("faults").tobytes())
        self.faults = {int(row): Fault(*fault) for row, fault in faults.items()}
        for name, column in columns.items():
            getattr(self, name)[self.rows] = column

    def keep(self) -> None:
        """Keep what is known for later starts."""
        if self.kept is None:
            return
        names = ["hashed", "digests"] + ["depth", "sizes", "largest"] * bool((self.depth >= COMPARED).any())
        columns = {name: getattr(self, name)[self.rows] for name in names}
        columns["faults"] = np.frombuffer(json.dumps(self.faults).encode(), np.uint8)
        remember("look", *self.kept[:2], columns, data_root=self.kept[2])


def with_known(samples: Samples, data_root: Path | None = None) -> Samples:
    """Return the samples with what an earlier start has kept below `data_root` of the files in use.

    None is known of images that are a program's own."""
    if samples.known is not None or (samples.root is None and samples.pixels is None):
        return samples
    known = Known(samples.splits)
    if samples.pixels is None:
        rows = known.rows
        stats = file_stats(samples, rows)
        sizes = stats[:, 0] if samples.sizes is None else samples.sizes[rows]
        known.is_read = len(sizes) <= READ_UP_TO_FILES and int(sizes.sum()) <= READ_UP_TO_BYTES
        if not known.is_read:
            known.lengths = np.full(len(samples), -1, np.int64)
            known.lengths[rows] = sizes
        root = Path(samples.root or "")
        is_ours = data_root is not None and data_root / "unpacked" in root.parents
        settled = is_ours or stats[:, 1:].max(initial=0) < time.time_ns() - SETTLED
        if data_root is not None and settled and len(sizes) >= KEPT_FROM and sizes.min() >= 0:
            in_use = np.unique(samples.splits).tolist()  # of one split something else is kept than of all
            known.kept = f"{root.absolute()}\0{samples.name}\0{in_use}", _stamp(samples, rows, stats), data_root
            known.recall()
    return samples.replace(known=known)


def known_of(samples: Samples) -> Known:
    """Return what is known of a set; nothing, unless `with_known` has asked."""
    return samples.known if samples.known is not None else Known(samples.splits)


def file_stats(samples: Samples, rows: np.ndarray) -> np.ndarray:
    """Return the size of each file, and when it and its entry changed, in nanoseconds.

    -1 of what is gone.

    int64 (n, 3). Of images in shards those of the shards, int64 (shards, 3)."""
    stats, root = array("q"), str(samples.root or "")
    if samples.members is not None:
        for changed, entry, _, size in filter(None, map(stamp, samples.members.shards)):
            stats.extend((size, changed, entry))
    else:
        whole = len(rows) == len(samples)
        for path in samples.paths if whole else map(samples.paths.__getitem__, rows.tolist()):
            try:
                found = os.stat(os.path.join(root, path))  # a table may name absolute ones
                stats.extend((found.st_size, found.st_mtime_ns, found.st_ctime_ns))
            except OSError:
                stats.extend((-1, -1, -1))
    return np.array(stats, np.int64).reshape(-1, 3)


def _stamp(samples: Samples, rows: np.ndarray, stats: np.ndarray) -> bytes:
    """Hash paths, sizes and times of files, and the versions that read them."""
    found = hashlib.blake2b(json.dumps(versions_of("pillow")).encode())
    columns: list[Any] = [stats, rows, samples.paths.characters, samples.paths.ends]
    if samples.members is not None:
        columns += [samples.members.numbers, samples.members.offsets, samples.members.sizes]
    for column in columns:
        found.update(column)
    return found.digest()


def look_ahead(samples: Samples, data_root: Path | None = None, *, judge_all: bool = False) -> Samples:
    """Read each file in use once for all that a start asks, unless it is kept.

    `judge_all`: faults of every image will be asked for."""
    samples = with_known(samples, data_root)
    if samples.pixels is not None or samples.known is None:
        return samples
    known = known_of(samples)
    few = known.is_read and len(known.rows) <= SEARCHED_UP_TO
    if few or judge_all:
        look(samples, known.rows, WHOLE if judge_all else COMPARED, thumbnails=None if few else False)
    return samples


def look(samples: Samples, rows: np.ndarray, depth: int, *, thumbnails: bool | None = None) -> Known:
    """Return what is known of a set, of these images as deep as asked.

    `thumbnails`: of each that is large enough to be compared, unless it has a fault (True); none, for they take 1 KiB
    each (False); those that are made (None)."""
    known = known_of(samples)
    missing = (known.depth[rows] < depth) | (known.largest[rows] < 0) & (depth == VALUES)
    if thumbnails:
        small = (known.depth[rows] > 0) & (known.sizes[rows].min(axis=1) < LEAST_SIDE)
        missing |= ~(known.pictured[rows] | small) & known.readable(rows)
    if depth < COMPARED:
        for row in rows[missing].tolist():
            known.put(row, look_inside(samples.file(row), depth), with_thumbnail=False)
    elif missing.any():
        _look_in_threads(samples, known, rows[missing], depth, thumbnails=thumbnails is not False)
        known.keep()
    return known


def _look_in_threads(samples: Samples, known: Known, rows: np.ndarray, depth: int, *, thumbnails: bool) -> None:
    """Look at images; Pillow decodes, and the system reads, without the interpreter's lock. Copies are decoded once."""
    decoded, copies = set[bytes](), list[int]()

    def look_at_row(row: int) -> Looked:
        if samples.pixels is not None:
            return look_at_pixels(samples.pixels[row])
        return look_at(samples.file(row), depth, known=decoded)

    with ThreadPoolExecutor(cpu_count()) as threads, tqdm(desc="reading", total=len(rows), **BAR) as progress:
        for block in np.array_split(rows, len(rows) // _BLOCK + 1):
            for row, found in zip(block.tolist(), threads.map(look_at_row, block.tolist()), strict=True):
                known.put(row, found, with_thumbnail=thumbnails)
                copies += [row] * (found.depth == 0 and found.fault is None)
                progress.update()
    first = {known.digests[row].tobytes(): row for row in rows.tolist() if known.depth[row]} if copies else {}
    for row in copies:
        if (other := first.get(known.digests[row].tobytes())) is not None:
            known.copy(row, other)


def size_of(samples: Samples, row: int) -> Size:
    """Return (width, height) of an image as shown. Raises DataError: its header cannot be read."""
    known = look(samples, np.array([row]), HEADER)
    if not known.sizes[row].all():
        raise DataError(f"cannot read image {os.fspath(samples.file(row))}: {known.faults[row].reason}")
    width, height = known.sizes[row].tolist()
    return width, height


# Identity


def identified(samples: Samples, data_root: Path | None = None) -> Samples:
    """Return the samples with `digests` and `hash_kind` of every image that is not left out.

    Raises DataError: a file is gone or cannot be read.
    """
    if samples.digests is not None:
        return samples
    samples = with_known(samples, data_root)
    rows = np.flatnonzero(samples.splits != LEFT_OUT)
    if samples.known is not None and known_of(samples).is_read:
        digests = hash_contents(samples, rows).digests
        if len(rows) < len(samples):
            digests = np.where((samples.splits != LEFT_OUT)[:, None], digests, np.uint8(0))
        return samples.replace(digests=digests, hash_kind=CONTENT_HASH)
    digests = np.zeros((len(samples), DIGEST_BYTES), np.uint8)
    # A program's own images have no files: their contents are not ours to read.
    sizes = np.zeros(len(rows), np.int64) if samples.known is None else file_sizes(samples, rows)
    pairs = zip(rows.tolist(), sizes.tolist(), strict=True)
    digests[rows] = as_rows((path_digest(samples.paths[row], size) for row, size in pairs), len(rows))
    return samples.replace(digests=digests, hash_kind=PATH_HASH)


def hash_contents(samples: Samples, rows: np.ndarray) -> Known:
    """Return what is known of a set, of these images the hash. Raises DataError: a file cannot be read."""
    known = known_of(samples)
    missing = rows[~known.hashed[rows]]
    if not len(missing):
        return known
    if samples.pixels is not None:
        found = (digest_of(samples.pixels[row].tobytes()) for row in missing.tolist())
    else:
        found = (file_digest(samples.file(row)) for row in missing.tolist())  # by threads no sooner
    known.digests[missing], known.hashed[missing] = as_rows(found, len(missing)), True
    known.keep()
    return known


def as_rows(digests: Iterator[bytes], count: int) -> np.ndarray:
    """Join digests to an array, uint8 (count, 8)."""
    return np.frombuffer(b"".join(digests), np.uint8).reshape(count, DIGEST_BYTES)


def path_digest(path: str, size: int) -> bytes:
    """Hash a path, NFC and with forward slashes, and a size to 8 bytes (BLAKE2b)."""
    if not path.isascii():
        path = unicodedata.normalize("NFC", path)
    return digest_of(f"{path.replace(os.sep, '/')}\0{size}".encode("utf-8", "surrogateescape"))


def keys_of(digests: np.ndarray) -> np.ndarray:
    """Return digests (N, 8) as numbers, uint64 (N,)."""
    return np.ascontiguousarray(digests).view(">u8").ravel().astype(np.uint64)


def file_sizes(samples: Samples, rows: np.ndarray) -> np.ndarray:
    """Return the bytes of each image, int64 (n,). Raises DataError: a file is gone."""
    if samples.pixels is not None:
        return np.full(len(rows), samples.pixels[0].nbytes)
    if samples.sizes is not None:
        return samples.sizes[rows]
    is_known = samples.known is not None and samples.known.lengths is not None
    sizes = samples.known.lengths[rows] if is_known else file_stats(samples, rows)[:, 0]
    for row in rows[sizes < 0].tolist():
        try:
            os.stat(samples.file(row))
        except OSError as error:
            raise DataError(f"cannot read image {samples.file(row)}: {error.strerror}") from error
    return sizes
