"""Read and write tensors and JSON as safetensors, sealed with the SHA-256 of the file."""

import hashlib
import json
import mmap
import os
import re
from collections.abc import Mapping
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from common.errors import WeightsError

SEAL, BLANK = "sha256", "0" * 64
"""Key of a file's SHA-256 in its metadata, and the value there while the hash is computed."""
_SEALED = re.compile(rb'(?:"sha256":\s*"|\n\x06sha256\x12\x40)([0-9a-f]{64})')  # JSON; an entry of ONNX
_ENDS = 2**24  # bytes at the start of a file and at its end, which hold the metadata
_POINTER = b"version https://git-lfs"
_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e4m3fnuz: "F8_E4M3FNUZ", torch.float8_e5m2: "F8_E5M2",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
}  # fmt: skip


def write_tree(file: BinaryIO, tree: Mapping[str, Any]) -> str:
    """Write what JSON can say, and tensors in it; return the seal. Tuples come back as lists, keys as strings.

    Each key of `tree`, which has no dot, is one of the file's metadata; tensors of a state dict keep their names.

    Raises WeightsError: as `write_tensors`. TypeError: a value that is neither a tensor nor plain data.
    """
    tensors: dict[str, Tensor] = {}

    def aside(value: Any) -> Any:
        if not isinstance(value, Tensor):
            raise TypeError(f"{part}: a {type(value).__name__} is neither a tensor nor plain data")
        name = names.get(id(value), f"{part}/{len(tensors)}")
        assert tensors.get(name, value) is value, f"two tensors named {name}"
        tensors[name] = value
        return {"$tensor": name}

    metadata: dict[str, str] = {}
    for part, value in tree.items():
        names = {id(v): f"{part}.{k}" for k, v in value.items()} if isinstance(value, Mapping) else {}
        metadata[part] = json.dumps(value, default=aside)
    return write_tensors(file, tensors, metadata)


def write_tensors(file: BinaryIO, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Write a safetensors file straight from the memory of its tensors; return its seal.

    Raises WeightsError: a dtype that such files do not have.
    """
    header: dict[str, Any] = {"__metadata__": {SEAL: BLANK, **metadata}}
    ordered = sorted(tensors.items(), key=lambda pair: (-pair[1].element_size(), pair[0]))
    end = 0
    for name, tensor in ordered:
        if tensor.dtype not in _DTYPES:
            raise WeightsError(f"{name}: safetensors files hold no tensors of {tensor.dtype}")
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": [*tensor.shape], "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    for content in chain((len(text).to_bytes(8, "little"), text), (bytes_of(tensor) for _, tensor in ordered)):
        file.write(content)
        digest.update(content)
    file.seek(8 + text.index(BLANK.encode()))
    file.write(digest.hexdigest().encode())
    return digest.hexdigest()


def read_tree(path: Path) -> dict[str, Any]:
    """Read what `write_tree` wrote, with the seal under SEAL. Raises WeightsError: damaged, or another kind of file."""
    return tree_of(path, *read_tensors(path))


def tree_of(path: Path, tensors: Mapping[str, Tensor], described: Mapping[str, str]) -> dict[str, Any]:
    """Return the tree of a file from its tensors and metadata. Raises WeightsError: the metadata are damaged."""

    def put_back(value: dict[str, Any]) -> Any:
        return tensors[value["$tensor"]] if "$tensor" in value else value

    try:
        return {
            name: text if name == SEAL else json.loads(text, object_hook=put_back) for name, text in described.items()
        }
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise WeightsError(f"{path}: its metadata are not readable ({type(error).__name__})") from None


def to_bytes(tree: Mapping[str, Any]) -> bytes:
    """Return the content of the file that `write_tree` would write."""
    write_tree(file := BytesIO(), tree)
    return file.getvalue()


def from_bytes(content: bytes) -> dict[str, Any]:
    """Return what `to_bytes` was given."""
    from safetensors.torch import load

    described = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    return tree_of(Path("message"), load(content), described)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a safetensors file, copied into memory, and its metadata, after verifying its seal.

    Raises WeightsError: damaged, or another kind of file.
    """
    from safetensors import SafetensorError, safe_open

    if os.path.lexists(path) and not path.is_file():
        raise WeightsError(f"{path} is no file")
    require_seal(path)
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name).clone() for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:  # the last: torch cannot open it
        raise WeightsError(f"{path}: not a readable safetensors file ({error})") from None


def require_finite(source: object, tensors: Mapping[str, Any]) -> None:
    """Raise WeightsError for the first of these tensors that holds NaN or an infinite number."""
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.numel():
            wide = tensor.float() if tensor.element_size() == 1 else tensor  # 8 bits have no minimum
            if not torch.stack(wide.aminmax()).isfinite().all():  # a 20th of the time of isfinite
                raise WeightsError(
                    f"{source}: {name} holds numbers that are not finite (NaN, inf), as training that diverged leaves"
                    " them: take weights from before that"
                )


def refuse_pointer(path: Path) -> None:
    """Raise WeightsError for the pointer that Git LFS keeps in place of a missing file."""
    with open(path, "rb") as file:
        if file.read(len(_POINTER)) == _POINTER:
            raise WeightsError(f"{path} is a Git LFS pointer, not the file itself: fetch that with `git lfs pull`")


def seal(path: Path) -> None:
    """Replace BLANK, which the metadata of a file hold under SEAL, by the file's SHA-256."""
    place, _, digest = _seal_of(path)
    with open(path, "r+b") as file:
        file.seek(place)
        file.write(digest.encode())


def require_seal(path: Path) -> str | None:
    """Return the SHA-256 stored in a file, or None. Raises WeightsError: the file's bytes have another."""
    refuse_pointer(path)
    _, says, digest = _seal_of(path)
    if says not in (None, digest):
        raise WeightsError(
            f"{path} was changed since it was written, or is damaged: its SHA-256 was {says[:8]} and is {digest[:8]};"
            " take it anew, or remove `sha256` from its metadata if you trust what changed it"
        )
    return says


def _seal_of(path: Path) -> tuple[int, str | None, str]:
    """Return the place of a file's seal, the seal, and the SHA-256 that it should be."""
    if not path.stat().st_size:
        return 0, None, ""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        match = _SEALED.search(content, 0, _ENDS) or _SEALED.search(content, max(0, len(content) - _ENDS))
        if match is None:
            return 0, None, ""
        digest = hashlib.sha256()
        with memoryview(content) as view, view[: match.start(1)] as before, view[match.end(1) :] as rest:
            for part in (before, BLANK.encode(), rest):
                digest.update(part)
        return match.start(1), match[1].decode(), digest.hexdigest()


def bytes_of(tensor: Tensor) -> Any:
    """Return a view of a tensor's bytes, or a copy if not contiguous on the CPU."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
