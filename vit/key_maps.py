"""The parameter names of five families of Vision Transformers, each mapped to ours by a pure function.

A family also carries what its files do not say: how images were prepared, the epsilon of its LayerNorms, and the rule
by which it interpolates positions. All of it is announced on loading and can be overridden.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vit.config import HALF, IMAGENET_MEAN, IMAGENET_STD, ImageSpec

Tensors = dict[str, Tensor]
# How each family interpolates its own positions; another rule would give other logits at the same resolution.
PositionRule = Literal["bicubic", "bicubic_antialias", "bicubic_corners", "bilinear_corners"]


@dataclass(frozen=True)
class Family:
    """One source of weights."""

    to_ours: Callable[[Mapping[str, Tensor]], Tensors]
    signature: re.Pattern[str]  # a name that every file of this family has, and no other family uses
    image_spec: ImageSpec
    layer_norm_eps: float
    position_rule: PositionRule
    note: str = ""


def rename(tensors: Mapping[str, Tensor], rules: tuple[tuple[str, str], ...]) -> Tensors:
    """Rename by the first rule whose pattern matches the whole name; a name without a rule is kept as it is."""
    compiled = [(re.compile(pattern), target) for pattern, target in rules]
    renamed = {}
    for name, tensor in tensors.items():
        match = next(((m, target) for pattern, target in compiled if (m := pattern.fullmatch(name))), None)
        renamed[match[0].expand(match[1]) if match else name] = tensor
    return renamed


_TORCHVISION = (
    (r"class_token", r"embedding.class_token"),
    (r"encoder\.pos_embedding", r"embedding.positions"),
    (r"conv_proj\.(weight|bias)", r"embedding.patches.projection.\1"),
    (r"encoder\.layers\.encoder_layer_(\d+)\.ln_([12])\.(weight|bias)", r"blocks.\1.norm\2.\3"),
    (r"encoder\.layers\.encoder_layer_(\d+)\.self_attention\.in_proj_(weight|bias)", r"blocks.\1.attention.qkv.\2"),
    (r"encoder\.layers\.encoder_layer_(\d+)\.self_attention\.out_proj\.(\w+)", r"blocks.\1.attention.projection.\2"),
    (r"encoder\.layers\.encoder_layer_(\d+)\.mlp\.(?:0|linear_1)\.(weight|bias)", r"blocks.\1.mlp.fc1.\2"),
    (r"encoder\.layers\.encoder_layer_(\d+)\.mlp\.(?:3|linear_2)\.(weight|bias)", r"blocks.\1.mlp.fc2.\2"),
    (r"encoder\.ln\.(weight|bias)", r"norm.\1"),
    (r"heads\.head\.(weight|bias)", r"head.\1"),
    (r"heads\.pre_logits\.(weight|bias)", r"pre_logits.\1"),
)
_TIMM = (
    (r"cls_token", r"embedding.class_token"),
    (r"pos_embed", r"embedding.positions"),
    (r"patch_embed\.proj\.(weight|bias)", r"embedding.patches.projection.\1"),
    (r"blocks\.(\d+)\.attn\.qkv\.(weight|bias)", r"blocks.\1.attention.qkv.\2"),
    (r"blocks\.(\d+)\.attn\.proj\.(weight|bias)", r"blocks.\1.attention.projection.\2"),
    (r"(?:fc_)?norm\.(weight|bias)", r"norm.\1"),
    (r"pre_logits\.fc\.(weight|bias)", r"pre_logits.\1"),
)
_HUGGINGFACE_LAYER = r"(?:vit\.)?(?:encoder\.layer|layers)\.(\d+)\."
_HUGGINGFACE = (
    (r"(?:vit\.)?embeddings\.cls_token", r"embedding.class_token"),
    (r"(?:vit\.)?embeddings\.position_embeddings", r"embedding.positions"),
    (r"(?:vit\.)?embeddings\.patch_embeddings\.projection\.(weight|bias)", r"embedding.patches.projection.\1"),
    (_HUGGINGFACE_LAYER + r"layernorm_before\.(weight|bias)", r"blocks.\1.norm1.\2"),
    (_HUGGINGFACE_LAYER + r"layernorm_after\.(weight|bias)", r"blocks.\1.norm2.\2"),
    (
        _HUGGINGFACE_LAYER + r"attention\.(?:attention\.)?(query|key|value)\.(weight|bias)",
        r"blocks.\1.attention.\2.\3",
    ),
    (_HUGGINGFACE_LAYER + r"attention\.q_proj\.(weight|bias)", r"blocks.\1.attention.query.\2"),
    (_HUGGINGFACE_LAYER + r"attention\.k_proj\.(weight|bias)", r"blocks.\1.attention.key.\2"),
    (_HUGGINGFACE_LAYER + r"attention\.v_proj\.(weight|bias)", r"blocks.\1.attention.value.\2"),
    (_HUGGINGFACE_LAYER + r"attention\.(?:output\.dense|o_proj)\.(weight|bias)", r"blocks.\1.attention.projection.\2"),
    (_HUGGINGFACE_LAYER + r"(?:intermediate\.dense|mlp\.fc1)\.(weight|bias)", r"blocks.\1.mlp.fc1.\2"),
    (_HUGGINGFACE_LAYER + r"(?:output\.dense|mlp\.fc2)\.(weight|bias)", r"blocks.\1.mlp.fc2.\2"),
    (r"(?:vit\.)?layernorm\.(weight|bias)", r"norm.\1"),
    (r"classifier\.(weight|bias)", r"head.\1"),
)
_GOOGLE_LAYER = r"Transformer/encoderblock_(\d+)/"
_GOOGLE = (
    (r"cls", r"embedding.class_token"),
    (r"(?:Transformer/posembed_input/)?pos_embedding", r"embedding.positions"),
    (r"embedding/(kernel|bias)", r"embedding.patches.projection.\1"),
    (_GOOGLE_LAYER + r"LayerNorm_0/(scale|bias)", r"blocks.\1.norm1.\2"),
    (_GOOGLE_LAYER + r"LayerNorm_[12]/(scale|bias)", r"blocks.\1.norm2.\2"),
    (
        _GOOGLE_LAYER + r"MultiHeadDotProductAttention_[01]/(query|key|value)/(kernel|bias)",
        r"blocks.\1.attention.\2.\3",
    ),
    (_GOOGLE_LAYER + r"MultiHeadDotProductAttention_[01]/out/(kernel|bias)", r"blocks.\1.attention.projection.\2"),
    (_GOOGLE_LAYER + r"MlpBlock_[03]/Dense_0/(kernel|bias)", r"blocks.\1.mlp.fc1.\2"),
    (_GOOGLE_LAYER + r"MlpBlock_[03]/Dense_1/(kernel|bias)", r"blocks.\1.mlp.fc2.\2"),
    (r"Transformer/encoder_norm/(scale|bias)", r"norm.\1"),
    (r"(head|pre_logits)/(kernel|bias)", r"\1.\2"),
)


def from_torchvision(tensors: Mapping[str, Tensor]) -> Tensors:
    return rename(tensors, _TORCHVISION)


def from_timm(tensors: Mapping[str, Tensor]) -> Tensors:
    ours = fold_layer_scale(rename(tensors, _TIMM))
    positions, class_token = ours.get("embedding.positions"), ours.get("embedding.class_token")
    if positions is not None and class_token is not None and _is_square(positions.size(1)):
        # `no_embed_class` models (DeiT III) give the class token no position: a zero one is the same function.
        ours["embedding.positions"] = torch.cat([torch.zeros_like(class_token), positions], dim=1)
    return ours


def fold_layer_scale(tensors: Tensors) -> Tensors:
    """Multiply LayerScale factors (DeiT III) into the projection before them: the same function, no new layer."""
    folded = dict(tensors)
    for number, layer in (("1", "attention.projection"), ("2", "mlp.fc2")):
        for name in [name for name in tensors if name.endswith(f".ls{number}.gamma")]:
            block, gamma = name.removesuffix(f"ls{number}.gamma"), folded.pop(name)
            folded[f"{block}{layer}.weight"] = folded[f"{block}{layer}.weight"] * gamma[:, None]
            folded[f"{block}{layer}.bias"] = folded[f"{block}{layer}.bias"] * gamma
    return folded


def from_huggingface(tensors: Mapping[str, Tensor]) -> Tensors:
    # The pooler and the mask token serve other tasks; the logits of ViTForImageClassification never see them.
    used = {name: t for name, t in tensors.items() if not re.search(r"(^|\.)(pooler\.|embeddings\.mask_token)", name)}
    return fuse_qkv(rename(used, _HUGGINGFACE))


def from_google(tensors: Mapping[str, Tensor]) -> Tensors:
    """Flax arrays, also below `opt/target/` or `params/`: kernels are (in, out), attention ones split by head."""
    bare = {re.sub(r"^(opt/target/|params/)", "", name): tensor for name, tensor in tensors.items()}
    ours = {}
    for name, tensor in rename(bare, _GOOGLE).items():
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


def from_ours(tensors: Mapping[str, Tensor]) -> Tensors:
    return dict(tensors)


def _is_square(count: int) -> bool:
    return round(count**0.5) ** 2 == count


FAMILIES: dict[str, Family] = {
    "torchvision": Family(
        to_ours=from_torchvision,
        signature=re.compile(r"encoder\.pos_embedding"),
        image_spec=ImageSpec(mean=IMAGENET_MEAN, std=IMAGENET_STD, crop_fraction=224 / 256),
        layer_norm_eps=1e-6,
        position_rule="bicubic_corners",
    ),
    "timm": Family(
        to_ours=from_timm,
        signature=re.compile(r"patch_embed\.proj\.weight"),
        image_spec=ImageSpec(interpolation="bicubic", crop_fraction=0.9),
        layer_norm_eps=1e-6,
        position_rule="bicubic_antialias",
        note="DeiT, DINO and MAE use timm's names with ImageNet statistics: give mean and std for those",
    ),
    "huggingface": Family(
        to_ours=from_huggingface,
        signature=re.compile(r"(vit\.)?embeddings\.patch_embeddings\.projection\.weight"),
        image_spec=ImageSpec(),
        layer_norm_eps=1e-12,
        position_rule="bicubic",
    ),
    "google": Family(
        to_ours=from_google,
        signature=re.compile(r"(opt/target/|params/)?embedding/kernel"),
        image_spec=ImageSpec(),
        layer_norm_eps=1e-6,
        position_rule="bilinear_corners",  # scipy.ndimage.zoom(order=1) of the paper's code
    ),
    "ours": Family(
        to_ours=from_ours,
        signature=re.compile(r"embedding\.patches\.(projection|convolutions\.0)\.weight"),
        image_spec=ImageSpec(mean=HALF, std=HALF),
        layer_norm_eps=1e-6,
        position_rule="bicubic",
    ),
}
