"""Find, read and recognise files of weights of any source, without running code in them.

.safetensors and .npz hold arrays only. What torch pickled, such as a .pth file, is read by vit/torch_files.py.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from common.errors import WeightsError
from common.image_spec import ImageSpec
from vit.hub import spec_of_processor
from vit.key_maps import FAMILIES, Family
from vit.tensor_files import read_tensors, refuse_pointer, require_finite, tree_of
from vit.torch_files import read_torch_file

WRAPPERS = (
    "model", "state_dict", "model_state_dict", "net", "network", "weights", "module", "teacher", "student",
    "target_encoder", "encoder", "model_ema", "state_dict_ema", "ema_state_dict", "ema",
)  # fmt: skip
"""Keys under which trainers keep a network, in order of preference."""
MOST_TIMES, FREE_BYTES = 10, 64 * 2**20
"""Times its size to which an .npz file may unpack, and bytes that always may: weights hardly shrink."""
OF_THE_HUB = ("model.safetensors", "pytorch_model.bin")
"""Files with the weights of a Hugging Face folder."""
_WITHIN = re.compile(r"(?<![^.])(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
"""Parts of a name that torch's wrappers add."""


@dataclass(frozen=True)
class WeightFile:
    """Hold the content of a file of weights."""

    path: Path
    held: dict[str, Tensor]
    """Tensors of the network, and others that its trainer kept with it."""
    extras: dict[str, Any] = field(default_factory=dict)
    """Everything else in the file: class_names, image_spec, ... of our own runs."""
    notes: tuple[str, ...] = ()
    """Lines about choices made while reading."""

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Return the network under the names of its family."""
        return self.below("|".join(family.signature.pattern for family in FAMILIES.values()))

    def below(self, pattern: str) -> dict[str, Tensor]:
        """Return the tensors whose prefix a name of this pattern has, without that prefix.

        Without such a name: all, without the prefix that they share. Raises WeightsError: several such prefixes."""
        if self.ours:  # one network, without a prefix
            return self.held
        found = (re.fullmatch(rf"(|.*?\.)(?:{pattern})", name) for name in self.held)
        prefixes = sorted({match[1] for match in found if match}, key=len)
        if not prefixes:
            shared = os.path.commonprefix([*self.held])  # noqa: RUF071 (names, no paths)
            prefixes = [shared[: shared.rfind(".") + 1]]
        if not all(prefix.startswith(prefixes[0]) for prefix in prefixes):
            raise WeightsError(
                f"{self.path}: holds several networks ({', '.join(prefixes[:4])}); save the one you mean"
            )
        start = len(prefixes[0])
        return {name[start:]: tensor for name, tensor in self.held.items() if name.startswith(prefixes[0])}

    @cached_property
    def source(self) -> str:
        """Return the family whose signature is among the names; else ours for a run, timm otherwise."""
        signed = (name for name, family in FAMILIES.items() if any(map(family.signature.fullmatch, self.tensors)))
        return next(signed, "ours" if self.ours else "timm")

    @property
    def ours(self) -> bool:
        """Return whether a run or an export of ours wrote it.

        Others' files may have class_names and a config, too."""
        return "image_spec" in self.extras

    @property
    def family(self) -> Family:
        return FAMILIES[self.source]

    @property
    def image_spec(self) -> ImageSpec:
        """Return the preprocessing that is recorded with it, else the usual one of its family.

        Raises WeightsError: it is damaged."""
        if "preprocessor_config" not in self.extras:
            return self.recorded_spec or self.family.image_spec
        with damage_named(self.path.with_name("preprocessor_config.json")):
            return spec_of_processor(self.extras["preprocessor_config"])

    @property
    def recorded_spec(self) -> ImageSpec | None:
        """Return the preprocessing that our own runs record. Raises WeightsError: it is damaged."""
        recorded = _mapping(self.extras.get("image_spec"))
        values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in recorded.items()}
        try:
            return ImageSpec(**values) if values else None
        except (TypeError, ValueError) as error:
            raise WeightsError(f"{self.path}: its image_spec is not readable ({error})") from None

    @property
    def layer_norm_eps(self) -> float | None:
        """Return the epsilon of its LayerNorms; None for a network without them."""
        recorded = _mapping(_mapping(self.extras.get("config")).get("model")) or self.extras.get("config_of_hub", {})
        return recorded.get("layer_norm_eps") or self.family.layer_norm_eps or None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def read_weights(path: str | Path) -> WeightFile:
    """Read a file of weights, the best of a run directory, or a Hugging Face folder.

    Raises FileNotFoundError: no such file. WeightsError: truncated, not weights, not finite, or Python objects.
    """
    path = find_weights(Path(os.path.expanduser(path)))
    if path.suffix not in READERS:
        raise WeightsError(f"{path}: unknown kind of weights file {path.suffix!r}; known: {', '.join(READERS)}")
    refuse_pointer(path)
    content = READERS[path.suffix](path)
    extras: dict[str, Any] = {}
    notes: list[str] = []
    for _ in WRAPPERS:  # a limit: a file may hold itself
        wrappers = [name for name in WRAPPERS if _may_hold_network(content.get(name))]
        if not wrappers:
            break
        if len(wrappers) > 1 and "image_spec" not in content:
            notes.append(f"taken: {wrappers[0]} of the file, and not {', '.join(wrappers[1:])}")
        extras |= {key: value for key, value in content.items() if key != wrappers[0]}
        content = content[wrappers[0]]
    if path.name in OF_THE_HUB:
        extras |= _of_the_hub(path)
    tensors = {_WITHIN.sub("", str(key)): value for key, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        raise WeightsError(
            f"{path}: no tensors found; expected a state dict, found keys {', '.join(map(str, content))[:80]}"
        )
    if READERS[path.suffix] is read_torch_file:  # they lie in a mapped file, which another program may write anew
        size = path.stat().st_size
        for name, tensor in tensors.items():
            if tensor.numel() * tensor.element_size() > size:  # a view that repeats a few numbers
                raise WeightsError(f"{path}: {name} takes more memory than the file")
            tensors[name] = tensor.detach().clone()
    require_finite(path, tensors)
    return WeightFile(path, tensors, extras, tuple(notes))


def _of_the_hub(path: Path) -> dict[str, Any]:
    """Read what a Hugging Face folder says of its weights. Raises WeightsError: a file of it is damaged."""
    found = {}
    for key, name in (("config_of_hub", "config.json"), ("preprocessor_config", "preprocessor_config.json")):
        file = path.with_name(name)
        if file.is_file():
            with damage_named(file):
                found[key] = dict(json.loads(file.read_text(encoding="utf-8")))
    return found


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Re-raise what is wrong with the contents of a file of JSON as WeightsError."""
    try:
        yield
    except (TypeError, ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is not readable ({error})") from None


def _may_hold_network(value: Any) -> bool:
    return any(isinstance(part, Tensor | Mapping) for part in _mapping(value).values())


def find_weights(path: Path) -> Path:
    """Find a file of weights, the best of a run, or that of a Hugging Face folder.

    Raises FileNotFoundError."""
    if path.is_dir():
        candidates = [path / name for name in ("checkpoints/best.safetensors", *OF_THE_HUB)]
        weights = next((file for file in candidates if file.is_file() and file.suffix in READERS), None)
        if weights is None:
            cut = [name for name in OF_THE_HUB if (path / f"{name}.index.json").is_file()]
            hint = f"; {cut[0]} is cut into parts there, which hf:{path} reads" if cut else ""
            raise FileNotFoundError(
                f"{path}: a folder without checkpoints/best.safetensors (a run), {' or '.join(OF_THE_HUB)}{hint}"
            )
        return weights
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such weights file")
    return path


def _read_safetensors(path: Path) -> dict[str, Any]:
    tensors, described = read_tensors(path)
    if "format_version" in described:  # a checkpoint of ours
        return tree_of(path, tensors, described)
    if "image_spec" not in described:
        return dict(tensors)
    try:  # an export of ours
        extras = {name: json.loads(described[name]) for name in ("class_names", "image_spec", "config")}
    except (ValueError, KeyError, RecursionError) as error:
        raise WeightsError(f"{path}: its metadata are not readable ({type(error).__name__})") from None
    answers = {"answers": described["answers"]} if "answers" in described else {}
    return extras | answers | {"model": tensors}


def _read_npz(path: Path) -> dict[str, Any]:
    try:
        # Opened here, because np.load leaves a truncated archive open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            unpacked = sum(member.file_size for member in arrays.zip.infolist())
            if unpacked > max(FREE_BYTES, MOST_TIMES * path.stat().st_size):
                raise WeightsError(f"{path}: would unpack to {unpacked:,} bytes, over {MOST_TIMES} times its size")
            read = ((name, np.array(arrays[name])) for name in arrays.files)
            return {name: torch.from_numpy(array) for name, array in read if array.ndim}
    except WeightsError:
        raise
    except Exception as error:  # numpy parses the header of an array as Python's own syntax
        reason = "it holds Python objects, which are not opened" if "pickle" in str(error).lower() else "truncated?"
        raise WeightsError(f"{path}: not a readable .npz file of arrays ({reason})") from None


READERS = {
    ".safetensors": _read_safetensors,
    ".npz": _read_npz,
    **dict.fromkeys((".pth", ".pt", ".bin", ".ckpt", ".tar"), read_torch_file),
}


def require_digest(path: Path, digits: str, *, remedy: str) -> None:
    """Raise WeightsError for a file whose SHA-256 does not begin with `digits`."""
    digest = _sha256(path, path.stat().st_mtime_ns)
    if not digest.startswith(digits):
        raise WeightsError(
            f"{path}: SHA-256 begins with {digest[:8]}, expected {digits[:8]}: truncated or another file; {remedy}"
        )


@lru_cache
def _sha256(path: Path, modified: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
