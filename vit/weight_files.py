"""Files of weights, whoever wrote them: found, read without ever running what they contain, and recognised.

.safetensors and .npz hold arrays only. What torch pickled, such as a .pth file, is read by vit/torch_files.py.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import torch
from torch import Tensor

from common.errors import WeightsError
from common.image_spec import ImageSpec
from vit.config import WEIGHT_SOURCES
from vit.key_maps import FAMILIES, Family
from vit.tensor_files import read_tensors, refuse_pointer, tree_of
from vit.torch_files import read_torch_file

WRAPPERS = (
    "model", "state_dict", "model_state_dict", "net", "network", "weights", "module", "teacher", "student",
    "target_encoder", "encoder", "model_ema", "state_dict_ema", "ema_state_dict", "ema",
)  # fmt: skip
"""Keys under which trainers keep a network; of several the first is taken, which is said."""
PREFIXES = ("module.", "model.")
_OF_RESNET = "layer4.0.conv1.weight"
_WITHIN = re.compile(r"(?<![^.])(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
"""Parts of a name that torch's wrappers add."""


@dataclass(frozen=True)
class WeightFile:
    """Content of a file of weights, and its demands on the model and its images."""

    path: Path
    held: dict[str, Tensor]
    """Every tensor of the network, and of what its trainer kept beside it."""
    extras: dict[str, Any] = field(default_factory=dict)
    """The plain data that stood beside the tensors: class names, image_spec, ... of our own runs."""
    told_source: str | None = None
    """Library whose parameter names it has, if a person said it."""
    usual_source: str | None = None
    """Library of the model, whose names it has where no family's signature is among them."""
    notes: tuple[str, ...] = ()
    """Lines about choices that reading it took."""

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """The network: what stands below the prefix of the name that tells its family."""
        signatures = (family.signature.pattern for family in FAMILIES.values())
        return self.below("|".join((*signatures, re.escape(_OF_RESNET))))

    def below(self, pattern: str) -> dict[str, Tensor]:
        """Return the tensors below what stands before a name of this pattern, or all. Raises WeightsError: it stands
        below several names."""
        if "image_spec" in self.extras:  # of this program, which keeps nothing beside the network
            return self.held
        found = [re.fullmatch(rf"(|.*?\.)(?:{pattern})", name) for name in self.held]
        prefixes = sorted({match[1] for match in found if match}, key=len) or [""]
        if not all(prefix.startswith(prefixes[0]) for prefix in prefixes):
            raise WeightsError(
                f"{self.path}: holds several networks ({', '.join(prefixes[:4])}); save the one you mean"
            )
        return {
            name.removeprefix(prefixes[0]): tensor for name, tensor in self.held.items() if name.startswith(prefixes[0])
        }

    @cached_property
    def source(self) -> str:
        """Family whose parameter names it has: as told, or the one family whose signature is among the names."""
        if self.told_source is not None:
            if self.told_source not in FAMILIES:
                known = ", ".join(WEIGHT_SOURCES)
                raise WeightsError(f"weights source {self.told_source!r} is unknown; known: {known}")
            return self.told_source
        if self.is_resnet:
            return "torchvision"
        sources = [name for name, family in FAMILIES.items() if any(map(family.signature.fullmatch, self.tensors))]
        if len(sources) == 1:
            return sources[0]
        if not sources and "config" in self.extras:
            return "ours"  # a run of a model of another library
        if not sources and self.usual_source:
            return self.usual_source
        told = f"could be {' or '.join(sources)}" if sources else "no family has them"
        raise WeightsError(
            f"{self.path}: cannot tell whose parameter names these are ({', '.join(list(self.tensors)[:3])}, ...): "
            f"{told}; say it with --weights-source: {', '.join(WEIGHT_SOURCES)}"
        )

    @property
    def family(self) -> Family:
        return FAMILIES[self.source]

    @property
    def is_resnet(self) -> bool:
        return _OF_RESNET in self.tensors

    @property
    def image_spec(self) -> ImageSpec:
        """The preprocessing that the weights expect: recorded by our own runs, else their family's."""
        return self.recorded_spec or self.family.image_spec

    @property
    def recorded_spec(self) -> ImageSpec | None:
        """The preprocessing that our own runs record."""
        recorded = self.extras.get("image_spec")
        if not isinstance(recorded, Mapping):
            return None
        values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in recorded.items()}
        try:
            return ImageSpec(**values)
        except (TypeError, ValueError) as error:
            raise WeightsError(f"{self.path}: its image_spec is not readable ({error})") from None

    @property
    def layer_norm_eps(self) -> float | None:
        """The LayerNorm epsilon that the weights were trained with; None for a ResNet, which has no LayerNorm."""
        config = self.extras.get("config")
        model = config.get("model") if isinstance(config, Mapping) else None
        recorded = model.get("layer_norm_eps") if isinstance(model, Mapping) else None
        return None if self.is_resnet else recorded or self.family.layer_norm_eps or None


def read_weights(path: str | Path, *, source: str | None = None) -> WeightFile:
    """Read a .pth, .pt, .safetensors or .npz file, a run directory (its best weights) or a Hugging Face folder. Raises
    FileNotFoundError: no such file. WeightsError: truncated, not weights, or holding Python objects."""
    path = find_weights(Path(path).expanduser())
    if path.suffix not in READERS:
        raise WeightsError(f"{path}: unknown kind of weights file {path.suffix!r}; known: {', '.join(READERS)}")
    refuse_pointer(path)
    content = READERS[path.suffix](path)
    extras: dict[str, Any] = {}
    notes: list[str] = []
    for _ in WRAPPERS:  # not for ever: a file may hold itself
        wrappers = [name for name in WRAPPERS if _may_hold_network(content.get(name))]
        if not wrappers:
            break
        if len(wrappers) > 1 and "image_spec" not in content:
            notes.append(f"taken: {wrappers[0]} of the file, and not {', '.join(wrappers[1:])}")
        extras |= {key: value for key, value in content.items() if key != wrappers[0]}
        content = content[wrappers[0]]
    tensors = {_WITHIN.sub("", str(key)): value for key, value in content.items() if isinstance(value, Tensor)}
    if READERS[path.suffix] is _read_torch:
        tensors = {name: _in_memory(tensor, name, path) for name, tensor in tensors.items()}
    if not tensors:
        raise WeightsError(
            f"{path}: no tensors found; expected a state dict, found keys {', '.join(map(str, content))[:80]}"
        )
    return WeightFile(path, strip_prefixes(tensors), extras, source, notes=tuple(notes))


def _may_hold_network(value: Any) -> bool:
    return isinstance(value, Mapping) and any(isinstance(part, Tensor | Mapping) for part in value.values())


def find_weights(path: Path) -> Path:
    """The weights file a path means: itself, the best checkpoint of a run, or the file of a Hugging Face folder."""
    if path.is_dir():
        names = ("model.safetensors", "pytorch_model.bin")
        candidates = [*sorted((path / "checkpoints").glob("best_*")), *(path / name for name in names)]
        weights = next((file for file in candidates if file.is_file() and file.suffix in READERS), None)
        if weights is None:
            raise FileNotFoundError(f"{path}: a folder without checkpoints/best_* (a run), {' or '.join(names)}")
        return weights
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such weights file")
    return path


def strip_prefixes(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Drop `module.` (DDP) and `model.` (Lightning) where every name carries it."""
    stripped = dict(tensors)
    while prefix := next((p for p in PREFIXES if all(name.startswith(p) for name in stripped)), None):
        stripped = {name.removeprefix(prefix): tensor for name, tensor in stripped.items()}
    return stripped


def _read_torch(path: Path) -> dict[str, Any]:
    content = read_torch_file(path)
    if not isinstance(content, Mapping):
        raise WeightsError(f"{path}: holds a {type(content).__name__}; expected a state dict")
    return dict(content)


def _in_memory(tensor: Tensor, name: str, path: Path) -> Tensor:
    """Copy a tensor that lies in a mapped file, which another program may write anew."""
    if tensor.numel() * tensor.element_size() > path.stat().st_size:  # a view that repeats a few numbers
        raise WeightsError(f"{path}: {name} takes more memory than such a file should")
    return tensor.detach().clone()


def _read_safetensors(path: Path) -> dict[str, Any]:
    tensors, described = read_tensors(path)
    if "format_version" in described:  # a checkpoint of ours
        return tree_of(path, tensors, described)
    if "image_spec" not in described:
        return dict(tensors)
    try:  # our own exports say how images are prepared, what the classes are, and which model it is
        extras = {name: json.loads(described[name]) for name in ("class_names", "image_spec", "config")}
        extras |= {name: described[name] for name in ("seen", "answers") if name in described}
    except (ValueError, KeyError, RecursionError) as error:
        raise WeightsError(f"{path}: its metadata are not readable ({type(error).__name__})") from None
    return {**extras, "model": tensors}


def _read_npz(path: Path) -> dict[str, Any]:
    try:
        # Opened here, because np.load leaves a truncated archive open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {name: torch.from_numpy(np.array(arrays[name])) for name in arrays.files if arrays[name].ndim}
    except Exception as error:  # numpy parses the header of an array as Python's own syntax
        reason = "it holds Python objects, which are not opened" if "pickle" in str(error).lower() else "truncated?"
        raise WeightsError(f"{path}: not a readable .npz file of arrays ({reason})") from None


READERS = {
    ".safetensors": _read_safetensors,
    ".npz": _read_npz,
    **dict.fromkeys((".pth", ".pt", ".bin", ".ckpt", ".tar"), _read_torch),
}


def fetch(url: str, *, megabytes: float) -> Path:
    """The file behind `url` in torch's cache ($TORCH_HOME/hub/checkpoints), downloaded once and checked each time.

    The name carries the first digits of the SHA-256 (`vit_b_16-c867db91.pth`): torch checks them while downloading but
    not when the file is there already, as after a copy by hand. Raises WeightsError: no network, or a file with other
    contents.
    """
    name = url.rsplit("/", 1)[-1]
    digits = name.rsplit("-", 1)[-1].split(".")[0]
    path = Path(torch.hub.get_dir()) / "checkpoints" / name
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            torch.hub.download_url_to_file(url, str(path), digits)
        except (URLError, OSError, RuntimeError) as error:
            raise WeightsError(
                f"cannot download {name} ({getattr(error, 'reason', error)}); "
                f"fetch {url} ({megabytes:.0f} MB) and put it at {path}"
            ) from None
    require_digest(path, digits, remedy=f"delete it and fetch {url}")
    return path


def require_digest(path: Path, digits: str, *, remedy: str) -> None:
    """Refuse a file whose SHA-256 does not begin with `digits`."""
    digest = _sha256(path, path.stat().st_mtime_ns)
    if not digest.startswith(digits):
        raise WeightsError(
            f"{path}: SHA-256 begins with {digest[:8]}, expected {digits[:8]}: truncated or another file; {remedy}"
        )


@lru_cache
def _sha256(path: Path, modified: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
