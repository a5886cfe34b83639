"""Sets in few files, tar, parquet or Arrow, here or on the hub: the set of the folder that they were made from."""

import io
import shutil
import sys
import tarfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fake_sets import parquet
from small_images import image_folder
from small_run import call

from common.errors import DataError, MissingPackage
from common.files import NO_DOWNLOADS
from common.image_spec import ImageSpec
from common.shell import command
from datasets import build_dataloaders, packing
from datasets.checking.check import check_source
from datasets.config import Columns, DataConfig
from datasets.images import read_image, to_array
from datasets.known import identified
from datasets.open import read_samples
from datasets.sources import parquet as parquet_sets
from datasets.sources import shards
from datasets.sources.own_data import read_source

SPEC = ImageSpec(image_size=16)


def tar(path, members, *, mode="w", special=()):
    """`members`: (name, bytes), in this order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for name, kind, target in special:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            archive.addfile(info)
    return path


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
    assert members.class_names == files.class_names == ("cat", "dog")
    assert members.labels.tolist() == files.labels.tolist()
    assert members.splits.tolist() == files.splits.tolist()
    for i in range(len(files)):
        assert members.file(i).read_bytes() == files.file(i).read_bytes()
        shard, _, name = members.paths[i].partition("/")
        with tarfile.open(shards / shard) as opened:  # its path names it
            assert opened.extractfile(name).read() == files.file(i).read_bytes()


@pytest.mark.parametrize("workers", [0, pytest.param(3, marks=pytest.mark.slow)])
def test_batches_from_shards_are_those_from_the_folder_to_the_bit(tmp_path, folder, workers):
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


def test_numbers_are_classes_in_the_order_of_numbers(tmp_path, folder):
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


def test_two_classes_of_one_name_stay_two(tmp_path):
    tar(tmp_path / "a.tar", [("0.jpg", b""), ("0.cls", b"0"), ("1.jpg", b""), ("1.cls", b"2\n")])
    (tmp_path / "classnames.txt").write_text("crane\nhen\ncrane")
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
def test_a_damaged_shard_is_refused_in_one_line(tmp_path, spoil, message):
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
def test_an_odd_member_is_named_in_one_line(tmp_path, members, special, message):
    shard = tar(tmp_path / "shards" / "a.tar", members, special=special)
    with pytest.raises(DataError, match=message) as caught:
        read_source(str(shard.parent), tmp_path).usable()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["../e", "a/../../e", "/tmp/e", "C:/e", "C:e", "..\\e", "a\\..\\..\\e", "//h/s/e", "\\e"]
)
def test_a_member_whose_name_leaves_the_folder_is_refused_before_anything_is_read_or_written(tmp_path, name):
    shard = tar(tmp_path / "shards" / "a.tar", [*GOOD, (f"{name}.jpg", b"z"), (f"{name}.cls", b"1")])
    with pytest.raises(DataError, match="lies outside the folder") as caught:
        read_source(str(shard), tmp_path)
    assert str(shard) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_colons_within_a_name_and_the_backslashes_of_windows_lead_nowhere_else(tmp_path):
    members = [("a/12:30:00.jpg", b"x"), ("a\\b.jpg", b"x"), ("./a/c.jpg", b"x")]
    paths = read_source(str(tar(tmp_path / "shards" / "a.tar", members).parent), tmp_path).samples.paths
    assert [*paths] == ["a.tar/a/12:30:00.jpg", "a.tar/a/b.jpg", "a.tar/a/c.jpg"]


def test_the_list_of_large_shards_is_kept_as_long_as_they_stay(tmp_path, folder, monkeypatch):
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
    with pytest.raises(DataError, match="a whole tar, not compressed"):
        read_source(str(tmp_path / "*.tar.gz"), tmp_path)


def test_a_picture_in_a_shard_is_named_where_it_is_damaged(tmp_path, folder, capsys):
    shards = shards_of(folder, tmp_path / "shards")
    damaged = build_dataloaders(DataConfig(source=str(folder), workers=0), SPEC).samples.file(0)
    content = (shards / "set-train-0.tar").read_bytes()
    at = content.index(damaged.read_bytes())
    (shards / "set-train-0.tar").write_bytes(
        content[:at] + bytes(len(damaged.read_bytes())) + content[at + len(damaged.read_bytes()) :]
    )
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


def test_what_pack_writes_is_the_set_and_twice_the_same_bytes(tmp_path, folder, capsys, monkeypatch):
    monkeypatch.setattr(packing, "SHARD_BYTES", 3000)
    table = "path,label\n" + "".join(f"{path},{path.parent.name} 1\n" for path in sorted(folder.glob("val/*/*")))
    (tmp_path / "table.csv").write_text(table)  # absolute paths
    for source in (folder, tmp_path / "table.csv"):
        out = packed(capsys, source, tmp_path / f"{source.name} 1")
        assert contents(out) == contents(packed(capsys, source, tmp_path / f"{source.name} 2"))
        assert len(contents(out)) >= 4
        configs = [DataConfig(source=str(where), workers=0) for where in (source, out)]
        files, members = (build_dataloaders(config, SPEC).samples for config in configs)
        assert members.class_names == files.class_names
        assert members.labels.tolist() == files.labels.tolist()
        assert members.splits.tolist() == files.splits.tolist()
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


def rows_of(folder):
    """(bytes, name, class) of each picture."""
    return [(file.read_bytes(), file.name, file.parent.name) for file in sorted(folder.glob("*/*"))]


@pytest.mark.parametrize(
    ("names", "place"),
    [
        (None, "{}-00000-of-00001.parquet"),
        (["cat", "dog"], "{}-00000-of-00001.parquet"),
        (["cat", "dog"], "{}/data-00000-of-00001.arrow"),
    ],
)
def test_parquet_and_arrow_are_the_set_that_was_put_into_them(tmp_path, folder, names, place):
    for split in ("train", "val"):
        rows = [(data, path, names.index(label) if names else label) for data, path, label in rows_of(folder / split)]
        parquet(tmp_path / "data" / place.format(split), rows, names)
    parquet(tmp_path / "data" / place.format("test"), [(b"", None, -1)] if names else [(b"", None, None)], names)
    files = read_source(str(folder), tmp_path).usable()
    for source in (tmp_path / "data", tmp_path / "data" / place.format("*")):
        samples = read_source(str(source), tmp_path).usable()
        assert samples.class_names == files.class_names
        assert samples.labels.tolist() == files.labels.tolist()
        assert samples.splits.tolist() == files.splits.tolist()
        assert [samples.file(i).read_bytes() for i in range(len(files))] == [
            files.file(i).read_bytes() for i in range(len(files))
        ]


def test_whole_paths_in_parquet_are_names_below_the_folder(tmp_path):
    names = ["C:\\me\\0.jpg", "D:1.jpg", "/tmp/2.jpg", "../../3.jpg", "..\\4.jpg", "//host/share/5.jpg"]
    parquet(tmp_path / "all.parquet", [(b"1", name, "ab"[row % 2]) for row, name in enumerate(names)])
    samples = read_source(str(tmp_path / "all.parquet"), tmp_path).samples
    assert [path.rpartition("/")[2] for path in samples.paths] == [
        "0.jpg",
        "D_1.jpg",
        *(f"{n}.jpg" for n in range(2, 6)),
    ]


def test_parquet_that_names_files_in_place_of_their_bytes_is_refused_in_one_line(tmp_path):
    parquet(tmp_path / "train.parquet", [(None, f"{i}.jpg", "ab"[i % 2]) for i in range(8)])
    with pytest.raises(DataError, match=r"names of files, such as '.\.jpg'") as caught:
        read_source(str(tmp_path / "train.parquet"), tmp_path)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "unpacked").iterdir())


def test_a_row_of_parquet_without_a_picture_is_an_empty_file_to_check(tmp_path):
    arrow, writer = pytest.importorskip("pyarrow", reason="pyarrow is an extra"), pytest.importorskip("pyarrow.parquet")
    pictures = [None, *({"bytes": b"1", "path": f"{i}.jpg"} for i in range(7))]
    writer.write_table(arrow.table([pictures, [0, 1] * 4], names=["image", "label"]), tmp_path / "all.parquet")
    findings = check_source(str(tmp_path / "all.parquet"), data_root=tmp_path, near=False).findings
    assert [finding.path for finding in findings if finding.kind == "zero_bytes"] == [
        f"all-{tmp_path.name}.tar/00000000.jpg"
    ]


@pytest.mark.parametrize(("words", "refused"), [(("train", "test"), True), (("train",), False), ((0, 1), False)])
def test_a_column_of_parquet_that_says_the_split_is_refused(tmp_path, words, refused):
    rows = [(b"1", f"{i}.jpg", "ab"[i % 2]) for i in range(8)]
    parquet(tmp_path / "all.parquet", rows, part=[words[i % len(words)] for i in range(8)])
    if refused:
        with pytest.raises(DataError, match="'part'"):
            read_source(str(tmp_path / "all.parquet"), tmp_path)
    else:
        assert len(read_source(str(tmp_path / "all.parquet"), tmp_path).samples) == 8


def test_what_is_no_parquet_of_pictures_is_refused_in_one_line(tmp_path, monkeypatch):
    parquet(tmp_path / "words.parquet", [])
    content = (tmp_path / "words.parquet").read_bytes()
    (tmp_path / "broken.parquet").write_bytes(content[:-9])
    with pytest.raises(DataError, match=r"cannot read .*broken.parquet: ") as caught:
        read_source(str(tmp_path / "broken.parquet"), tmp_path)
    assert "\n" not in str(caught.value)
    (tmp_path / "broken.arrow").write_bytes(content)
    with pytest.raises(DataError, match=r"cannot read .*broken.arrow: "):
        read_source(str(tmp_path / "broken.arrow"), tmp_path)
    with pytest.raises(DataError, match=r"no column of pictures, {bytes, path}, and of labels in image, label"):
        read_source(str(tmp_path / "words.parquet"), tmp_path, columns=Columns(label="kind"))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingPackage, match="needs pyarrow: pip install -r requirements-extras.txt") as missing:
        read_source(str(tmp_path / "words.parquet"), tmp_path)
    assert missing.value.exit_code == 2  # as of every missing package
    assert not list((tmp_path / "unpacked").iterdir())


def test_a_place_that_cannot_be_written_to_is_named_before_any_parquet_is_read(tmp_path):
    parquet(tmp_path / "words.parquet", [])
    (tmp_path / "unpacked").write_text("a file")
    with pytest.raises(DataError, match="unpacked"):
        read_source(str(tmp_path / "words.parquet"), tmp_path)


def test_of_two_that_unpack_one_table_the_slower_takes_what_is_there(tmp_path, monkeypatch):
    parquet(tmp_path / "all.parquet", [(b"1", f"{row}.jpg", "ab"[row % 2]) for row in range(4)])
    write = parquet_sets._write
    found = []

    def write_late(*arguments):
        monkeypatch.setattr(parquet_sets, "_write", write)
        found.append(read_source(str(tmp_path / "all.parquet"), tmp_path).samples)  # another process, meanwhile
        return write(*arguments)

    monkeypatch.setattr(parquet_sets, "_write", write_late)
    found.append(read_source(str(tmp_path / "all.parquet"), tmp_path).samples)
    assert [len(samples) for samples in found] == [4, 4]
    assert len(list((tmp_path / "unpacked").iterdir())) == 1


@pytest.mark.slow
def test_pixels_in_memory_are_packed_without_loss(tmp_path, capsys):
    packed(capsys, "digits", tmp_path / "digits")
    samples, digits = read_source(str(tmp_path / "digits"), tmp_path).usable(), read_samples(DataConfig())
    assert samples.labels.tolist() == digits.labels.tolist()
    for row in (0, 900, 1796):
        assert (to_array(read_image(samples.file(row), channels=1))[0] == digits.pixels[row, :, :, 0]).all()


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A folder that stands for the hub; whatever has `missing` in its name cannot be had."""
    library = pytest.importorskip("huggingface_hub", reason="huggingface_hub comes with transformers, an extra")
    root, missing = tmp_path / "hub of others", []

    def dataset_info(name, **_):
        files = [path.relative_to(root).as_posix() for path in root.glob("*/*/*.parquet")]
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=file) for file in files])

    def snapshot_download(name, *, allow_patterns, local_dir, **_):
        for file in allow_patterns:
            if not any(word in file for word in missing):
                (local_dir / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(root / file, local_dir / file)

    monkeypatch.setattr(library, "dataset_info", dataset_info)
    monkeypatch.setattr(library, "snapshot_download", snapshot_download)
    return SimpleNamespace(root=root, missing=missing)


def test_a_set_of_the_hub_is_the_set_that_was_put_there_and_is_fetched_once(tmp_path, folder, hub):
    for split in ("train", "val"):
        parquet(hub.root / "default" / split / "0000.parquet", rows_of(folder / split))
    hub.missing.append("val")
    with pytest.raises(FileNotFoundError, match=r"hf:org/photos cannot be downloaded .* and put it at .*org--photos$"):
        read_source("hf:org/photos", tmp_path)
    hub.missing.clear()
    samples, files = read_source("hf:org/photos", tmp_path).usable(), read_source(str(folder), tmp_path).usable()
    assert samples.class_names == files.class_names
    assert samples.splits.tolist() == files.splits.tolist()
    assert [samples.file(i).read_bytes() for i in range(len(files))] == [
        files.file(i).read_bytes() for i in range(len(files))
    ]
    assert [path.name for path in (tmp_path / "hub").glob("org--*")] == ["org--photos"]
    hub.missing.append("parquet")
    assert len(read_source("hf:org/photos", tmp_path).samples) == len(files)


def test_a_hub_out_of_reach_is_asked_once(tmp_path, monkeypatch):
    pytest.importorskip("huggingface_hub.hf_api", reason="huggingface_hub comes with transformers, an extra")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("the library waits to try again: 24 s in all"))
    with pytest.raises(FileNotFoundError, match=r"^hf:org/photos cannot be downloaded \(.*refused\): fetch the folder"):
        read_source("hf:org/photos", tmp_path)


def test_what_the_hub_does_not_have_is_said_in_one_line(tmp_path, folder, hub, monkeypatch):
    for subset in ("large", "small"):
        parquet(hub.root / subset / "train" / "0000.parquet", rows_of(folder / "train"))
    for source in ("hf:org/photos", "hf:org/photos/tiny"):
        with pytest.raises(DataError, match=r"name one of its subsets, hf:org/photos/SUBSET; it has 'large', 'small'$"):
            read_source(source, tmp_path)
    assert len(read_source("hf:org/photos/small", tmp_path).samples) == 13
    with monkeypatch.context() as patch, pytest.raises(MissingPackage, match="^hf:org/photos needs huggingface_hub"):
        patch.setitem(sys.modules, "huggingface_hub", None)
        read_source("hf:org/photos", tmp_path)
    with pytest.raises(DataError, match="expected hf:ORG/NAME"):
        read_source("hf:../..", tmp_path)
    NO_DOWNLOADS.set(True)
    try:
        with pytest.raises(DataError, match="only the files of a run say to put it there"):
            read_source("hf:org/photos/large", tmp_path)
    finally:
        NO_DOWNLOADS.set(False)
