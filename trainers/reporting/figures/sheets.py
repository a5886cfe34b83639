"""Draw sheets of images with captions and heat maps, as matplotlib Figures.

A sheet is one array of pixels with text below its tiles: an axis per tile would take ten times as long to draw.
"""

import math
from collections.abc import Sequence
from functools import partial
from textwrap import wrap
from typing import NamedTuple

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.figure import Figure
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn import functional as F

from common.text import ellipsis
from datasets.fitting import Box
from trainers.reporting.figures import results
from trainers.reporting.figures.images import ImagePrediction
from trainers.reporting.figures.results import BLUE, GREY, RIGHT, UNKNOWN, WRONG, escape, readable, tidy

DPI = 100
TILE = 168  # pixels per side, about: two fit into a card of TensorBoard
LARGE = 300  # the same for a single image
GAP, LINE, TITLE = 14, 15, 36  # pixels between tiles, per line of a caption, above the tiles
LETTER = 6.4  # average width of a letter in a caption, in pixels
DIM = "#57606a"
UNSEEN = 0.72
"""Opacity of the white over parts of a picture that the model does not see."""
EVEN = 0.5
"""Least range of the colours, as a multiple of the uniform share: a uniform map looks uniform, not like noise."""


class Tile(NamedTuple):
    """One image (uint8 (h, w, 3)) of a sheet, and its lines: text, colour."""

    picture: np.ndarray
    caption: tuple[tuple[str, str], ...]


png, save = partial(results.png, dpi=DPI), partial(results.save, dpi=DPI)


def tile_picture(pixels: np.ndarray, side: int = TILE) -> np.ndarray:
    """Scale uint8 (C, h, w) to a white square of about `side` pixels.

    uint8 (t, t, 3). Pixels of small images stay sharp squares; large images are shrunk smoothly.
    """
    return squared(scaled(pixels, side))


def scaled(pixels: np.ndarray, side: int) -> np.ndarray:
    """Scale uint8 (C, h, w) to (h', w', 3), whose longer side is near `side`."""
    rgb = pixels if pixels.shape[0] == 3 else np.repeat(pixels[:1], 3, axis=0)
    picture = Image.fromarray(np.ascontiguousarray(rgb.transpose(1, 2, 0)))
    longer = max(picture.size)
    if longer <= side // 2:
        return np.asarray(ImageOps.scale(picture, round(side / longer), Image.Resampling.NEAREST))
    return np.asarray(ImageOps.contain(picture, (side, side), Image.Resampling.BICUBIC))


def squared(picture: np.ndarray) -> np.ndarray:
    """Pad uint8 (h, w, 3) with white to a square."""
    longer = max(picture.shape[:2])
    return np.asarray(ImageOps.pad(Image.fromarray(picture), (longer, longer), color="white"))


def heat_picture(image: ImagePrediction, values: Tensor, side: int) -> np.ndarray:
    """Overlay an image with a map (G, G): (h, w, 3) of about `side` pixels."""
    assert image.pixels is not None
    picture = scaled(image.pixels, side)
    view = image.view
    if view is not None:
        across, down = picture.shape[1] / image.pixels.shape[2], picture.shape[0] / image.pixels.shape[1]
        view = Box(view.left * across, view.top * down, view.right * across, view.bottom * down)
    return overlay(picture, values, view)


def brightness(values: Tensor) -> Tensor:
    """Scale a map (G, G) to 0 to 1; 0 for a map without differences."""
    shares = values.float().nan_to_num()
    shares = shares * shares.numel() / shares.sum().clamp(min=torch.finfo(torch.float32).tiny)  # 1: the even share
    low, high = shares.min(), shares.max()
    return (shares - low) / (high - low).clamp(min=EVEN)


def upsampled(values: Tensor, size: tuple[int, int], view: Box | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Resize a map (G, G) to `size`; also return the mask that it covers.

    `size` is (height, width) of a picture. `view` is the part of the picture that the map covers, in its pixels
    (`datasets.fitting.view_of`).
    """
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
    """Colour uint8 (h, w, 3) by a map (G, G) of any scale.

    The picture is grey, so that a colour means one value of the map; parts outside of `view` are pale.
    """
    strength, inside = upsampled(brightness(values), picture.shape[:2], view)
    grey = picture.astype(np.float32).mean(axis=2, keepdims=True)
    colour = colormaps["inferno"](strength)[..., :3] * 255
    alpha = 0.3 + 0.4 * strength[..., None]
    seen = (1 - alpha) * grey + alpha * colour
    unseen = (1 - UNSEEN) * grey + UNSEEN * 255
    return np.where(inside[..., None], seen, unseen).clip(0, 255).astype(np.uint8)


def sheet(tiles: Sequence[Tile], *, title: str, columns: int = 2) -> Figure:
    """Draw tiles with captions below a title, in short rows since TensorBoard's cards are narrow."""
    rows = math.ceil(len(tiles) / columns)
    height, width = (max(tile.picture.shape[side] for tile in tiles) for side in (0, 1))
    lines = max(len(tile.caption) for tile in tiles)
    step_x, step_y = width + GAP, height + lines * LINE + GAP
    canvas_width = columns * step_x + GAP
    titles = [line for part in title.split("\n") for line in wrap(part, round(canvas_width / 7.6))]
    top = TITLE + LINE * (len(titles) - 1)
    canvas = np.full((top + rows * step_y, canvas_width, 3), 255, np.uint8)
    figure = Figure(figsize=(canvas_width / DPI, len(canvas) / DPI), dpi=DPI)

    def write(x: int, y: int, text: str, *, size: float, colour: str) -> None:
        place = x / canvas_width, 1 - y / len(canvas)
        figure.text(*place, escape(text), fontsize=size, color=colour, ha="left", va="top")

    for number, line in enumerate(titles):
        write(GAP, 9 + number * LINE, line, size=9, colour=UNKNOWN)
    for number, (picture, caption) in enumerate(tiles):
        x, y = GAP + number % columns * step_x, top + number // columns * step_y
        canvas[y : y + len(picture), x : x + picture.shape[1]] = picture
        for place, (text, colour) in enumerate(caption):
            write(x, y + len(picture) + 3 + place * LINE, text, size=8, colour=colour)
    figure.figimage(canvas)
    return figure


def prediction_sheet(images: Sequence[ImagePrediction], *, title: str, columns: int = 2) -> Figure:
    """Draw images above their heat maps, if any, with predicted class, label and file name."""
    tiles = []
    for image in images:
        assert image.pixels is not None
        picture = tile_picture(image.pixels)
        if image.heat is not None:
            gap = np.full((4, picture.shape[1], 3), 255, np.uint8)
            picture = np.concatenate([picture, gap, squared(heat_picture(image, image.heat, TILE))])
        tiles.append(Tile(picture, caption(image)))
    return sheet(tiles, title=title, columns=columns)


def heat_sheet(image: ImagePrediction, maps: Sequence[tuple[str, Tensor]], *, title: str = "") -> Figure:
    """Draw an image with its predicted class, and maps over it side by side.

    Maps are (title, (G, G))."""
    assert image.pixels is not None
    taken_for = f"{ellipsis(image.predicted, 30)} {image.probability:.0%}"
    tiles = [Tile(scaled(image.pixels, LARGE), ((taken_for, UNKNOWN),))]
    for name, values in maps:
        words = wrap(name if values.any() else f"{name}: nothing", round(tiles[0].picture.shape[1] / LETTER))
        tiles.append(Tile(heat_picture(image, values, LARGE), tuple((line, UNKNOWN) for line in words)))
    return sheet(tiles, title=title, columns=len(tiles))


def batch_sheet(
    originals: Sequence[np.ndarray], images: Tensor, *, mean: Sequence[float], std: Sequence[float], title: str
) -> Figure:
    """Draw pictures next to their normalised images, normalisation undone.

    uint8 (C, h, w) and (B, C, S, S)."""
    shape = (1, -1, 1, 1)
    images = images.detach().cpu().float() * torch.tensor(std).view(shape) + torch.tensor(mean).view(shape)
    pixels = (255 * images.clamp(0, 1)).round().byte().numpy()
    pairs = (picture for pair in zip(originals, pixels, strict=True) for picture in pair)
    return sheet([Tile(tile_picture(picture, 80), ()) for picture in pairs], title=title, columns=4)


def caption(image: ImagePrediction) -> tuple[tuple[str, str], ...]:
    """Return an image's caption: predicted class, true class if known, file name."""
    texts = [(f"{readable(image.predicted)} ({image.probability:.1%})", UNKNOWN)]
    if image.label is not None:
        of_label = dict(image.ranked).get(image.label)
        share = f" ({of_label:.1%})" if of_label is not None and image.label != image.predicted else ""
        texts = [(texts[0][0], RIGHT if image.label == image.predicted else WRONG)]
        texts.append((f"true: {readable(image.label)}{share}", UNKNOWN))
    texts.append((readable(image.path.rpartition("/")[2]), DIM))
    return tuple(
        (line, colour) for text, colour in texts for line in wrap(text, round(TILE / LETTER), break_on_hyphens=False)
    )


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
    """Draw every head's mean attention distance (L, H): figure 7 of Dosovitskiy et al. 2020."""
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
