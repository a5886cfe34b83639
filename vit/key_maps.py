"""Map the parameter names of other libraries to ours; the tables are vit/families.toml.

A family also says what its files do not: how images were prepared, the epsilon of its LayerNorms, and the rule by which
it interpolates positions. Loading logs all of it, and options override it.
"""

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from common.image_spec import ImageSpec
from vit.config import grid_side

Tensors = dict[str, Tensor]
PositionRule = Literal["bicubic", "bicubic_antialias", "bicubic_corners", "bilinear_corners"]


@dataclass(frozen=True)
class Family:
    """Describe one source of weights: a table of vit/families.toml."""

    signature: re.Pattern[str]
    image_spec: ImageSpec
    layers: Mapping[str, str] = field(default_factory=dict)
    layer_norm_eps: float = 1e-6
    """0 where its networks have no LayerNorm."""
    position_rule: PositionRule = "bicubic"
    note: str = ""
    same_order: bool = False
    ignored: re.Pattern[str] = re.compile("(?!)")
    """Names of parts for other tasks than classification."""
    convert: Callable[[Mapping[str, Tensor], Mapping[str, str]], Tensors] | None = None

    def to_ours(self, tensors: Mapping[str, Tensor]) -> Tensors:
        """Rename the tensors of a file to our names."""
        return (self.convert or rename)(tensors, self.layers)


def rename(tensors: Mapping[str, Tensor], layers: Mapping[str, str]) -> Tensors:
    """Rename each tensor by its layer; a name without a row stays as it is."""
    kinds = r"(?:[._/](?P<kind>weight|bias|kernel|scale))?"
    rules = [(re.compile(re.escape(old).replace(r"\*", r"(\d+)") + kinds), new) for old, new in layers.items()]
    renamed = {}
    for name, tensor in tensors.items():
        for pattern, layer in rules:
            if match := pattern.fullmatch(name):
                name = layer.replace("*", match[1] or "") + (f".{match['kind']}" if match["kind"] else "")
                break
        renamed[name] = tensor
    return renamed


def to_torchvision(tensors: Mapping[str, Tensor]) -> Tensors:
    """Rename tensors from our names to torchvision's."""
    theirs = rename(tensors, {ours: layer for layer, ours in FAMILIES["torchvision"].layers.items()})
    return {name.replace(".in_proj.", ".in_proj_"): tensor for name, tensor in theirs.items()}


def from_timm(tensors: Mapping[str, Tensor], layers: Mapping[str, str]) -> Tensors:
    ours = fold_layer_scale(rename(tensors, layers))
    positions, class_token = ours.get("embedding.positions"), ours.get("embedding.class_token")
    if positions is not None and class_token is not None and grid_side(1 + positions.size(1)):
        # `no_embed_class` models (DeiT III) give the class token no position: a zero one is the same function.
        ours["embedding.positions"] = torch.cat([torch.zeros_like(class_token), positions], dim=1)
    return ours


def fold_layer_scale(tensors: Tensors) -> Tensors:
    """Multiply LayerScale factors (DeiT III) into the projection before them, without a new layer."""
    folded = dict(tensors)
    for number, layer in (("1", "attention.projection"), ("2", "mlp.fc2")):
        for name in [name for name in tensors if name.endswith(f".ls{number}.gamma")]:
            block, gamma = name.removesuffix(f"ls{number}.gamma"), folded.pop(name)
            folded[f"{block}{layer}.weight"] = folded[f"{block}{layer}.weight"] * gamma[:, None]
            folded[f"{block}{layer}.bias"] = folded[f"{block}{layer}.bias"] * gamma
    return folded


def from_huggingface(tensors: Mapping[str, Tensor], layers: Mapping[str, str]) -> Tensors:
    blocks = {}
    for name, tensor in tensors.items():
        bare = re.sub(r"^(encoder\.layer|layers)\.", "blocks.", name.removeprefix("vit."))
        blocks[bare.replace(".attention.attention.", ".attention.")] = tensor
    return fuse_qkv(rename(blocks, layers))


def from_google(tensors: Mapping[str, Tensor], layers: Mapping[str, str]) -> Tensors:
    """Convert Flax arrays: kernels are (in, out), kernels of attention by head."""
    noise = re.compile(r"^(opt/target/|params/)|(?<=DotProductAttention)_[01]|(?<=MlpBlock)_[03]")
    bare = {noise.sub("", name): tensor for name, tensor in tensors.items()}
    ours = {}
    for name, tensor in rename(bare, layers).items():
        if "." not in name:
            ours[name] = tensor  # no rule knows it: reported as unexpected, under its own name
            continue
        layer, _, kind = name.rpartition(".")
        if kind == "kernel" and layer.endswith(("query", "key", "value")):
            tensor = tensor.flatten(1).T  # (D, H, K) -> (H*K, D)
        elif kind == "kernel" and layer.endswith("attention.projection"):
            tensor = tensor.flatten(0, 1).T  # (H, K, D) -> (D, H*K)
        elif kind == "kernel":
            tensor = tensor.permute(3, 2, 0, 1) if tensor.dim() == 4 else tensor.T  # (P, P, C, D) -> (D, C, P, P)
        elif kind == "bias":
            tensor = tensor.flatten()  # (H, K) -> (H*K,)
        ours[f"{layer}.{kind.replace('kernel', 'weight').replace('scale', 'weight')}"] = tensor.contiguous()
    return fuse_qkv(ours)


def fuse_qkv(tensors: Tensors) -> Tensors:
    """Stack `attention.query`, `.key` and `.value` into our `attention.qkv`: rows [q; k; v]."""
    fused = dict(tensors)
    for name in tensors:
        if ".attention.query." in name:
            names = [name.replace(".query.", f".{part}.") for part in ("query", "key", "value")]
            if all(part in fused for part in names):
                fused[name.replace(".query.", ".qkv.")] = torch.cat([fused.pop(part) for part in names])
    return fused


def _family(name: str, row: dict[str, Any]) -> Family:
    spec: dict[str, Any] = row.pop("image_spec", {})
    spec |= {key: tuple(spec[key]) for key in ("mean", "std") if key in spec}
    converts = {"timm": from_timm, "huggingface": from_huggingface, "google": from_google}
    row |= {key: re.compile(row[key]) for key in ("signature", "ignored") if key in row}
    return Family(**row, image_spec=ImageSpec(**spec), convert=converts.get(name))


FAMILIES: dict[str, Family] = {
    name: _family(name, row)
    for name, row in tomllib.loads(Path(__file__).with_name("families.toml").read_text(encoding="utf-8")).items()
}
