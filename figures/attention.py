"""Explanations as pictures: overlays, every head of every layer, and how far attention reaches."""

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.figure import Figure
from torch import Tensor

from figures.judged import Judged
from figures.results import BLUE, GREY, escape, shorten, show, tidy


def overview_figure(
    image: Judged, relevance: Tensor, *, target: str, chosen: Sequence[tuple[str, Tensor]] = ()
) -> Figure:
    """The picture, its rollout, its relevance to the class `target`, and `chosen` maps (title, (G, G)) side by side."""
    assert image.pixels is not None
    panels: list[tuple[str, Tensor | None]] = [
        (f"{shorten(image.predicted)} {image.probability:.0%}", None),
        ("attention rollout", image.rollout),
        (f"what spoke for {shorten(target)}", relevance),
        *chosen,
    ]
    figure = Figure(figsize=(2.7 * len(panels), 3.1), layout="constrained")
    for axis, (title, values) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        axis.set_axis_off()
        if values is not None and not values.any():
            title += ": nothing"
        axis.set_title(escape(title), fontsize=10)
        overlay(axis, image.pixels, values)
    return figure


def overlay(axis, pixels: np.ndarray, values: Tensor | None) -> None:
    """The picture, and a map (G, G) over it: the more a patch weighs, the stronger its colour."""
    if values is None or not values.any():
        show(axis, pixels)
        return
    low, high = values.min(), values.max()
    show(axis, blended(pixels, (values - low) / (high - low).clamp(min=1e-12)))


def blended(pixels: np.ndarray, values: Tensor) -> np.ndarray:
    """uint8 (C, S, S) under a map (G, G) of 0 to 1 -> uint8 (3, S, S): half grey, colour by the map."""
    side = pixels.shape[-1]
    smooth = torch.nn.functional.interpolate(values[None, None].float(), size=(side, side), mode="bilinear")[0, 0]
    colour = colormaps["inferno"](smooth.numpy())[..., :3].transpose(2, 0, 1) * 255
    alpha = 0.25 + 0.5 * smooth.numpy()
    mixed = (1 - alpha) * (0.35 * pixels.astype(np.float32).mean(axis=0) + 0.65 * pixels) + alpha * colour
    return mixed.clip(0, 255).astype(np.uint8)


def heads_figure(maps: Tensor, *, asking: str) -> Figure:
    """Maps (L, H, G, G) of what the tokens named by `asking` look at, a row per layer, each scaled to its maximum."""
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
    """Mean attention distance (L, H) of every head over the layers: figure 7 of Dosovitskiy et al. 2020."""
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
