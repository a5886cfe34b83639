"""Build the contestants of benchmarks/step_throughput.py: one ViT by five libraries.

All are asked for the same work: patches by one linear map, a class token, learned positions, pre-norm blocks with exact
GELU, a final LayerNorm, one Linear head, dropout 0. What remains different is the libraries' own: vit-pytorch has two
more LayerNorms around its patch projection and no bias in qkv.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from vit.config import ViTConfig


@dataclass(frozen=True)
class Peer:
    """Describe how a library builds its ViT, and sets its kinds of attention."""

    name: str
    package: str
    build: Callable[[ViTConfig], nn.Module]
    settings: tuple[str, ...]
    set_attention: Callable[[nn.Module, str], None] = lambda model, setting: None


def build_ours(config: ViTConfig) -> nn.Module:
    from vit.model import VisionTransformer

    return VisionTransformer(config)


def build_torchvision(config: ViTConfig) -> nn.Module:
    from torchvision.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        image_size=config.image_size,
        patch_size=config.patch_size,
        num_layers=config.depth,
        num_heads=config.num_heads,
        hidden_dim=config.embed_dim,
        mlp_dim=int(config.embed_dim * config.mlp_ratio),
        num_classes=config.num_classes,
    )


def build_timm(config: ViTConfig) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        img_size=config.image_size,
        patch_size=config.patch_size,
        embed_dim=config.embed_dim,
        depth=config.depth,
        num_heads=config.num_heads,
        mlp_ratio=config.mlp_ratio,
        num_classes=config.num_classes,
    )


def set_timm_attention(model: nn.Module, setting: str) -> None:
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = setting == "fused"


class _Logits(nn.Module):
    """Return logits from the output object of Hugging Face, as the others do."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(pixel_values=images).logits


def build_huggingface(config: ViTConfig) -> nn.Module:
    from transformers import ViTConfig as Settings
    from transformers import ViTForImageClassification

    settings = Settings(
        image_size=config.image_size,
        patch_size=config.patch_size,
        hidden_size=config.embed_dim,
        num_hidden_layers=config.depth,
        num_attention_heads=config.num_heads,
        intermediate_size=int(config.embed_dim * config.mlp_ratio),
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=config.num_classes,
    )
    return _Logits(ViTForImageClassification(settings))


def set_huggingface_attention(model: Any, setting: str) -> None:
    model.model.set_attn_implementation(setting)


def build_vit_pytorch(config: ViTConfig) -> nn.Module:
    from vit_pytorch import ViT

    return ViT(
        image_size=config.image_size,
        patch_size=config.patch_size,
        num_classes=config.num_classes,
        dim=config.embed_dim,
        depth=config.depth,
        heads=config.num_heads,
        dim_head=config.embed_dim // config.num_heads,
        mlp_dim=int(config.embed_dim * config.mlp_ratio),
    )


OURS = Peer("ours", "torch", build_ours, ("auto",))
PEERS: tuple[Peer, ...] = (
    Peer("torchvision", "torchvision", build_torchvision, ("fused",)),  # nn.MultiheadAttention offers no other
    Peer("timm", "timm", build_timm, ("fused", "explicit"), set_timm_attention),
    Peer("huggingface", "transformers", build_huggingface, ("sdpa", "eager"), set_huggingface_attention),
    Peer("vit-pytorch", "vit-pytorch", build_vit_pytorch, ("explicit",)),
)
CONTESTANTS: dict[str, Peer] = {peer.name: peer for peer in (OURS, *PEERS)}
