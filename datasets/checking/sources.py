"""What `check DATA` may be given: a folder, a table, an archive, or the name of a built-in set."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from datasets.bundle import SPLITS, UNSPLIT, Samples
from datasets.checking.check import CheckReport, Progress, check, report
from datasets.checking.inspection import Inspection, thumbnail_of
from datasets.checking.layout import Layout, Picture, folder_layout
from datasets.checking.table import TABLE_EXTENSIONS, table_layout
from datasets.config import DATASET_NAMES, DataConfig
from datasets.errors import DataError
from datasets.sources.archives import is_archive, unpack
from datasets.text import did_you_mean


def check_source(
    source: str, *, data_root: Path = Path("data"), workers: int = 0, progress: Progress | None = None
) -> CheckReport:
    """Find out what `source` is, and check it. An archive is unpacked into a temporary folder.

    Raises:
        FileNotFoundError: there is no such file or folder.
        DataError: it is there, but holds no labelled images.
        ValueError: an unknown name.
    """
    progress = progress or (lambda items, total: items)
    path = Path(source)
    if source in DATASET_NAMES:
        return _check_builtin(source, data_root, workers, progress)
    if not path.exists():
        hint = did_you_mean(source, DATASET_NAMES) if not path.suffix and "/" not in source else "."
        names = ", ".join(DATASET_NAMES)
        raise FileNotFoundError(f"no data at {source!r}{hint} Give a folder, a .csv, a .zip, or one of {names}")
    if path.is_file() and is_archive(path):
        with tempfile.TemporaryDirectory(prefix="check-") as temporary:
            return check(_layout(unpack(path, Path(temporary) / "content")), workers=workers, progress=progress)
    return check(_layout(path), workers=workers, progress=progress)


def _layout(path: Path) -> Layout:
    if path.is_dir():
        return _folder_or_table(path)
    if path.suffix.lower() in TABLE_EXTENSIONS:
        return table_layout(path)
    raise DataError(f"{path} is neither a folder, a .csv or .tsv table, nor a .zip")


def _folder_or_table(folder: Path) -> Layout:
    """Class folders where there are any; else the one table in the folder (Kaggle: `labels.csv` beside `train`)."""
    try:
        return folder_layout(folder)
    except DataError:
        for place in (folder, *_only_folder(folder)):
            tables = [file for file in _files(place) if file.suffix.lower() in TABLE_EXTENSIONS]
            labels = [file for file in tables if file.stem.lower() in ("labels", "train")]
            if len(labels or tables) == 1:
                return table_layout((labels or tables)[0])
        raise


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(entry for entry in folder.iterdir() if entry.is_file() and not entry.name.startswith("."))
    except OSError:
        return []


def _only_folder(folder: Path) -> list[Path]:
    """Archives often wrap their contents in one folder."""
    try:
        inner = [entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith((".", "__"))]
    except OSError:
        return []
    return inner if len(inner) == 1 else []


def _check_builtin(name: str, data_root: Path, workers: int, progress: Progress) -> CheckReport:
    """A built-in set through its own reader; one kept in class folders is walked like any other folder."""
    from datasets.loaders import read_samples  # imports torch

    samples = read_samples(DataConfig(source=name, root=data_root))
    if samples.root is not None and samples.pixels is None and _in_class_folders(samples):
        return check(folder_layout(samples.root), workers=workers, progress=progress)
    return check_samples(samples, workers=workers, progress=progress)


def check_samples(
    samples: Samples, *, workers: int = 0, progress: Progress = lambda items, total: items
) -> CheckReport:
    """Check the images of a sample table that are not left out, in the splits it gives them."""
    layout, rows = samples_layout(samples)
    if samples.pixels is None:
        return check(layout, workers=workers, progress=progress)
    return report(layout, list(progress(_inspect_pixels(samples, rows), len(rows))))


def _in_class_folders(samples: Samples) -> bool:
    return Path(samples.paths[0]).parent.name == samples.class_names[samples.labels[0]]


def samples_layout(samples: Samples) -> tuple[Layout, list[int]]:
    """The layout of a sample table, and the row of each of its pictures; samples left out are not in it."""
    layout = Layout(samples.root or Path(), f"built-in set {samples.name}")
    rows = []
    order = sorted(range(len(samples)), key=lambda row: int(samples.splits[row]))
    for row in order:
        code = int(samples.splits[row])
        if code != UNSPLIT and not 0 <= code < len(SPLITS):
            continue
        picture = Picture(
            samples.paths[row], "" if code == UNSPLIT else SPLITS[code], samples.class_names[samples.labels[row]]
        )
        layout.pictures.append(picture)
        layout.classes.setdefault(picture.split, set()).add(picture.label)
        rows.append(row)
    return layout, rows


def _inspect_pixels(samples: Samples, rows: list[int]) -> Iterator[Inspection]:
    assert samples.pixels is not None
    for row in rows:
        pixels = samples.pixels[row]
        height, width = pixels.shape[:2]
        digest = blake2b(pixels.tobytes(), digest_size=16).digest()
        yield Inspection(digest, None, "", "", width, height, thumbnail_of(pixels).tobytes())
