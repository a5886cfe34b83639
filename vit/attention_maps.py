"""What a Vision Transformer looked at: attention weights of one forward pass, rollout, and attention distance."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def attention_weights(model: nn.Module, images: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Logits (B, classes) and, per layer, the attention weights (B, H, T, T) of the very pass that made them.

    Works for the scratch ViTs, torchvision's vit_b_16 and Hugging Face ViTs. Call it under `torch.no_grad()` and with
    the model in evaluation mode for pictures; gradients flow otherwise.

    Raises:
        ValueError: a model without attention, such as resnet18.
    """
    model = getattr(model, "_orig_mod", model)  # what torch.compile wrapped
    own: Any = getattr(model, "forward_with_attention", None)
    if own is not None:
        return own(images)
    layers = [module for module in model.modules() if isinstance(module, nn.MultiheadAttention)]
    if not layers:
        raise ValueError(f"{type(model).__name__} has no attention weights; the ViTs do")
    return _hooked(model, layers, images)


def _hooked(model: nn.Module, layers: list[nn.MultiheadAttention], images: Tensor) -> tuple[Tensor, list[Tensor]]:
    """torchvision asks its attention for no weights: a hook before each layer asks for them, one after takes them."""
    taken: list[Tensor] = []

    def ask(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return args, kwargs | {"need_weights": True, "average_attn_weights": False}

    def take(module: nn.Module, args: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        taken.append(output[1])

    handles = [layer.register_forward_pre_hook(ask, with_kwargs=True) for layer in layers]
    handles += [layer.register_forward_hook(take) for layer in layers]
    try:
        logits = model(images)
    finally:
        for handle in handles:
            handle.remove()
    return logits, taken


def select(attention: list[Tensor], *, layer: int, head: int | None = None) -> Tensor:
    """One layer's weights (B, T, T): of one head, or the mean over its heads. Negative numbers count from the end.

    Raises:
        ValueError: no such layer or head; the line says how many there are.
    """
    layers, heads = len(attention), attention[0].size(1)
    if not -layers <= layer < layers:
        raise ValueError(f"layer={layer}: this model has layers 0 to {layers - 1}")
    if head is None:
        return attention[layer].mean(dim=1)
    if not -heads <= head < heads:
        raise ValueError(f"head={head}: this model has heads 0 to {heads - 1}")
    return attention[layer][:, head]


def rollout(attention: list[Tensor]) -> Tensor:
    """How much of each input token reaches each output token: (B, T, T), rows sum to 1 (Abnar and Zuidema 2020).

    The residual connection is an identity beside each layer: `A' = (A + I) / 2`, averaged over heads; the product over
    the layers follows all paths.
    """
    tokens = attention[0].size(-1)
    identity = torch.eye(tokens, dtype=attention[0].dtype, device=attention[0].device)
    result = identity.expand(attention[0].size(0), tokens, tokens)
    for weights in attention:
        result = (weights.mean(dim=1) + identity) / 2 @ result
    return result


def class_map(weights: Tensor) -> Tensor:
    """Weights (B, T, T) -> what the class token sees of each patch, on the grid: (B, G, G), sums to 1.

    Raises:
        ValueError: the tokens are not one class token and a square grid.
    """
    patches = weights[:, 0, 1:]  # row: the class token asks; column 0 would be the class token itself
    side = round(patches.size(1) ** 0.5)
    if side * side != patches.size(1):
        raise ValueError(f"{weights.size(1)} tokens are not one class token and a square grid of patches")
    return (patches / patches.sum(dim=1, keepdim=True)).unflatten(1, (side, side))


def attention_distance(attention: list[Tensor], *, patch_size: int) -> Tensor:
    """Mean distance in pixels between a patch and what it attends to, per layer and head: (L, H).

    Figure 7 of Dosovitskiy et al. 2020: the receptive field of attention. Patches only: the class token has no place.
    """
    side = round((attention[0].size(-1) - 1) ** 0.5)
    axis = torch.arange(side, dtype=torch.float32, device=attention[0].device) * patch_size
    places = torch.cartesian_prod(axis, axis)  # (N, 2)
    distances = torch.cdist(places, places)  # (N, N)
    per_layer = []
    for weights in attention:
        patches = weights[:, :, 1:, 1:].float()
        patches = patches / patches.sum(dim=-1, keepdim=True)
        per_layer.append((patches * distances).sum(dim=-1).mean(dim=(0, 2)))  # (B, H, N, N) -> (H,)
    return torch.stack(per_layer)
