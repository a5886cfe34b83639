"""One solution of each exercise in examples/exercises.py; the tests run them."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """1. Attention that does not look at masked keys."""
    scores = q @ k.mT / math.sqrt(q.size(-1))  # (B, H, T, T)
    return scores.masked_fill(mask, -math.inf).softmax(dim=-1) @ v


def patches(images: Tensor, patch_size: int) -> Tensor:
    """2. Cut images into patches, each in the order (channel, row, column)."""
    batch, channels, side, _ = images.shape
    grid = side // patch_size
    cut = images.reshape(batch, channels, grid, patch_size, grid, patch_size)  # (B, C, G, P, G, P)
    return cut.permute(0, 2, 4, 1, 3, 5).reshape(batch, grid * grid, -1)


def sinusoidal_positions(tokens: int, width: int) -> Tensor:
    """3. Sines and cosines of falling frequency."""
    frequencies = 10000 ** (-torch.arange(0, width, 2) / width)
    angles = torch.arange(tokens)[:, None] * frequencies  # (T, D / 2)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def parameters(*, image_size: int, patch_size: int, width: int, depth: int, classes: int) -> int:
    """4. The number of parameters of a ViT."""
    tokens = (image_size // patch_size) ** 2 + 1
    stem = patch_size**2 * 3 * width + width
    block = 12 * width**2 + 13 * width  # qkv 3, projection 1, MLP 8 matrices of D x D; their biases and two LayerNorms
    return stem + width + tokens * width + depth * block + 2 * width + classes * (width + 1)


def warmup_cosine(step: int, *, peak: float, warmup_steps: int, total_steps: int) -> float:
    """5. The learning rate of a step."""
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup_steps) / (total_steps - warmup_steps)))


def smoothed_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """6. Cross-entropy with soft targets."""
    classes = logits.size(1)
    targets = F.one_hot(labels, classes) * (1 - smoothing) + smoothing / classes
    return -(targets * logits.log_softmax(dim=1)).sum(dim=1).mean()


def mixup(images: Tensor, labels: Tensor, share: float, classes: int) -> tuple[Tensor, Tensor]:
    """7. Blend neighbours in the batch."""
    targets = F.one_hot(labels, classes).float()
    return torch.lerp(images.roll(1, 0), images, share), torch.lerp(targets.roll(1, 0), targets, share)


def adamw_step(weight: Tensor, gradient: Tensor, *, lr: float, weight_decay: float) -> Tensor:
    """8. AdamW's first step: decay first, then the gradient over its own size."""
    first = 0.1 * gradient / (1 - 0.9)
    second = 0.001 * gradient**2 / (1 - 0.999)
    return weight * (1 - lr * weight_decay) - lr * first / (second.sqrt() + 1e-8)


def interpolate_positions(positions: Tensor, side: int) -> Tensor:
    """9. Resize the grid of positions like an image of D channels."""
    old = math.isqrt(positions.size(1) - 1)
    grid = positions[:, 1:].unflatten(1, (old, old)).permute(0, 3, 1, 2)  # (1, D, G, G)
    grid = F.interpolate(grid, size=(side, side), mode="bicubic", align_corners=False)
    return torch.cat([positions[:, :1], grid.flatten(2).transpose(1, 2)], dim=1)


def rollout(attention: list[Tensor]) -> Tensor:
    """10. Follow attention through all layers."""
    result = torch.eye(attention[0].size(-1)).expand(attention[0].size(0), -1, -1)
    for weights in attention:
        result = 0.5 * (weights.mean(dim=1) + torch.eye(weights.size(-1))) @ result
    return result
