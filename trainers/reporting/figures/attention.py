"""Attention as pictures: of every head of every layer, and how far it reaches."""

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from trainers.reporting.figures.results import BLUE, GREY, tidy


def heads_figure(maps: Tensor, *, asking: str) -> Figure:
    """Draw maps (L, H, G, G) of what the tokens `asking` look at, a row per layer, each to its maximum."""
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
