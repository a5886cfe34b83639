"""Draw the inside of a ViT: the attention of each head, attention distances, and position embeddings."""

import math

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F

from trainers.reporting.figures.results import BLUE, GREY, tidy


def heads_figure(maps: Tensor, *, asking: str) -> Figure:
    """Draw attention maps (L, H, G, G) of the tokens `asking`, a row per layer."""
    layers, heads = maps.shape[:2]
    figure = Figure(figsize=(1.05 * heads + 1.2, 1.05 * layers + 0.7), layout="constrained")
    axes = figure.subplots(layers, heads, squeeze=False)
    for layer in range(layers):
        for head in range(heads):
            axis = axes[layer, head]
            axis.imshow(maps[layer, head].numpy(), cmap="inferno", vmin=0)
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
            if layer == 0:
                axis.set_title(f"head {head}", fontsize=8)
        axes[layer, 0].set_ylabel(f"layer {layer}", fontsize=8)
    figure.suptitle(f"attention of {asking}", fontsize=10)
    return figure


def distance_figure(distance: Tensor, *, title: str) -> Figure:
    """Draw the mean attention distance (L, H) of every head: figure 7 of Dosovitskiy et al. 2020."""
    layers, heads = distance.shape
    figure = Figure(figsize=(5.4, 3.6), layout="constrained")
    axis = figure.subplots()
    numbers = np.repeat(np.arange(layers), heads)
    axis.scatter(numbers, distance.flatten().numpy(), s=16, color=BLUE, alpha=0.7, label="one head")
    axis.plot(range(layers), distance.mean(dim=1).numpy(), color=GREY, linewidth=1.2, label="mean of the layer")
    axis.set(xlabel="layer", ylabel="mean attention distance (pixels)", xticks=range(0, layers, max(1, layers // 12)))
    axis.set_ylim(0, 1.12 * max(distance.max().item(), 1e-3))
    axis.set_title(f"{title}\nHow far each head looks: near 0 at its own patch, the higher the wider.", fontsize=9)
    axis.legend(frameon=False, fontsize=8)
    tidy(axis)
    return figure


def position_similarity_figure(positions: Tensor) -> Figure:
    """Draw the cosine similarity of each position embedding (1 + G*G, D) to all others.

    Figure 7 of Dosovitskiy et al. 2020: neighbours, rows and columns become similar.
    """
    grid = F.normalize(positions[1:].float(), dim=1)
    side = math.isqrt(len(grid))
    maps = (grid @ grid.T).unflatten(0, (side, side)).unflatten(2, (side, side))  # (G, G, G, G)
    factor, gap = max(1, 56 // side), 4  # maps have about the same width for any grid
    step = side * factor + gap
    enlarged = maps.repeat_interleave(factor, dim=2).repeat_interleave(factor, dim=3)
    spaced = F.pad(enlarged, (0, gap, 0, gap), value=torch.nan)  # (G, G, step, step)
    canvas = spaced.transpose(1, 2).reshape(side * step, side * step)[:-gap, :-gap].numpy()
    figure = Figure(figsize=(6.8, 6.0), layout="constrained")
    axis = figure.subplots()
    image = axis.imshow(canvas, cmap="viridis", vmin=-1, vmax=1, interpolation="nearest")
    axis.set(xticks=[], yticks=[], xlabel="column of the patch", ylabel="row of the patch")
    axis.set_title(f"position embeddings: similarity of each of the {side} x {side} patches to all", fontsize=10)
    figure.colorbar(image, label="cosine similarity")
    return figure
