"""Sets in tables of parquet or Arrow, here or on the hub: the set of the folder that they were made from."""

import shutil
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from fake_sets import facts_of, parquet
from small_images import image_folder

from common.errors import DataError, MissingPackage
from datasets.checking.check import check_source
from datasets.config import Columns
from datasets.sources import parquet as parquet_sets
from datasets.sources.own_data import read_source
from trainers.storage.run_folder import untrusted_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return image_folder(tmp_path_factory.mktemp("set") / "pets", train=(7, 6), val=(4, 5))


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
def test_tables_are_the_set_put_into_them(tmp_path, folder, names, place):
    for split in ("train", "val"):
        rows = [(data, path, names.index(label) if names else label) for data, path, label in rows_of(folder / split)]
        parquet(tmp_path / "data" / place.format(split), rows, names)
    parquet(tmp_path / "data" / place.format("test"), [(b"", None, -1)] if names else [(b"", None, None)], names)
    files = read_source(str(folder), tmp_path).usable()
    for source in (tmp_path / "data", tmp_path / "data" / place.format("*")):
        assert facts_of(read_source(str(source), tmp_path).usable()) == facts_of(files)


def test_whole_paths_are_names_below_the_folder(tmp_path):
    names = ["C:\\me\\0.jpg", "D:1.jpg", "/tmp/2.jpg", "../../3.jpg", "..\\4.jpg", "//host/share/5.jpg"]
    parquet(tmp_path / "all.parquet", [(b"1", name, "ab"[row % 2]) for row, name in enumerate(names)])
    samples = read_source(str(tmp_path / "all.parquet"), tmp_path).samples
    found = [path.rpartition("/")[2] for path in samples.paths]
    assert found == ["0.jpg", "D_1.jpg", "2.jpg", "3.jpg", "4.jpg", "5.jpg"]


def test_a_table_of_names_of_files_is_one_line(tmp_path):
    parquet(tmp_path / "train.parquet", [(None, f"{i}.jpg", "ab"[i % 2]) for i in range(8)])
    with pytest.raises(DataError, match=r"names of files, such as '.\.jpg'") as caught:
        read_source(str(tmp_path / "train.parquet"), tmp_path)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "unpacked").iterdir())


def test_a_row_without_a_picture_is_an_empty_file(tmp_path):
    arrow, writer = pytest.importorskip("pyarrow", reason="pyarrow is an extra"), pytest.importorskip("pyarrow.parquet")
    pictures = [None, *({"bytes": b"1", "path": f"{i}.jpg"} for i in range(7))]
    writer.write_table(arrow.table([pictures, [0, 1] * 4], names=["image", "label"]), tmp_path / "all.parquet")
    findings = check_source(str(tmp_path / "all.parquet"), data_root=tmp_path, near=False).findings
    assert [finding.path for finding in findings if finding.kind == "zero_bytes"] == [
        f"all-{tmp_path.name}.tar/00000000.jpg"
    ]


@pytest.mark.parametrize("words", [("train", "train"), (0, 1), ("train", "test")], ids=str)
def test_column_of_splits_is_refused_others_are_not(tmp_path, words):
    rows = [(b"1", f"{i}.jpg", "ab"[i % 2]) for i in range(8)]
    parquet(tmp_path / "all.parquet", rows, part=[*words] * 4)
    with pytest.raises(DataError, match="'part'") if "test" in words else nullcontext():
        assert len(read_source(str(tmp_path / "all.parquet"), tmp_path).samples) == 8


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("broken.parquet", "cannot read .*broken.parquet: "),
        ("broken.arrow", "cannot read .*broken.arrow: "),
        ("words.parquet", r"no column of pictures, {bytes, path}, and of labels in image, label"),
    ],
)
def test_what_is_no_table_of_pictures_is_one_line(tmp_path, name, line):
    parquet(tmp_path / "words.parquet", [])
    content = (tmp_path / "words.parquet").read_bytes()
    (tmp_path / "broken.parquet").write_bytes(content[:-9])
    (tmp_path / "broken.arrow").write_bytes(content)
    with pytest.raises(DataError, match=line) as caught:
        read_source(str(tmp_path / name), tmp_path, columns=Columns(label="kind"))
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "unpacked").iterdir())


@pytest.mark.parametrize(("package", "source"), [("pyarrow", "{}/words.parquet"), ("huggingface_hub", "hf:org/photos")])
def test_missing_package_is_named(tmp_path, monkeypatch, package, source):
    parquet(tmp_path / "words.parquet", [])
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackage, match=f"needs {package}: pip install -r requirements-extras.txt") as missing:
        read_source(source.format(tmp_path), tmp_path)
    assert missing.value.exit_code == 2  # as of every missing package


def test_a_place_not_to_be_written_to_is_named(tmp_path):
    parquet(tmp_path / "words.parquet", [])
    (tmp_path / "unpacked").write_text("a file")
    with pytest.raises(DataError, match="unpacked"):
        read_source(str(tmp_path / "words.parquet"), tmp_path)


def test_the_slower_of_two_takes_what_is_there(tmp_path, monkeypatch):
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


def test_a_set_of_the_hub_is_fetched_once(tmp_path, folder, hub):
    for split in ("train", "val"):
        parquet(hub.root / "default" / split / "0000.parquet", rows_of(folder / split))
    hub.missing.append("val")
    with pytest.raises(FileNotFoundError, match=r"hf:org/photos cannot be downloaded .* and put it at .*org--photos$"):
        read_source("hf:org/photos", tmp_path)
    hub.missing.clear()
    samples, files = read_source("hf:org/photos", tmp_path).usable(), read_source(str(folder), tmp_path).usable()
    assert facts_of(samples) == facts_of(files)
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


def test_of_several_subsets_one_is_named(tmp_path, folder, hub):
    for subset in ("large", "small"):
        parquet(hub.root / subset / "train" / "0000.parquet", rows_of(folder / "train"))
    for source in ("hf:org/photos", "hf:org/photos/tiny"):
        with pytest.raises(DataError, match=r"name one of its subsets, hf:org/photos/SUBSET; it has 'large', 'small'$"):
            read_source(source, tmp_path)
    assert len(read_source("hf:org/photos/small", tmp_path).samples) == 13


@pytest.mark.parametrize("source", ["hf:org/photos/large", "all.parquet"])
def test_nothing_is_fetched_or_unpacked_for_the_files_of_a_run(tmp_path, folder, hub, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    for file in (hub.root / "large" / "train" / "0000.parquet", tmp_path / "all.parquet"):
        parquet(file, rows_of(folder / "train"))
    with untrusted_run(), pytest.raises(DataError, match="only the files of a run say to put it there"):
        read_source(source, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_name_of_the_hub_is_no_path(tmp_path):
    with pytest.raises(DataError, match="expected hf:ORG/NAME"):
        read_source("hf:../..", tmp_path)
