"""Sets of Hugging Face's hub by name, from a folder that stands for the hub."""

import shutil
import sys
from types import SimpleNamespace

import pytest
from fake_sets import parquet
from small_images import image_folder

from common.errors import DataError, MissingPackage
from common.files import NO_DOWNLOADS
from datasets.sources.own_data import read_source


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


@pytest.fixture
def folder(tmp_path):
    return image_folder(tmp_path / "pets", train=(7, 6), val=(4, 5))


def fill(root, folder, subset):
    for split in ("train", "val"):
        rows = [(file.read_bytes(), file.name, file.parent.name) for file in sorted((folder / split).glob("*/*"))]
        parquet(root / subset / {"val": "validation"}.get(split, split) / "0000.parquet", rows)


def test_a_set_of_the_hub_is_the_set_that_was_put_there_and_is_fetched_once(tmp_path, folder, hub):
    fill(hub.root, folder, "default")
    hub.missing.append("validation")
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
        fill(hub.root, folder, subset)
    for source in ("hf:org/photos", "hf:org/photos/tiny"):
        with pytest.raises(DataError, match=r"name one of its subsets, hf:org/photos/SUBSET; it has 'large', 'small'$"):
            read_source(source, tmp_path)
    assert len(read_source("hf:org/photos/small", tmp_path).samples) == len(read_source(str(folder), tmp_path).samples)
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
