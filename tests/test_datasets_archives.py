"""Archives: what is honest is unpacked whole, what is not is refused in one line and leaves nothing behind."""

import os
import random
import tarfile
import zipfile

import pytest
from fake_sets import tar

from common.errors import DataError
from datasets.sources import archives
from datasets.sources.archives import unpack, unpacked


def zipped(path, members, *, links=()):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        for name, target in links:
            info = zipfile.ZipInfo(name)
            info.external_attr = 0o120777 << 16
            archive.writestr(info, target)
    return path


def tarred(path, members, *, special=()):
    return tar(path, members.items(), mode="w:gz", special=special)


def refused(archive, message, *, judged=True):
    """`judged`: before a folder was made."""
    parent = archive.parent / "out" / "deep"
    with pytest.raises(DataError, match=message) as caught:
        unpack(archive, parent / "set")
    assert "\n" not in str(caught.value)
    assert str(archive) in str(caught.value)
    assert not (archive.parent / "evil").exists()
    assert not parent.parent.exists() if judged else not any(parent.iterdir())


@pytest.mark.parametrize("make", [zipped, tarred])
def test_an_honest_archive_arrives_whole(tmp_path, make):
    members = {"set/train/a b/ü.txt": b"1", "set/img..01.jpg": b"", "set/deep/er/x": b"2" * 4_000_000}
    archive = make(tmp_path / "archive", members)
    unpack(archive, tmp_path / "out" / "plain")
    unpack(archive, tmp_path / "out" / "unwrapped", unwrap=True)
    for name, content in members.items():
        assert (tmp_path / "out" / "plain" / name).read_bytes() == content
        assert (tmp_path / "out" / "unwrapped" / name.removeprefix("set/")).read_bytes() == content
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["plain", "unwrapped"]


@pytest.mark.parametrize("make", [zipped, tarred])
@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/tmp/evil-absolute", "C:/evil", "..\\evil", "C:\\evil"])
def test_a_member_that_leaves_the_folder_is_refused(tmp_path, make, name):
    refused(make(tmp_path / "archive", {"good": b"1", name: b"bad"}), "lies outside the folder")


def test_links_and_devices_are_refused(tmp_path):
    refused(zipped(tmp_path / "a.zip", {"x": b"1"}, links=[("l", "/etc/passwd")]), "is a link")
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
        refused(tarred(tmp_path / "a.tgz", {"x": b"1"}, special=[("l", kind, "../../evil")]), "is a link or a device")


@pytest.mark.parametrize("make", [zipped, tarred])
def test_a_bomb_is_refused(tmp_path, make):
    archive = make(tmp_path / "bomb", {f"{i}": bytes(2**20) for i in range(65)})
    assert archive.stat().st_size < 2**20
    refused(archive, "over 100 times")


def test_a_zip_that_lies_about_its_sizes_is_refused(tmp_path):
    archive = zipped(tmp_path / "liar.zip", {"x": b"7" * 1000})
    data = archive.read_bytes()
    archive.write_bytes(data.replace((1000).to_bytes(4, "little"), (10).to_bytes(4, "little")))
    refused(archive, "cannot unpack", judged=False)


def test_more_than_the_disk_holds_is_refused(tmp_path, monkeypatch):
    usage = archives.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(archives.shutil, "disk_usage", lambda _: usage._replace(free=100))
    refused(zipped(tmp_path / "a.zip", {"x": b"1" * 1000}), "100 are free on that disk")


def test_damage_and_other_files_are_named(tmp_path):
    archive = zipped(tmp_path / "cut.zip", {"x": bytes(range(256)) * 40})
    archive.write_bytes(archive.read_bytes()[:-30])
    refused(archive, "neither a zip nor a tar")
    whole = tarred(tmp_path / "whole.tgz", {"x": os.urandom(100_000)}).read_bytes()
    for kind, content in {
        "cut": whole[:-40],
        "without its end": whole[:-4],
        "of another checksum": whole[:-8] + b"\0" + whole[-7:],
    }.items():
        (tmp_path / f"{kind}.tgz").write_bytes(content)
        refused(tmp_path / f"{kind}.tgz", "cannot unpack")


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damage_is_named_whatever_the_method(tmp_path, method):
    archive = tmp_path / "damaged.zip"
    with zipfile.ZipFile(archive, "w", method) as opened:
        opened.writestr("x", random.Random(0).randbytes(500) * 20)
    content = bytearray(archive.read_bytes())
    for place in range(60, 300, 30):
        content[place] ^= 0xFF
    archive.write_bytes(content)
    refused(archive, "cannot unpack", judged=False)


def test_slower_of_two_unpackers_takes_what_is_there(tmp_path, monkeypatch):
    archive = zipped(tmp_path / "a.zip", {"x": b"1"})
    extract = zipfile.ZipFile.extractall

    def extract_late(*arguments):
        monkeypatch.setattr(zipfile.ZipFile, "extractall", extract)
        assert unpack(archive, tmp_path / "set") == tmp_path / "set"  # the other, meanwhile
        extract(*arguments)

    monkeypatch.setattr(zipfile.ZipFile, "extractall", extract_late)
    assert (unpack(archive, tmp_path / "set") / "x").read_bytes() == b"1"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip", "set"]


def test_archive_changed_in_its_middle_is_read_anew(tmp_path):
    members = {"a": bytes(2**17), "b": b"1", "c": bytes(2**21)}
    tar(tmp_path / "a.tar", members.items())
    assert (unpacked(tmp_path / "a.tar", tmp_path) / "b").read_bytes() == b"1"
    changed = (tmp_path / "a.tar").read_bytes().replace(b"\0001\0", b"\0002\0")
    (tmp_path / "a.tar").write_bytes(changed)
    assert (unpacked(tmp_path / "a.tar", tmp_path) / "b").read_bytes() == b"2"


@pytest.mark.parametrize("make", [zipped, tarred])
def test_twins_are_refused(tmp_path, make):
    refused(make(tmp_path / "archive", {"same": b"1", "./same": b"2"}), "'./same' is in it twice")


def test_backslashes_of_a_windows_zip_are_folders(tmp_path):
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr(zipfile.ZipInfo(r"set\ant\1.png"), b"1")
    assert (unpack(archive, tmp_path / "out") / "set" / "ant" / "1.png").read_bytes() == b"1"
