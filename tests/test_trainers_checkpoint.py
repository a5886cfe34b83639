"""The file of a checkpoint: its content, its seal, and what is refused in its place."""

import hashlib
import pickle
import zipfile

import pytest
import torch
from full_disk import full_disk
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from common.errors import CheckpointError
from trainers.storage.checkpoint_file import read_checkpoint, seal_of, write_checkpoint
from trainers.storage.run_folder import RunFolder
from vit.tensor_files import write_tree

CONTENT = {
    "model": {"w": torch.ones(100)},
    "format_version": 3,
    "class_names": ["ant", "bee"],
    "image_spec": {"image_size": 8},
    "config": {"model": {}},
}


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "checkpoints" / "step_5.safetensors"
    write_checkpoint(path, CONTENT)
    return path


def test_checkpoint_comes_back_with_its_hash(saved):
    with safe_open(saved, "pt") as file:
        seal = file.metadata()["sha256"]
    assert hashlib.sha256(saved.read_bytes().replace(seal.encode(), b"0" * 64)).hexdigest() == seal
    found = read_checkpoint(saved)
    assert torch.equal(found["model"].pop("w"), torch.ones(100))
    assert found == CONTENT | {"model": {}, "sha256": seal}
    assert seal_of(saved) == seal


def test_checkpoints_are_listed_newest_first(saved):
    names = ["step_100", "step_9", "best", "step_7_old", "best_1234abcd", "step_x"]
    for name in names:
        (saved.parent / f"{name}.safetensors").touch()
    (saved.parent / "step_12.safetensors").mkdir()
    (saved.parent / ".step_8.safetensors.1.tmp.safetensors").touch()
    run = RunFolder(saved.parent.parent)
    assert [path.stem for path in run.checkpoints("step")] == ["step_100", "step_9", "step_5"]
    assert [path.stem for path in run.checkpoints("best")] == ["best"]


def test_full_disk_is_named_and_leaves_old_files(saved):
    for name in ("step_5", "step_6"):
        with full_disk(512), pytest.raises(OSError, match=rf"File too large.*{name}\.safetensors"):
            write_checkpoint(saved.with_stem(name), CONTENT)
    assert list(saved.parent.iterdir()) == [saved]
    read_checkpoint(saved)


def test_flipped_bit_and_lost_seal_are_noticed(saved):
    data = bytearray(saved.read_bytes())
    data[len(data) // 2] ^= 1
    saved.write_bytes(data)
    for read in (read_checkpoint, seal_of):
        with pytest.raises(CheckpointError, match="SHA-256"):
            read(saved)
    write_checkpoint(saved, CONTENT)
    with safe_open(saved, "pt") as file:
        metadata = {name: text for name, text in file.metadata().items() if name != "sha256"}
    save_file(load_file(saved), saved, metadata=metadata)
    with pytest.raises(CheckpointError, match="sha256"):
        read_checkpoint(saved)
    with pytest.raises(CheckpointError, match="SHA-256"):
        seal_of(saved)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "safetensors"),
        (b"text, not weights", "safetensors"),
        ({"weights": torch.ones(1)}, "model is None"),
        (CONTENT | {"class_names": []}, "class_names"),
        (CONTENT | {"format_version": 1}, "format 1"),
        (CONTENT | {"format_version": 99}, "format 99"),
    ],
)
def test_what_is_no_checkpoint_is_refused_in_one_line(tmp_path, content, message):
    path = tmp_path / "some.safetensors"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        with path.open("wb") as file:
            write_tree(file, content)
    with pytest.raises(CheckpointError, match=message) as error:
        read_checkpoint(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


class Malicious:
    ran = False

    def __reduce__(self):
        return (setattr, (Malicious, "ran", True))


def test_a_pickle_with_code_inside_runs_nothing(tmp_path):
    for name in ("bare", "zip"):
        path = tmp_path / f"{name}.pt"
        path.write_bytes(pickle.dumps(Malicious()))
        if name == "zip":
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("evil/data.pkl", pickle.dumps(Malicious()))
        with pytest.raises(CheckpointError):
            read_checkpoint(path)
    assert not Malicious.ran
