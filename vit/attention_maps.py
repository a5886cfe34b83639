"""Read the attention of a Vision Transformer: its weights, rollout, relevance and distance."""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.errors import NoAttention, OptionError
from vit.anatomy import known_anatomy, uncompiled
from vit.config import grid_side
from vit.model import VisionTransformer, attend

_GIVEN = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask")
"""Names of what torch's attention is given by position."""


@dataclass(frozen=True)
class AttentionMaps:
    """Attention maps of one pass. B images, L layers, H heads, T tokens, G patches per side."""

    logits: Tensor
    """(B, classes)"""
    attention: list[Tensor]
    """Per layer (B, H, T, T); rows sum to 1."""
    rollout: Tensor
    """float32 (B, G, G): the rollout's rows of the tokens that the head reads; each map sums to 1."""
    distance: Tensor
    """float32 (B, L, H): mean attention distance in pixels."""


def maps_of(model: nn.Module, images: Tensor) -> AttentionMaps:
    """Compute the attention maps of normalised images (B, C, S, S) by a model in evaluation mode.

    Raises NoAttention: no attention weights, or tokens that are not one class token and a square grid.
    """
    with torch.no_grad():
        logits, attention = attention_weights(model, images)
        if any(len(weights) != len(images) or weights.shape != attention[0].shape for weights in attention):
            raise NoAttention(f"{type(model).__name__} attends within parts of an image: no map has a place for them")
        maps = head_map(model, rollout(attention)).float()
        placed = [without_extra_tokens(model, weights) for weights in attention]
        distance = attention_distance(placed, patch_size=images.size(-1) // maps.size(-1))
    return AttentionMaps(logits, attention, maps, distance)


def attention_weights(model: nn.Module, images: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return logits (B, classes) and, per layer, the attention weights (B, H, T, T) behind them.

    Works for the scratch ViTs, torchvision's vit_b_16 and Hugging Face ViTs; gradients flow unless under `no_grad`.
    Raises NoAttention: a model without attention, such as resnet18, or whose attention cannot be read, such as timm's.
    """
    model = uncompiled(model)
    own: Any = getattr(model, "forward_with_attention", None)
    if own is not None:
        return own(images)
    layers = [module for module in model.modules() if isinstance(module, nn.MultiheadAttention)]
    if not layers:
        shown = "the ViTs of this project, torchvision and Hugging Face do"
        raise NoAttention(f"{type(model).__name__} has no attention weights to show; {shown}")
    return _hooked(model, layers, images)


def _hooked(model: nn.Module, layers: list[nn.MultiheadAttention], images: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Recompute each attention layer with the softmax written out, and pass that output on.

    torchvision asks its attention for no weights, and the ones it could return are not part of the graph.
    """
    taken: list[Tensor] = []

    def again(
        module: nn.MultiheadAttention, args: tuple[Any, ...], named: dict[str, Any], output: Any
    ) -> tuple[Tensor, Tensor]:
        given = dict(zip(_GIVEN, args, strict=False)) | named
        if not _attends_to_itself(module, given):
            raise NoAttention(f"{type(model).__name__}: attention is read of one input, batch first, without a mask")
        qkv = F.linear(given["query"], module.in_proj_weight, module.in_proj_bias)  # (B, T, 3D)
        q, k, v = qkv.unflatten(2, (3, module.num_heads, -1)).permute(2, 0, 3, 1, 4)  # 3 x (B, H, T, K)
        dropout = module.dropout if module.training else 0.0
        out, weights = attend(q, k, v, dropout=dropout, need_weights=True)
        assert weights is not None
        taken.append(weights)
        return module.out_proj(out.transpose(1, 2).flatten(2)), weights

    with ExitStack() as hooks:
        for layer in layers:
            hooks.enter_context(layer.register_forward_hook(again, with_kwargs=True))
        return model(images), taken


def _attends_to_itself(layer: nn.MultiheadAttention, given: dict[str, Any]) -> bool:
    """Return whether a layer was called on one batch alone, as `_hooked` computes it."""
    alone = given["query"] is given["key"] is given["value"] and given["query"].dim() == 3
    masked = any(given.get(name) is not None for name in ("key_padding_mask", "attn_mask"))
    more = layer.bias_k is not None or layer.add_zero_attn
    return alone and layer.batch_first and not masked and not more


def select(attention: list[Tensor], *, layer: int, head: int | None = None) -> Tensor:
    """Return one layer's weights (B, T, T): of one head, or the mean over heads. Numbers below 0 count from the end."""
    for name, number, count in (("layer", layer, len(attention)), ("head", head or 0, attention[0].size(1))):
        if not -count <= number < count:
            raise OptionError(f"{name}={number}: this model has {name}s 0 to {count - 1}")
    return attention[layer].mean(dim=1) if head is None else attention[layer][:, head]


def rollout(attention: list[Tensor]) -> Tensor:
    """Follow attention through all layers: (B, T, T), rows sum to 1 (Abnar and Zuidema 2020).

    Row i holds the share of each input token in output token i. The residual connection counts as an identity:
    `A' = (A + I) / 2`, averaged over heads; the product over the layers follows all paths.
    """
    identity = result = _identity(attention[0])
    for weights in attention:
        result = (weights.mean(dim=1) + identity) / 2 @ result
    return result


def relevance(model: nn.Module, images: Tensor, *, classes: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return logits (B, classes) and the relevance of tokens for a class, (B, T, T).

    After Chefer et al. 2021, eq. 5-6.

    Each head is weighted by the gradient of the logit of `classes` (B,), by default the predicted ones; what raised the
    logit counts: `R = R + mean over heads of (gradient * A)+ R`, from `R = I`.
    """
    with torch.enable_grad():
        # The images ask for gradients, so that a model with every parameter frozen has a graph, too.
        logits, attention = attention_weights(model, images.detach().requires_grad_())
        chosen = logits.argmax(dim=1) if classes is None else classes
        gradients = torch.autograd.grad(logits.gather(1, chosen[:, None]).sum(), attention)
    result = _identity(attention[0])
    for weights, gradient in zip(attention, gradients, strict=True):
        result = result + (gradient * weights.detach()).clamp(min=0).mean(dim=1) @ result
    return logits.detach(), result


def _identity(weights: Tensor) -> Tensor:
    """Return the identity (B, T, T) for weights (B, H, T, T)."""
    batch, _, tokens, _ = weights.shape
    return torch.eye(tokens, dtype=weights.dtype, device=weights.device).expand(batch, tokens, tokens)


def head_map(model: nn.Module, weights: Tensor) -> Tensor:
    """Map what the head's tokens attend to: (B, T, T) -> (B, G, G), sums to 1 (or 0).

    These are the class token, or the mean of all patches for a model that `pools_patches`.
    """
    weights = without_extra_tokens(model, weights)
    side = grid_side(weights.size(1))
    if not side:
        raise NoAttention(f"{weights.size(1)} tokens are not one class token and a square grid of patches")
    asking = weights[:, 1:].mean(dim=1) if pools_patches(model) else weights[:, 0]  # rows ask: (B, T)
    patches = asking[:, 1:]
    total = patches.sum(dim=1, keepdim=True).clamp(min=torch.finfo(patches.dtype).tiny)
    return (patches / total).unflatten(1, (side, side))


def without_extra_tokens(model: nn.Module, weights: Tensor) -> Tensor:
    """Drop the rows and columns of tokens that are no patch, such as registers: (..., T, T)."""
    own = known_anatomy(model)
    first = 1 + (own.extra_tokens if own else 0)
    if first == 1:
        return weights
    kept = [0, *range(first, weights.size(-1))]
    return weights[..., kept, :][..., kept]


def pools_patches(model: nn.Module) -> bool:
    """Return whether the head reads the mean of all patches rather than the class token."""
    model = uncompiled(model)
    return isinstance(model, VisionTransformer) and model.config.pool != "cls"


def attention_distance(attention: list[Tensor], *, patch_size: int) -> Tensor:
    """Measure the mean distance in pixels between a patch and what it attends to: (B, L, H).

    The receptive field of attention (Dosovitskiy et al. 2020, figure 7). The class token has no place and is left out.
    """
    side = grid_side(attention[0].size(-1))
    axis = torch.arange(side, dtype=torch.float32, device=attention[0].device) * patch_size
    places = torch.cartesian_prod(axis, axis)  # (N, 2)
    distances = torch.cdist(places, places)  # (N, N)
    per_layer = []
    for weights in attention:
        patches = weights[:, :, 1:, 1:].float()
        patches = patches / patches.sum(dim=-1, keepdim=True)
        per_layer.append((patches * distances).sum(dim=-1).mean(dim=-1))  # (B, H, N, N) -> (B, H)
    return torch.stack(per_layer, dim=1)
