"""Caches on disk: whatever changes, each answers as in a new folder of data."""

import io
import os
import zipfile
from itertools import chain

import numpy as np
import pytest
from fake_sets import parquet, tar
from PIL import Image

from datasets import copies, known
from datasets.config import Columns
from datasets.copies import copies_of
from datasets.groups import with_groups
from datasets.known import identified
from datasets.remembered import remembered
from datasets.sources import shards
from datasets.sources.own_data import read_source
from trainers.storage.run_folder import untrusted_run

START, END = bytes(70_000), bytes(1_100_000)
"""Texts around the pictures of an archive, so that these are neither at its start nor at its end."""


def picture(number: int) -> bytes:
    """A bitmap, of one size whatever it shows."""
    pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).resize((40, 40)).save(file, "BMP")
    return file.getvalue()


def files_of(numbers):
    return {f"{'ab'[i % 2]}/{i}.bmp": picture(number) for i, number in enumerate(numbers)}


def parquet_of(root, numbers):
    rows = [(content, path, path[0]) for path, content in files_of(numbers).items()]
    parquet(root / "set.parquet", rows, kind=[*"ccddccdd"], who=[*"ppqqrrss"])
    return root / "set.parquet"


def zip_of(root, numbers):
    with zipfile.ZipFile(root / "set.zip", "w") as file:
        for name, content in {"a.txt": START, **files_of(numbers), "z.txt": END}.items():
            file.writestr(zipfile.ZipInfo(name), content)
    return root / "set.zip"


def tar_of(root, numbers):
    return tar(root / "set.tar", {"a.txt": START, **files_of(numbers), "z.txt": END}.items())


def shard_of(root, numbers):
    """Pictures with the numbers of their classes: read in place, so that what is kept is the list of them."""
    pairs = (((f"{i}.bmp", picture(number)), (f"{i}.cls", b"%d" % (number % 2))) for i, number in enumerate(numbers))
    return tar(root / "set.tar", chain.from_iterable(pairs))


def folder_of(root, numbers):
    for name, content in files_of(numbers).items():
        (root / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "set" / name).write_bytes(content)
    return root / "set"


def answer(source, data_root, columns):
    """All that is read of a set, known of its pictures and found among them."""
    samples = read_source(str(source), data_root, columns=columns).usable()
    samples = identified(with_groups(samples, columns.group), data_root)
    rows = range(len(samples))
    labels = [samples.class_names[label] for label in samples.labels]
    groups = [samples.group_names[group] for group in samples.groups] if samples.group_names else []
    alike = copies_of(samples, data_root).tolist()
    return labels, groups, [samples.file(row).read_bytes() for row in rows], samples.digests.tolist(), alike


BEFORE, ANOTHER, A_COPY = [*range(8)], [0, 1, 2, 9, 4, 5, 6, 7], [0, 1, 2, 1, 4, 5, 6, 7]
USUAL = Columns()


@pytest.mark.parametrize(
    ("write", "before", "after", "numbers"),
    [
        *((write, USUAL, USUAL, ANOTHER) for write in (parquet_of, zip_of, tar_of, shard_of, folder_of)),
        *((write, USUAL, USUAL, A_COPY) for write in (shard_of, folder_of)),
        (parquet_of, USUAL, Columns(label="kind"), BEFORE),
        (parquet_of, Columns(label="kind"), Columns(label="who"), BEFORE),
        (parquet_of, Columns(label="who"), USUAL, BEFORE),
        (parquet_of, USUAL, Columns(group="who"), BEFORE),
        (parquet_of, Columns(label="kind"), Columns(label="kind", group="who"), BEFORE),
        (parquet_of, Columns(label="kind"), Columns(group="kind"), BEFORE),
        (folder_of, Columns(group="([0-3])"), Columns(group="([0-5])"), BEFORE),
    ],
)
def test_what_is_kept_answers_as_a_new_folder(tmp_path, monkeypatch, write, before, after, numbers):
    monkeypatch.setattr(known, "KEPT_FROM", 1)
    monkeypatch.setattr(copies, "KEPT_FROM", 1)
    monkeypatch.setattr(shards, "LARGE", 1)
    monkeypatch.setattr(known, "SETTLED", -1e12)  # as if the files had long been there
    first = answer(write(tmp_path, BEFORE), tmp_path / "data", before)
    source = write(tmp_path, numbers)
    os.utime(source, (1, 1))
    again, fresh = answer(source, tmp_path / "data", after), answer(source, tmp_path / "new", after)
    assert again == fresh
    assert again != first


@pytest.mark.parametrize("write", [parquet_of, zip_of, tar_of])
def test_an_archive_is_unpacked_once(tmp_path, write):
    source = write(tmp_path, BEFORE)
    for _ in range(2):
        answer(source, tmp_path / "data", USUAL)
    assert len([*(tmp_path / "data" / "unpacked").iterdir()]) == 1


def test_table_renamed_to_another_split_is_that_split(tmp_path):
    for number, name in enumerate(("train-0", "train-1")):
        rows = [(picture(10 * number + i), f"{i}.bmp", "ab"[i % 2]) for i in range(8)]
        parquet(tmp_path / "set" / f"{name}.parquet", rows)
    assert read_source(str(tmp_path / "set"), tmp_path).splits == ["train"]
    (tmp_path / "set" / "train-1.parquet").rename(tmp_path / "set" / "val-1.parquet")
    assert read_source(str(tmp_path / "set"), tmp_path).splits == ["train", "val"]


def test_nothing_is_kept_for_the_files_of_a_run(tmp_path):
    with untrusted_run():
        arrays = remembered("kind", "key", b"", lambda: {"a": np.arange(3)}, data_root=tmp_path / "data")
    assert (arrays["a"].tolist(), [*tmp_path.iterdir()]) == ([0, 1, 2], [])
