"""Positions of one grid of patches, read off at the points of another."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

# How each family interpolates its own positions; another rule would give other logits at the same resolution.
Rule = Literal["bicubic", "bicubic_antialias", "bicubic_corners", "bilinear_corners"]


def resize_positions(positions: Tensor, tokens: int, *, rule: Rule = "bicubic") -> Tensor:
    """(1, 1 + g*g, D) -> (1, tokens, D): the class token's own position is kept, the square grid is interpolated.

    Raises:
        ValueError: either count is not one class token and a square grid.
    """
    old, new = _side(positions.size(1)), _side(tokens)
    if old == new:
        return positions
    class_position, grid = positions[:, :1], positions[:, 1:]
    grid = grid.float().unflatten(1, (old, old)).permute(0, 3, 1, 2)  # (1, g*g, D) -> (1, D, g, g)
    grid = F.interpolate(
        grid,
        size=(new, new),
        mode="bilinear" if rule.startswith("bilinear") else "bicubic",
        align_corners=rule.endswith("corners"),
        antialias=rule.endswith("antialias"),
    )
    grid = grid.permute(0, 2, 3, 1).flatten(1, 2).to(positions.dtype)  # (1, D, n, n) -> (1, n*n, D)
    return torch.cat([class_position, grid], dim=1)


def _side(tokens: int) -> int:
    side = math.isqrt(max(tokens - 1, 0))
    if side < 1 or side * side != tokens - 1:
        raise ValueError(f"{tokens} positions are not one class token and a square grid of patches")
    return side
