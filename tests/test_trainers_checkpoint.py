import hashlib
import io
import pickle
import zipfile

import pytest
import torch
from ignite.engine import Engine
from ignite.handlers import Checkpoint
from safetensors import safe_open
from test_common_files import full_disk
from torch import nn

from common.errors import CheckpointError
from trainers.storage.checkpoint_file import CheckpointWriter, StateValue, checkpoints, read_checkpoint
from vit.tensor_files import write_tree


def content(value=1.0):
    return {"model": {"w": torch.full((100,), value)}, "format_version": 3}


@pytest.fixture
def saved(tmp_path):
    CheckpointWriter(tmp_path, keep=2)(content(), "step_5.pt")
    return checkpoints(tmp_path, "step")[0]


def test_the_name_and_the_file_carry_the_hash_of_the_bytes(saved):
    with safe_open(saved, "pt") as file:
        seal = file.metadata()["sha256"]
    assert saved.name == f"step_5_{seal[:8]}.safetensors"
    assert hashlib.sha256(saved.read_bytes().replace(seal.encode(), b"0" * 64)).hexdigest() == seal
    assert torch.equal(read_checkpoint(saved)["model"]["w"], torch.ones(100))


def test_the_same_state_gives_the_same_file(tmp_path):
    for folder in ("a", "b"):
        CheckpointWriter(tmp_path / folder, keep=1)(content(), "best.pt")
    assert checkpoints(tmp_path / "a", "best")[0].name == checkpoints(tmp_path / "b", "best")[0].name


def test_only_the_newest_of_a_kind_are_kept(tmp_path):
    steps, best = CheckpointWriter(tmp_path, keep=2), CheckpointWriter(tmp_path, keep=1)
    for step in (5, 10, 100):
        steps(content(step), f"step_{step}.pt")
        best(content(step), "best.pt")
    assert [path.name.split("_")[1] for path in checkpoints(tmp_path, "step")] == ["100", "10"]
    assert len(checkpoints(tmp_path, "best")) == 1
    assert read_checkpoint(checkpoints(tmp_path, "best")[0])["model"]["w"][0] == 100
    assert len(list(tmp_path.iterdir())) == 3


def test_a_full_disk_is_named_and_leaves_the_old_files_and_no_half_one(saved):
    with full_disk(512), pytest.raises(OSError, match="checkpoint step_6 could not be written to .*: .*File too large"):
        CheckpointWriter(saved.parent, keep=1)(content(), "step_6.pt")
    assert list(saved.parent.iterdir()) == [saved]
    read_checkpoint(saved)


def test_a_flipped_bit_is_noticed(saved):
    data = bytearray(saved.read_bytes())
    data[len(data) // 2] ^= 1
    saved.write_bytes(data)
    with pytest.raises(CheckpointError, match="damaged: its SHA-256 was"):
        read_checkpoint(saved)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: b"", "not a readable safetensors file"),
        (lambda: b"text, not weights", "not a readable safetensors file"),
        (lambda: tree_bytes({"weights": torch.ones(1)}), "is not a checkpoint of this application"),
        (
            lambda: tree_bytes({"model": {}, "format_version": 99}),
            "format 99; this one reads format 3",
        ),
    ],
)
def test_what_is_no_checkpoint_is_refused_in_one_line(tmp_path, make, message):
    path = tmp_path / "some.safetensors"
    path.write_bytes(make())
    with pytest.raises(CheckpointError, match=message) as error:
        read_checkpoint(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


def tree_bytes(data):
    buffer = io.BytesIO()
    write_tree(buffer, data)
    return buffer.getvalue()


class Malicious:
    ran = False

    def __reduce__(self):
        return (setattr, (Malicious, "ran", True))


@pytest.mark.parametrize("wrap", ["bare", "zip"])
def test_a_pickle_with_code_inside_runs_nothing(tmp_path, wrap):
    path = tmp_path / "evil.pt"
    if wrap == "bare":
        path.write_bytes(pickle.dumps(Malicious()))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("evil/data.pkl", pickle.dumps(Malicious()))
            archive.writestr("evil/version", "3")
    with pytest.raises(CheckpointError):
        read_checkpoint(path)
    assert not Malicious.ran


def test_ignites_checkpoint_saves_through_the_writer(tmp_path):
    model, engine = nn.Linear(2, 2), Engine(lambda engine, batch: None)
    handler = Checkpoint(
        {"model": model, "format_version": StateValue(3), "class_names": StateValue(["ant", "bee"])},
        CheckpointWriter(tmp_path, keep=2),
        filename_pattern="step_{global_step}",
        n_saved=None,
    )
    for step in (1, 2, 3):
        engine.state.iteration = step
        handler(engine)
    newest = checkpoints(tmp_path, "step")
    assert [path.name.split("_")[1] for path in newest] == ["3", "2"]
    loaded = read_checkpoint(newest[0])
    assert loaded["class_names"] == ["ant", "bee"]
    assert torch.equal(loaded["model"]["weight"], model.weight)
