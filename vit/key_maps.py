"""The parameter names of families of weights, each mapped to ours by a pure function.

A family also carries what its files do not say: how images were prepared, the epsilon of its LayerNorms, and the rule
by which it interpolates positions. All of it is announced on loading and can be overridden.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from vit.config import IMAGENET_MEAN, IMAGENET_STD, ImageSpec

Tensors = dict[str, Tensor]
# How each family interpolates its own positions; another rule would give other logits at the same resolution.
PositionRule = Literal["bicubic", "bicubic_antialias", "bicubic_corners", "bilinear_corners"]


@dataclass(frozen=True)
class Family:
    """One source of weights."""

    to_ours: Callable[[Mapping[str, Tensor]], Tensors]
    signature: re.Pattern[str]  # a name that every file of this family has, and no other family uses
    image_spec: ImageSpec = field(default_factory=ImageSpec)
    layer_norm_eps: float | None = 1e-6
    position_rule: PositionRule = "bicubic"
    note: str = ""
    same_order: bool = False
    """Its files hold the same layers in the same order as the model, under names of their own."""


# Layer of a file -> ours; * is the number of a block. What a layer holds (weight, bias, ...) keeps its name.
_TORCHVISION = {
    "class_token": "embedding.class_token",
    "encoder.pos_embedding": "embedding.positions",
    "conv_proj": "embedding.patches.projection",
    "encoder.layers.encoder_layer_*.ln_1": "blocks.*.norm1",
    "encoder.layers.encoder_layer_*.ln_2": "blocks.*.norm2",
    "encoder.layers.encoder_layer_*.self_attention.in_proj": "blocks.*.attention.qkv",
    "encoder.layers.encoder_layer_*.self_attention.out_proj": "blocks.*.attention.projection",
    "encoder.layers.encoder_layer_*.mlp.linear_1": "blocks.*.mlp.fc1",  # early releases
    "encoder.layers.encoder_layer_*.mlp.linear_2": "blocks.*.mlp.fc2",
    "encoder.layers.encoder_layer_*.mlp.0": "blocks.*.mlp.fc1",
    "encoder.layers.encoder_layer_*.mlp.3": "blocks.*.mlp.fc2",
    "encoder.ln": "norm",
    "heads.head": "head",
    "heads.pre_logits": "pre_logits",
}
_TIMM = {
    "cls_token": "embedding.class_token",
    "pos_embed": "embedding.positions",
    "patch_embed.proj": "embedding.patches.projection",
    "blocks.*.attn.qkv": "blocks.*.attention.qkv",
    "blocks.*.attn.proj": "blocks.*.attention.projection",
    "fc_norm": "norm",
    "pre_logits.fc": "pre_logits",
}
_HUGGINGFACE = {  # layers of several releases; `blocks` is what `from_huggingface` makes of their lists
    "embeddings.cls_token": "embedding.class_token",
    "embeddings.position_embeddings": "embedding.positions",
    "embeddings.patch_embeddings.projection": "embedding.patches.projection",
    "blocks.*.layernorm_before": "blocks.*.norm1",
    "blocks.*.layernorm_after": "blocks.*.norm2",
    "blocks.*.attention.q_proj": "blocks.*.attention.query",
    "blocks.*.attention.k_proj": "blocks.*.attention.key",
    "blocks.*.attention.v_proj": "blocks.*.attention.value",
    "blocks.*.attention.o_proj": "blocks.*.attention.projection",
    "blocks.*.attention.output.dense": "blocks.*.attention.projection",
    "blocks.*.intermediate.dense": "blocks.*.mlp.fc1",
    "blocks.*.output.dense": "blocks.*.mlp.fc2",
    "layernorm": "norm",
    "classifier": "head",
}
_GOOGLE = {  # without the numbers of attention and MLP, which differ between releases
    "cls": "embedding.class_token",
    "pos_embedding": "embedding.positions",
    "Transformer/posembed_input/pos_embedding": "embedding.positions",
    "embedding": "embedding.patches.projection",
    "Transformer/encoderblock_*/LayerNorm_0": "blocks.*.norm1",
    "Transformer/encoderblock_*/LayerNorm_1": "blocks.*.norm2",
    "Transformer/encoderblock_*/LayerNorm_2": "blocks.*.norm2",
    "Transformer/encoderblock_*/MultiHeadDotProductAttention/query": "blocks.*.attention.query",
    "Transformer/encoderblock_*/MultiHeadDotProductAttention/key": "blocks.*.attention.key",
    "Transformer/encoderblock_*/MultiHeadDotProductAttention/value": "blocks.*.attention.value",
    "Transformer/encoderblock_*/MultiHeadDotProductAttention/out": "blocks.*.attention.projection",
    "Transformer/encoderblock_*/MlpBlock/Dense_0": "blocks.*.mlp.fc1",
    "Transformer/encoderblock_*/MlpBlock/Dense_1": "blocks.*.mlp.fc2",
    "Transformer/encoder_norm": "norm",
    "pre_logits": "pre_logits",
    "head": "head",
}


def rename(tensors: Mapping[str, Tensor], layers: Mapping[str, str]) -> Tensors:
    """Rename each tensor by the layer it belongs to; a name without a row is kept as it is."""
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
    """Our names back to those of torchvision's present release."""
    theirs = rename(tensors, {ours: layer for layer, ours in _TORCHVISION.items()})
    return {name.replace(".in_proj.", ".in_proj_"): tensor for name, tensor in theirs.items()}


def from_timm(tensors: Mapping[str, Tensor]) -> Tensors:
    ours = fold_layer_scale(rename(tensors, _TIMM))
    positions, class_token = ours.get("embedding.positions"), ours.get("embedding.class_token")
    if positions is not None and class_token is not None and math.isqrt(positions.size(1)) ** 2 == positions.size(1):
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
    blocks = {}
    for name, tensor in tensors.items():
        # The pooler and the mask token serve other tasks; the logits of ViTForImageClassification never see them.
        if not re.search(r"(^|\.)(pooler\.|embeddings\.mask_token)", name):
            bare = re.sub(r"^(encoder\.layer|layers)\.", "blocks.", name.removeprefix("vit."))
            blocks[bare.replace(".attention.attention.", ".attention.")] = tensor
    return fuse_qkv(rename(blocks, _HUGGINGFACE))


def from_google(tensors: Mapping[str, Tensor]) -> Tensors:
    """Flax arrays, also below `opt/target/` or `params/`: kernels are (in, out), attention ones split by head."""
    noise = re.compile(r"^(opt/target/|params/)|(?<=DotProductAttention)_[01]|(?<=MlpBlock)_[03]")
    bare = {noise.sub("", name): tensor for name, tensor in tensors.items()}
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


FAMILIES: dict[str, Family] = {
    "torchvision": Family(
        to_ours=partial(rename, layers=_TORCHVISION),
        signature=re.compile(r"encoder\.pos_embedding"),
        image_spec=ImageSpec(mean=IMAGENET_MEAN, std=IMAGENET_STD, crop_fraction=224 / 256),
        position_rule="bicubic_corners",
    ),
    "timm": Family(
        to_ours=from_timm,
        signature=re.compile(r"patch_embed\.proj\.weight"),
        image_spec=ImageSpec(interpolation="bicubic", crop_fraction=0.9),
        position_rule="bicubic_antialias",
        note="DeiT, DINO and MAE use timm's names with ImageNet statistics: give mean and std for those",
    ),
    "huggingface": Family(
        to_ours=from_huggingface,
        signature=re.compile(r"(vit\.)?embeddings\.patch_embeddings\.projection\.weight"),
        layer_norm_eps=1e-12,
    ),
    "google": Family(
        to_ours=from_google,
        signature=re.compile(r"(opt/target/|params/)?embedding/kernel"),
        position_rule="bilinear_corners",  # scipy.ndimage.zoom(order=1) of the paper's code
    ),
    "efficientnet_lite": Family(
        to_ours=dict,
        signature=re.compile(r"_conv_stem\.weight"),
        image_spec=ImageSpec(mean=(0.498,) * 3, std=(0.502,) * 3, interpolation="bicubic", crop_fraction=0.875),
        layer_norm_eps=None,
        same_order=True,
    ),
    "ours": Family(
        to_ours=dict,
        signature=re.compile(r"embedding\.patches\.(projection|convolutions\.0)\.weight"),
    ),
}
