"""Files of weights, whoever wrote them: found, read without ever running what they contain, and recognised.

.safetensors and .npz hold arrays only. What torch pickled, a .pth or .pt file, is read by vit/torch_files.py.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import torch
from torch import Tensor

from vit.config import WEIGHT_SOURCES, ImageSpec
from vit.errors import WeightsError
from vit.key_maps import FAMILIES, Family
from vit.tensor_files import read_tensors, tree_of
from vit.torch_files import read_torch_file

WRAPPERS = ("model", "state_dict", "model_state_dict", "model_ema", "module")
PREFIXES = ("module.", "_orig_mod.", "model.")


@dataclass(frozen=True)
class WeightFile:
    """Content of a file of weights, and its demands on the model and its images."""

    path: Path
    tensors: dict[str, Tensor]
    extras: dict[str, Any] = field(default_factory=dict)
    """The plain data that stood beside the tensors: class names, image_spec, ... of our own runs."""
    told_source: str | None = None
    """Library whose parameter names it has, if a person said it."""

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
        return "layer4.0.conv1.weight" in self.tensors

    @property
    def image_spec(self) -> ImageSpec:
        """The preprocessing that the weights expect: recorded by our own runs, else their family's."""
        recorded = self.extras.get("image_spec")
        if not isinstance(recorded, Mapping):
            return self.family.image_spec
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
    content = READERS[path.suffix](path)
    extras: dict[str, Any] = {}
    while (wrapper := next((w for w in WRAPPERS if isinstance(content.get(w), Mapping)), None)) is not None:
        extras |= {key: value for key, value in content.items() if key != wrapper}
        content = content[wrapper]
    tensors = {str(key): value for key, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        raise WeightsError(
            f"{path}: no tensors found; expected a state dict, found keys {', '.join(map(str, content))[:80]}"
        )
    return WeightFile(path, strip_prefixes(tensors), extras, source)


def find_weights(path: Path) -> Path:
    """The weights file a path means: itself, the best checkpoint of a run, or `model.safetensors` of a folder."""
    if path.is_dir():
        candidates = [*sorted((path / "checkpoints").glob("best_*")), path / "model.safetensors"]
        weights = next((file for file in candidates if file.is_file() and file.suffix in READERS), None)
        if weights is None:
            raise FileNotFoundError(f"{path}: a folder without checkpoints/best_* (a run) or model.safetensors")
        return weights
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such weights file")
    return path


def strip_prefixes(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Drop `module.` (DDP), `_orig_mod.` (torch.compile) and `model.` (Lightning) where every name carries it."""
    stripped = dict(tensors)
    while prefix := next((p for p in PREFIXES if all(name.startswith(p) for name in stripped)), None):
        stripped = {name.removeprefix(prefix): tensor for name, tensor in stripped.items()}
    return stripped


def _read_torch(path: Path) -> dict[str, Any]:
    content = read_torch_file(path)
    if not isinstance(content, Mapping):
        raise WeightsError(f"{path}: holds a {type(content).__name__}; expected a state dict")
    return dict(content)


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
    **dict.fromkeys((".pth", ".pt", ".bin", ".ckpt"), _read_torch),
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
