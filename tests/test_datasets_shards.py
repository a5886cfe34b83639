"""Shards: tars of pictures and labels, as others write them and as `pack` does, are the set they were made from."""

import os
import tarfile

import numpy as np
import pytest
import torch
from fake_sets import class_folders, facts_of, tar
from small_images import image_folder
from small_run import call

from common.errors import DataError
from common.image_spec import ImageSpec
from common.shell import command
from datasets import build_dataloaders, packing
from datasets.config import DataConfig
from datasets.images import read_image, to_array
from datasets.known import identified
from datasets.open import read_samples
from datasets.sources import shards
from datasets.sources.own_data import read_source

SPEC = ImageSpec(image_size=16)


def shards_of(folder, out, *, labels="cls"):
    """Two shards of each split, their labels written in one of the two ways."""
    names = sorted(path.name for path in (folder / "train").iterdir())
    for split in ("train", "val"):
        files = sorted((folder / split).glob("*/*"))
        for number, part in enumerate((files[:5], files[5:])):
            members = []
            for file in part:
                key = file.relative_to(folder / split).with_suffix("")
                key = f"{file.parent.name}0{file.stem}" if labels == "cls" else key
                members.append((f"{key}.jpg", file.read_bytes()))
                if labels == "cls":
                    members.append((f"{key}.cls", b"%d" % names.index(file.parent.name)))
            tar(out / f"set-{split}-{number}.tar", members)
    if labels == "cls":
        (out / "classnames.txt").write_text("\n".join(names) + "\n")
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return image_folder(tmp_path_factory.mktemp("set") / "pets", train=(7, 6), val=(4, 5))


@pytest.mark.parametrize("labels", ["cls", "path"])
@pytest.mark.parametrize("source", ["{}", "{}/*.tar"])
def test_shards_are_the_set_that_was_put_into_them(tmp_path, folder, labels, source):
    shards = shards_of(folder, tmp_path / "shards", labels=labels)
    files, members = (read_source(str(where), tmp_path).usable() for where in (folder, source.format(shards)))
    assert facts_of(members) == facts_of(files)
    assert members.class_names == ("cat", "dog")
    for i in range(len(files)):
        shard, _, name = members.paths[i].partition("/")
        with tarfile.open(shards / shard) as opened:  # its path names it
            assert opened.extractfile(name).read() == files.file(i).read_bytes()


@pytest.mark.parametrize("workers", [0, pytest.param(3, marks=pytest.mark.slow)])
def test_batches_are_the_folders_to_the_bit(tmp_path, folder, workers):
    shards = shards_of(folder, tmp_path / "shards")
    batches = []
    for source, number in ((folder, 0), (shards, workers)):
        config = DataConfig(source=str(source), batch_size=4, workers=number, augment="standard")
        bundle = build_dataloaders(config, SPEC, seed=3)
        bundle.dataloaders["train"].batch_sampler.set_position(2, 1)  # in the middle of an epoch
        batches.append([batch for split in ("train", "val") for batch in bundle.dataloaders[split]])
    assert len(batches[0]) == len(batches[1]) == 3 + 3
    for (images, labels), (others, other_labels) in zip(*batches, strict=True):
        assert torch.equal(images, others)
        assert torch.equal(labels, other_labels)


def test_classes_are_in_the_order_of_their_numbers(tmp_path, folder):
    picture = next(folder.glob("train/*/*")).read_bytes()
    for number in range(12):
        tar(tmp_path / "set" / f"{number}.tar", [("a.jpg", picture), ("a.cls", b"%d" % number)])
    samples = read_source(str(tmp_path / "set"), tmp_path).samples
    assert samples.class_names == tuple(map(str, range(12)))
    assert sorted(samples.paths) == sorted(f"{number}.tar/a.jpg" for number in range(12))
    assert (samples.splits == -1).all()


def test_a_tar_of_a_folder_is_still_unpacked(tmp_path, folder):
    members = [(f"pets/{path.relative_to(folder)}", path.read_bytes()) for path in sorted(folder.glob("*/*/*"))]
    tar(tmp_path / "pets.tar", [("pets/annotations.json", b"{}"), *members])
    assert read_source(str(tmp_path / "pets.tar"), tmp_path).form == "split folders"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_two_classes_of_one_name_stay_two(tmp_path, end):
    tar(tmp_path / "a.tar", [("0.jpg", b""), ("0.cls", b"0"), ("1.jpg", b""), ("1.cls", b"2\n")])
    (tmp_path / "classnames.txt").write_text(f"crane{end}hen{end}crane", newline="")
    assert read_source(str(tmp_path / "a.tar"), tmp_path).samples.class_names == ("crane (0)", "crane (2)")


GOOD = [("0.jpg", b"x" * 600), ("0.cls", b"0"), ("1.jpg", b"y" * 600), ("1.cls", b"1")]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda content: content[:5120], "cut short"),
        (lambda content: content[:2000], "unexpected end of data|cut short"),
        (lambda content: content[:1600] + b"\xff" * 300 + content[1900:], "damaged at byte 1,536"),
        (lambda content: b"no tar at all" * 99, "cannot read shard"),
        (lambda content: b"", "cannot read shard"),
    ],
)
def test_a_damaged_shard_is_one_line(tmp_path, spoil, message):
    shard = tar(tmp_path / "shards" / "a.tar", GOOD)
    shard.write_bytes(spoil(shard.read_bytes()))
    with pytest.raises(DataError, match=message) as caught:
        read_source(str(shard.parent), tmp_path)
    assert str(shard) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("members", "special", "message"),
    [
        (GOOD, [("2.jpg", tarfile.SYMTYPE, "/etc/passwd")], "'2.jpg' is a link"),
        (GOOD, [("2.jpg", tarfile.LNKTYPE, "0.jpg")], "'2.jpg' is a link"),
        (GOOD, [("2.jpg", tarfile.FIFOTYPE, "")], "'2.jpg' is a link, a device"),
        (GOOD + GOOD[:2], [], "'0' is in it twice"),
        ([*GOOD, ("a/2.jpg", b"z"), ("a/2.json", b"{}")], [], r"'a.tar/a/2.jpg': .*a \.json is not read"),
        ([*GOOD, ("2.jpg", b"z"), ("2.cls", b"\x81")], [], "2.cls holds no label"),
        ([("a.txt", b"z")], [], "found 'a.txt'"),
        ([("a.0001.jpg", b"x"), ("a.0001.cls", b"cat")], [], "first dot"),
        ([("0.jpg", b"x"), ("1.jpg", b"y"), ("0.cls", b"cat"), ("1.cls", b"dog")], [], "right after"),
        ([*GOOD, ("2.jpg", b"z")], [], r"'a.tar/2.jpg': .* without a label \(no .cls"),
    ],
)
def test_an_odd_member_is_one_line(tmp_path, members, special, message):
    shard = tar(tmp_path / "shards" / "a.tar", members, special=special)
    with pytest.raises(DataError, match=message) as caught:
        read_source(str(shard.parent), tmp_path).usable()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["../e", "a/../../e", "/tmp/e", "C:/e", "C:e", "..\\e", "a\\..\\..\\e", "//h/s/e", "\\e"]
)
def test_a_member_outside_the_folder_is_one_line(tmp_path, name):
    shard = tar(tmp_path / "shards" / "a.tar", [*GOOD, (f"{name}.jpg", b"z"), (f"{name}.cls", b"1")])
    with pytest.raises(DataError, match="lies outside the folder") as caught:
        read_source(str(shard), tmp_path)
    assert str(shard) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_colons_and_backslashes_lead_nowhere_else(tmp_path):
    members = [("a/12:30:00.jpg", b"x"), ("a\\b.jpg", b"x"), ("./a/c.jpg", b"x")]
    paths = read_source(str(tar(tmp_path / "shards" / "a.tar", members).parent), tmp_path).samples.paths
    assert [*paths] == ["a.tar/a/12:30:00.jpg", "a.tar/a/b.jpg", "a.tar/a/c.jpg"]


def test_the_list_of_large_shards_is_kept(tmp_path, folder, monkeypatch):
    source = shards_of(folder, tmp_path / "shards")
    tar(source / "odd.tar", [("2.jpg", b"z"), ("3.jpg", b"z"), ("3.cls", b"0"), ("3.group", b"p1")])

    def facts():
        reading = read_source(str(source), tmp_path)
        samples = reading.samples
        about = reading.form, reading.classes, reading.problems, samples.class_names, samples.group_names
        arrays = (getattr(samples, name).tolist() for name in ("labels", "splits", "sizes", "groups"))
        return *about, *arrays, list(samples.paths), [samples.file(row) for row in range(len(samples))]

    expected = facts()
    assert not (tmp_path / "index").exists()
    monkeypatch.setattr(shards, "LARGE", 0)
    for _ in range(2):  # listed and kept, then found
        assert facts() == expected
        monkeypatch.setattr(shards, "_listed", lambda *_: pytest.fail("listed again"))
    monkeypatch.undo()
    monkeypatch.setattr(shards, "LARGE", 0)
    for file, old, new in (("set-val-0.tar", b"0" + bytes(511), b"1" + bytes(511)), ("classnames.txt", b"cat", b"owl")):
        (source / file).write_bytes((source / file).read_bytes().replace(old, new, 1))
        after = facts()
        assert after != expected
        expected = after


def test_a_compressed_shard_is_refused(tmp_path):
    tar(tmp_path / "a.tar.gz", GOOD, mode="w:gz")
    with pytest.raises(DataError, match="not compressed"):
        read_source(str(tmp_path / "*.tar.gz"), tmp_path)


def test_a_damaged_picture_in_a_shard_is_named(tmp_path, folder, capsys):
    shards = shards_of(folder, tmp_path / "shards")
    picture = (folder / "train" / "cat" / "0.jpg").read_bytes()
    shard = shards / "set-train-0.tar"
    shard.write_bytes(shard.read_bytes().replace(picture, bytes(len(picture)), 1))
    code, out, _ = call(capsys, "check", shards, "--output", tmp_path / "check.csv")
    assert (code, "zero bytes" in out) == (3, True)
    assert "set-train-0.tar/cat00.jpg" in (tmp_path / "check.csv").read_text()
    bundle = build_dataloaders(DataConfig(source=str(shards), cache="off", workers=0, on_bad_image="skip"), SPEC)
    assert bundle.samples.skipped[0].startswith(f"cannot read image {shards}/set-train-0.tar/cat00.jpg: not an image")
    assert np.bincount(bundle.samples.splits + 2).tolist() == [1, 0, 12, 9]


def packed(capsys, source, out):
    code, text, error = call(capsys, "pack", source, out)
    assert (code, error) == (0, ""), error
    assert command("train", "--data", out) in text
    return out


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_pack_writes_the_set_in_the_same_bytes(tmp_path, folder, capsys, monkeypatch):
    monkeypatch.setattr(packing, "SHARD_BYTES", 3000)
    table = "path,label\n" + "".join(f"{path},{path.parent.name} 1\n" for path in sorted(folder.glob("val/*/*")))
    (tmp_path / "table.csv").write_text(table)  # absolute paths
    for source in (folder, tmp_path / "table.csv"):
        out = packed(capsys, source, tmp_path / f"{source.name} 1")
        assert contents(out) == contents(packed(capsys, source, tmp_path / f"{source.name} 2"))
        assert len(contents(out)) >= 4
        configs = [DataConfig(source=str(where), workers=0) for where in (source, out)]
        files, members = (build_dataloaders(config, SPEC).samples for config in configs)
        assert facts_of(members) == facts_of(files)
        assert np.array_equal(identified(files).digests, identified(members).digests)


def test_keys_are_single_and_have_no_dot(tmp_path, folder, capsys):
    picture = next(folder.glob("train/*/*")).read_bytes()
    for name in ("a.1.jpg", "a.2.JPG", "a.jpg", "a.png", "b.gif.jpg"):
        for label in ("x.y", "z"):
            (tmp_path / "set" / label).mkdir(parents=True, exist_ok=True)
            (tmp_path / "set" / label / name).write_bytes(picture)
    out = packed(capsys, tmp_path / "set", tmp_path / "out")
    samples = read_source(str(out), tmp_path).usable()
    assert samples.class_names == ("x.y", "z")
    names = ("x_y/a_1.jpg", "x_y/a_2.jpg", "x_y/a.jpg", "00000003/x_y/a.png", "x_y/b_gif.jpg")
    assert list(samples.paths)[:5] == [f"all-000000.tar/{name}" for name in names]


def test_pack_leaves_nothing_half_written(tmp_path, folder, capsys):
    broken = image_folder(tmp_path / "broken")
    (broken / "val" / "dog" / "9.jpg").symlink_to(tmp_path / "nowhere")
    code, _, error = call(capsys, "pack", broken, tmp_path / "out")
    assert (code, error) == (3, f"error: cannot read image {broken}/val/dog/9.jpg: No such file or directory\n")
    code, _, error = call(capsys, "pack", folder, broken)
    assert (code, error) == (3, f"error: {broken} is there already: name a new folder\n")
    assert [path.name for path in tmp_path.iterdir()] == ["broken"]


@pytest.mark.parametrize("name", ["two\nlines", os.fsdecode(b"k\xe4se")])
def test_a_class_that_fits_no_line_is_named(tmp_path, capsys, name):
    code, _, error = call(capsys, "pack", class_folders(tmp_path / "set", {name: 3, "b": 3}), tmp_path / "out")
    assert (code, f"{name!r} fits no line of classnames.txt" in error) == (3, True)
    assert not (tmp_path / "out").exists()


def test_a_group_that_is_not_utf8_is_packed(tmp_path, capsys):
    folder = class_folders(tmp_path / "set", {"a/ann": 3, os.fsdecode(b"a/Jos\xe9"): 3, "b/p0": 3, "b/p1": 3})
    assert call(capsys, "pack", folder, tmp_path / "out", "--group", "folder")[0] == 0
    names = read_source(str(tmp_path / "out"), tmp_path).samples.group_names
    assert sorted(names) == ["Jos\\udce9", "ann", "p0", "p1"]


@pytest.mark.slow
def test_pixels_in_memory_are_packed_without_loss(tmp_path, capsys):
    packed(capsys, "digits", tmp_path / "digits")
    samples, digits = read_source(str(tmp_path / "digits"), tmp_path).usable(), read_samples(DataConfig())
    assert samples.labels.tolist() == digits.labels.tolist()
    for row in (0, 900, 1796):
        assert (to_array(read_image(samples.file(row), channels=1))[0] == digits.pixels[row, :, :, 0]).all()
