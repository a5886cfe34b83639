"""A heat map over the whole picture that it is about: in colour where the model looked, pale where it never does."""

import numpy as np
import torch
from matplotlib import colormaps
from torch import Tensor
from torch.nn import functional as F

from datasets.fitting import Box

UNSEEN = 0.72
"""Opacity of the white that lies over what a model does not see of a picture."""
EVEN = 0.5
"""The colours span at least this much of the even share: a map that is the same everywhere looks it, not like noise."""


def brightness(values: Tensor) -> Tensor:
    """A map (G, G) -> 0 to 1, from its least to its largest value; 0 everywhere where there is nothing to see."""
    shares = values.float().nan_to_num()
    shares = shares * shares.numel() / shares.sum().clamp(min=torch.finfo(torch.float32).tiny)  # 1: the even share
    low, high = shares.min(), shares.max()
    return (shares - low) / (high - low).clamp(min=EVEN)


def upsampled(values: Tensor, size: tuple[int, int], view: Box | None = None) -> tuple[np.ndarray, np.ndarray]:
    """A map (G, G) over a picture of `size` (height, width): float32 of that size, and a mask of the pixels that it
    covers. `view` is the part of the picture that the map is about, in its pixels (`datasets.fitting.view_of`)."""
    height, width = size
    box = view or Box(0, 0, width, height)
    across = (torch.arange(width) + 0.5 - box.left) / (box.right - box.left)  # of the map: 0 to 1
    down = (torch.arange(height) + 0.5 - box.top) / (box.bottom - box.top)
    grid = torch.stack(torch.meshgrid(2 * across - 1, 2 * down - 1, indexing="xy"), dim=-1)
    laid = F.grid_sample(
        values.float()[None, None], grid[None], mode="bilinear", padding_mode="border", align_corners=False
    )
    inside = ((down >= 0) & (down <= 1))[:, None] & ((across >= 0) & (across <= 1))
    return laid[0, 0].numpy(), inside.numpy()


def overlay(picture: np.ndarray, values: Tensor, view: Box | None = None) -> np.ndarray:
    """uint8 (h, w, 3) under a map (G, G) of any scale: the picture in grey, the map alone in colour, so that a colour
    means one value; what lies outside of `view` stays without colour, and pale."""
    strength, inside = upsampled(brightness(values), picture.shape[:2], view)
    grey = picture.astype(np.float32).mean(axis=2, keepdims=True)
    colour = colormaps["inferno"](strength)[..., :3] * 255
    alpha = 0.3 + 0.4 * strength[..., None]
    seen = (1 - alpha) * grey + alpha * colour
    unseen = (1 - UNSEEN) * grey + UNSEEN * 255
    return np.where(inside[..., None], seen, unseen).clip(0, 255).astype(np.uint8)
