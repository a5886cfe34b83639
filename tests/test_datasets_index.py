"""The index of a large set: a later start reads nothing else, finds the same, and is never taken in by an old one."""

import os
import time

import pytest
from small_images import image_folder

from datasets import DataConfig, identity
from datasets.loaders import split_samples
from datasets.sources import own_data
from datasets.sources.large import door, index
from datasets.sources.large.packing import pack
from datasets.sources.own_data import read_source
from datasets.split_file import _fingerprint


@pytest.fixture(params=["folder", "shards"])
def source(request, tmp_path, monkeypatch):
    """A set that counts as large, with a stray file; listed long after it was made."""
    folder = image_folder(tmp_path / "pets")
    (folder / "train" / "cat" / "notes.txt").touch()
    if request.param == "shards":
        pack(read_source(str(folder), tmp_path).usable(), tmp_path / "shards")
        folder = tmp_path / "shards"
    monkeypatch.setattr(index, "LARGE", 1)
    monkeypatch.setattr(index, "SETTLED", -1e12)
    return folder


def facts(reading):
    samples = reading.samples
    members = None if samples.members is None else list(samples.members)
    arrays = samples.labels.tolist(), samples.splits.tolist(), list(samples.paths), members
    about = samples.name, samples.class_names, samples.root, samples.val_fraction, samples.notes
    return reading.source, reading.form, reading.classes, reading.problems, *about, *arrays


def read(source, root):
    return facts(read_source(str(source), root))


@pytest.mark.parametrize("limit", [0, 2**30])
def test_a_later_start_finds_the_same_and_lists_nothing(source, tmp_path, monkeypatch, limit):
    monkeypatch.setattr(identity, "READ_UP_TO_BYTES", limit)
    config = DataConfig(source=str(source), root=tmp_path)
    with monkeypatch.context() as without:
        without.setattr(index, "LARGE", 1000)
        expected, fingerprint = read(source, tmp_path), _fingerprint(split_samples(config))
    assert not (tmp_path / "index").exists()
    assert read(source, tmp_path) == expected
    for room, reader in ((own_data, "read_image_folder"), (door, "read_tar_shards")):
        monkeypatch.setattr(room, reader, lambda *_: pytest.fail("listed again"))
    assert read(source, tmp_path) == expected
    assert _fingerprint(split_samples(config)) == fingerprint


def add(folder, file):
    (folder / "z.jpg").write_bytes(file.read_bytes())


def rewrite(folder, file):
    times = os.stat(folder)
    file.write_bytes(file.read_bytes()[::-1])  # as many bytes
    os.utime(folder, ns=(times.st_atime_ns, times.st_mtime_ns))


def swap(folder, file):
    (folder.parent / "new").write_bytes(file.read_bytes())
    os.replace(folder.parent / "new", file)


@pytest.mark.parametrize("source", ["folder"], indirect=True)
@pytest.mark.parametrize(
    "change",
    [
        add,
        rewrite,
        swap,
        lambda _, file: file.unlink(),
        lambda _, file: file.rename(file.with_name("other.jpg")),
        lambda folder, _: folder.rename(folder.with_name("bird")),
        lambda folder, _: (folder / "deeper").mkdir(),
        lambda folder, _: folder.with_name("bird").mkdir(),
    ],
)
def test_no_change_of_a_folder_goes_unnoticed(source, tmp_path, monkeypatch, change):
    read(source, tmp_path)
    monkeypatch.setattr(index, "SETTLED", 2e9)  # nor does a second one at the same moment: it is not kept
    change(source / "train" / "cat", source / "train" / "cat" / "1.jpg")
    for _ in range(2):
        heard = []
        monkeypatch.setattr(own_data, "read_image_folder", lambda *words, h=heard: h.append(1) or listed(*words))
        assert read(source, tmp_path) == facts(listed(source, "pets"))
        assert heard


listed = own_data.read_image_folder


@pytest.mark.parametrize("source", ["shards"], indirect=True)
@pytest.mark.parametrize(
    ("changed", "old", "new"),
    [("train-000000.tar", b"0" + bytes(511), b"1" + bytes(511)), ("classnames.txt", b"cat", b"owl")],
)
def test_a_shard_or_the_names_of_its_classes_are_not_taken_for_others(source, tmp_path, changed, old, new):
    before = read(source, tmp_path)
    content = (source / changed).read_bytes()
    (source / changed).write_bytes(content.replace(old, new, 1))
    after = read(source, tmp_path)
    assert after != before
    (tmp_path / "index").rename(tmp_path / "elsewhere")
    assert read(source, tmp_path) == after


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content[:900] + bytes([content[900] ^ 1]) + content[901:],
        lambda content: content.replace(b"PK\1\2-\3-\0\0\0\0", b"PK\1\2-\3-\0\0\0\x09"),  # packed in another way
        lambda _: b"",
        lambda _: b"something else\n" * 99,
    ],
)
def test_a_damaged_index_is_made_anew_and_one_line_says_so(source, tmp_path, spoil):
    expected = read(source, tmp_path)
    (file,) = (tmp_path / "index").iterdir()
    file.write_bytes(spoil(file.read_bytes()))
    again = read_source(str(source), tmp_path)
    assert again.samples.notes == (*expected[8], f"{file} was damaged: the images were listed again")
    assert read(source, tmp_path) == expected


def test_where_no_index_can_be_written_the_set_is_read_all_the_same(source, tmp_path):
    (tmp_path / "index").touch()
    assert "not kept for the next start" in read_source(str(source), tmp_path).samples.notes[-1]


def test_a_set_that_changes_this_very_moment_gets_no_index(source, tmp_path, monkeypatch):
    monkeypatch.setattr(index, "SETTLED", 2e9)
    fresh = next(file for file in source.rglob("*") if file.suffix in (".jpg", ".tar"))
    os.utime(fresh, ns=(0, time.time_ns()))
    read(source, tmp_path)
    assert not (tmp_path / "index").exists()
