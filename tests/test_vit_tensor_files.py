"""Our own files of tensors: what is written is read, by us and by the library; a flipped bit is noticed."""

import argparse
import io
import json
import math
import tracemalloc
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from common.errors import WeightsError
from vit.tensor_files import BLANK, read_tensors, read_tree, require_seal, seal, write_tree
from vit.torch_files import PLAIN, read_torch_file
from vit.weight_files import read_weights


def same(left, right) -> bool:
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and (left == right or (left != left and right != right))


def optimizer_state():
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1 / 3)
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    return optimizer.state_dict()


@pytest.mark.parametrize(
    "tree",
    [
        {"a": [1, -2.5, 1 / 3, math.inf, math.nan, True, None, "é\udcff\x1b"], "b": {}, "c": [[], [[1]]]},
        {"odd": [torch.tensor(7.0), torch.zeros(0, 3), torch.randn(3, 4).T, torch.randn(2, 3, 4)[:, 1]]},
        {"optimizer": {"state": [optimizer_state()["state"][0]]}},
        {},
    ],
)
def test_what_is_written_is_read_bit_for_bit(tmp_path, tree):
    path = tmp_path / "tree.safetensors"
    with path.open("wb") as file:
        digest = write_tree(file, tree)
    assert require_seal(path) == digest
    back = read_tree(path)
    assert back.pop("sha256") == digest
    assert same(tree, back)
    assert len(load(path.read_bytes())) == sum(isinstance(x, torch.Tensor) for x in leaves(tree))


def leaves(tree):
    if isinstance(tree, dict | list | tuple):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves(item)
    else:
        yield tree


KINDS = [
    "bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32",
    "float64", "complex64", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_dtype_is_read_bit_for_bit(tmp_path, kind):
    dtype = getattr(torch, kind)
    numbers = torch.arange(24, dtype=torch.uint8).clamp(max=1 if kind == "bool" else 24).view(dtype)
    torch.save({"model": {"w": numbers}}, tmp_path / "a.pth")
    with (tmp_path / "a.safetensors").open("wb") as file:
        write_tree(file, {"model": {"w": numbers}})
    for back in (read_tree(tmp_path / "a.safetensors"), read_torch_file(tmp_path / "a.pth")):
        tensor = back["model"]["w"]
        assert (tensor.dtype, bytes(tensor.view(torch.uint8).numpy())) == (dtype, bytes(numbers.view(torch.uint8)))


def test_what_is_neither_a_tensor_nor_json_is_not_written():
    for thing in (object(), np.ones(1), Path("x"), {1}):
        with pytest.raises(TypeError, match="neither a tensor nor plain data"):
            write_tree(io.BytesIO(), {"model": {"x": [thing]}})


def test_numbers_that_no_such_file_holds_are_named():
    content = {"rope": {"freqs": torch.ones(2, dtype=torch.complex128)}}
    with pytest.raises(WeightsError, match="^rope.freqs: .*complex128"):
        write_tree(io.BytesIO(), content)


def test_shared_tensor_is_written_once(tmp_path):
    shared = torch.randn(100)
    with (tmp_path / "a").open("wb") as file:
        write_tree(file, {"model": {"a": shared, "b": shared}})
    back = read_tree(tmp_path / "a")["model"]
    assert torch.equal(back["a"], back["b"])
    assert (tmp_path / "a").stat().st_size < 1000


def test_every_flipped_bit_of_a_sealed_file_is_noticed(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(save({"w": torch.randn(4)}, metadata={"sha256": BLANK}))
    seal(path)
    whole = path.read_bytes()
    for place in range(0, len(whole) * 8, 5):
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        with suppress(WeightsError):
            assert require_seal(path) is None  # the bit was in the word sha256, or beside it
            assert damaged[-16:] == whole[-16:]


@pytest.mark.parametrize("key", ["dataset_sha256", "sha256_of_data", "sha256"])
@pytest.mark.parametrize("blank", [False, True])
def test_seal_is_the_metadata_of_its_own_name(tmp_path, key, blank):
    path = tmp_path / "a.safetensors"
    content = save({"w": torch.randn(4)}, metadata={key: "0" * 63 + "1"})
    path.write_bytes(content)
    if blank:
        length = int.from_bytes(content[:8], "little")
        header = json.dumps(json.loads(content[8 : 8 + length])).encode()
        header += b" " * (-len(header) % 8)
        path.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + length :])
    if key == "sha256":
        with pytest.raises(WeightsError, match="changed since it was written"):
            read_tensors(path)
    else:
        assert read_tensors(path)[0]["w"].shape == (4,)


def test_require_seal_copies_no_part_of_the_file(tmp_path):
    path = tmp_path / "a.onnx"
    path.write_bytes(bytes(2**26) + b"\n\x06sha256\x12\x40" + BLANK.encode())
    tracemalloc.start()
    seal(path)
    assert require_seal(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**24


def torch_file(path, content, **options):
    torch.save(content, path, **options)
    return path


def test_a_flipped_bit_of_a_torch_file_is_noticed(tmp_path):
    path = torch_file(tmp_path / "a.pth", {"w": torch.full((1000,), 7.0)})
    data = bytearray(path.read_bytes())
    data[data.index(torch.full((8,), 7.0).numpy().tobytes()) + 2000] ^= 1
    path.write_bytes(data)
    with pytest.raises(WeightsError, match="damaged: the checksum of .*data/0 in it does not match"):
        read_torch_file(path)


class Made:
    """An object of a class that no other program knows."""


@pytest.mark.parametrize("zipped", [True, False])
def test_torch_file_is_read_with_its_plain_data(tmp_path, zipped):
    content = {
        "model": optimizer_state(),
        "args": argparse.Namespace(lr=0.1, output_dir=Path("/x/y")),
        "numbers": [np.float64(0.9), np.float32(0.5), np.int64(3), np.bool_(True), np.str_("é")],
        "mean": np.array([[0.1, 0.2]]),
        "size": torch.Size([2]),
    }
    back = read_torch_file(torch_file(tmp_path / "a.pth", content, _use_new_zipfile_serialization=zipped))
    assert (back["args"].lr, str(back["args"].output_dir)) == (0.1, "/x/y")
    assert back["numbers"] == content["numbers"]
    assert (back["mean"] == content["mean"]).all()
    assert back["size"] == content["size"]
    assert torch.equal(back["model"]["state"][0]["exp_avg"], content["model"]["state"][0]["exp_avg"])


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    "thing",
    [Made(), np.array([Made()], dtype=object), print, Made],
    ids=["object", "array of objects", "function", "class"],
)
def test_objects_in_a_torch_file_are_named_and_not_made(tmp_path, zipped, thing):
    path = torch_file(tmp_path / "a.pth", {"w": torch.ones(2), "x": thing}, _use_new_zipfile_serialization=zipped)
    with pytest.raises(WeightsError, match="not run|not a readable"):
        read_torch_file(path)


def test_torch_file_makes_plain_classes_alone():
    made = [entry if isinstance(entry, type) else entry[0] for entry in PLAIN]
    assert {thing.__module__.partition(".")[0] for thing in made} == {"argparse", "numpy", "pathlib"}


def test_a_name_of_another_python_or_numpy_is_read(tmp_path):
    path = torch_file(
        tmp_path / "a.pth", {"at": Path("/x"), "best": np.float64(0.9)}, _use_new_zipfile_serialization=False
    )
    for old, new in (
        (b"numpy._core.multiarray", b"numpy.core.multiarray"),
        (b"cpathlib\nPosixPath", b"cpathlib._local\nPosixPath"),
    ):
        path.write_bytes(path.read_bytes().replace(old, new))
    assert read_torch_file(path)["best"] == 0.9


def test_a_small_torch_file_cannot_take_much_memory(tmp_path):
    path = torch_file(tmp_path / "bomb.pth", {"w": torch.zeros(1).expand(2**40)})
    assert path.stat().st_size < 2000
    with pytest.raises(WeightsError, match="memory"):
        read_weights(path)


def test_a_file_that_holds_itself_is_read_to_an_end(tmp_path):
    content = {"epoch": 3}
    content["model"] = content
    with pytest.raises(WeightsError, match="no tensors found"):
        read_weights(torch_file(tmp_path / "a.pth", content))


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".ckpt", ".npz", ".pth.tar"])
def test_pointer_of_git_lfs_is_named(tmp_path, suffix):
    path = tmp_path / f"w{suffix}"
    path.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 1234\n")
    readers = [read_weights] if suffix != ".safetensors" else [read_weights, read_tree]
    for read in readers:
        with pytest.raises(WeightsError, match="Git LFS pointer"):
            read(path)
