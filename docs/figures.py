"""Draw the figures of docs/walkthrough.md: `python docs/figures.py` (a minute, with a small training)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional as F

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # the script runs from any folder

from vit.attention_maps import attention_distance, head_map, select  # noqa: E402
from vit.config import VIT_SHAPES, ViTConfig  # noqa: E402
from vit.model import VisionTransformer, cut_patches  # noqa: E402

BLUE, ORANGE, GREY = "#2b6cb0", "#dd6b20", "#718096"
STYLE = {
    "figure.dpi": 120,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "legend.frameon": False,
}


def draw_patches() -> Figure:
    """Draw a digit, its 16 patches, the rows of numbers they become, and the mistake."""
    digit = torch.from_numpy(load_digits().images[:1]).float()[:, None]  # (1, 1, 8, 8)
    right = cut_patches(digit, 2)[0]  # (16, 4)
    wrong = digit.reshape(16, 4)
    figure, axes = plt.subplots(1, 4, figsize=(10, 2.9), width_ratios=(1, 1.15, 1.15, 1.15), layout="constrained")
    axes[0].imshow(digit[0, 0].numpy(), cmap="gray_r")
    for position in (1.5, 3.5, 5.5):
        axes[0].axhline(position, color=ORANGE, linewidth=1.2)
        axes[0].axvline(position, color=ORANGE, linewidth=1.2)
    axes[0].set_title("picture, 8 x 8")
    _draw_tiles(axes[1], right, "16 patches of 2 x 2")
    _draw_tiles(axes[2], wrong, "reshape, no permute")
    distance = [float((right[i] - wrong[i]).abs().mean()) for i in range(16)]
    axes[3].bar(range(16), distance, color=ORANGE)
    axes[3].set(title="error of the reshape", xlabel="patch", ylabel="grey levels (of 16)", xticks=(0, 5, 10, 15))
    for axis in axes[:3]:
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
    return figure


def _draw_tiles(axis: Axes, patches: Tensor, title: str) -> None:
    """Lay patches (16, 4) out as 2 x 2 tiles with gaps, in reading order."""
    canvas = np.full((11, 11), np.nan)
    for index, patch in enumerate(patches):
        row, column = 3 * (index // 4), 3 * (index % 4)
        canvas[row : row + 2, column : column + 2] = patch.reshape(2, 2).numpy()
    axis.imshow(canvas, cmap="gray_r", vmin=0, vmax=16)
    axis.set_facecolor("#fbe9dc")
    axis.set_title(title)


def draw_scaling() -> Figure:
    torch.manual_seed(0)
    widths = [4, 8, 16, 32, 64, 128, 256]
    variances, scaled, sharpest, sharpest_scaled = [], [], [], []
    for width in widths:
        queries, keys = torch.randn(400, width), torch.randn(400, 64, width)
        scores = torch.einsum("nk,ntk->nt", queries, keys)  # 64 keys for each query
        variances.append(float(scores.var()))
        scaled.append(float((scores / width**0.5).var()))
        sharpest.append(float(scores.softmax(-1).amax(-1).mean()))
        sharpest_scaled.append(float((scores / width**0.5).softmax(-1).amax(-1).mean()))
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    left.loglog(widths, variances, "o-", color=ORANGE, label="q k")
    left.loglog(widths, scaled, "o-", color=BLUE, label="q k / sqrt(K)")
    left.set(title="variance of the scores", xlabel="width K of a head")
    right.semilogx(widths, sharpest, "o-", color=ORANGE, label="softmax(q k)")
    right.semilogx(widths, sharpest_scaled, "o-", color=BLUE, label="softmax(q k / sqrt(K))")
    right.axhline(1 / 64, color=GREY, linestyle=":", label="equal shares, 1/64")
    right.set(title="largest of 64 attention weights (mean)", xlabel="width K of a head", ylim=(0, 1))
    for axis in (left, right):
        axis.set_xticks(widths, map(str, widths))
        axis.minorticks_off()
        axis.legend()
    return figure


def draw_activations() -> Figure:
    x = torch.linspace(-4, 4, 401, requires_grad=True)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for name, function, color in (("ELU", F.elu, ORANGE), ("ReLU", F.relu, GREY), ("GELU", F.gelu, BLUE)):
        y = function(x)
        (slope,) = torch.autograd.grad(y.sum(), x)
        left.plot(x.detach().numpy(), y.detach().numpy(), color=color, label=name)
        right.plot(x.detach().numpy(), slope.numpy(), color=color, label=name)
    left.set(title="activation", xlabel="x", ylim=(-1.3, 4))
    right.set(title="its slope", xlabel="x")
    for axis in (left, right):
        axis.axhline(0, color="black", linewidth=0.5)
        axis.legend()
    return figure


def train_on_digits(*, epochs: int) -> tuple[VisionTransformer, Tensor, Tensor]:
    """Train vit_micro_2 on 1,497 digits; return it and 300 other images (B, 1, 8, 8)."""
    torch.manual_seed(0)
    data = load_digits()
    images = (torch.from_numpy(data.images).float()[:, None] / 16 - 0.5) / 0.5
    labels = torch.from_numpy(data.target).long()
    order = torch.randperm(len(labels))
    train, test = order[300:], order[:300]
    model = VisionTransformer(ViTConfig(**VIT_SHAPES["vit_micro_2"], in_channels=1, num_classes=10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    batches = -(-len(train) // 64)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=epochs * batches)
    for _ in range(epochs):
        for batch in train[torch.randperm(len(train))].split(64):
            F.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    model.eval()
    return model, images[test], labels[test]


@torch.no_grad()
def draw_attention_distance(model: VisionTransformer, images: Tensor) -> Figure:
    _, attention = model.forward_with_attention(images)
    distance = attention_distance(attention, patch_size=model.config.patch_size).mean(0)  # (B, L, H) -> (L, H)
    even = attention_distance([torch.ones_like(weights) for weights in attention], patch_size=2)[0, 0, 0]
    figure, axis = plt.subplots(figsize=(6, 3.4), layout="constrained")
    depth, heads = distance.shape
    for head in range(heads):
        name = "a head" if head == 0 else None  # one entry in the legend for all of them
        axis.scatter(range(1, depth + 1), distance[:, head].numpy(), color=BLUE, alpha=0.75, s=45, label=name)
    axis.plot(range(1, depth + 1), distance.mean(1).numpy(), color=ORANGE, label="mean of the heads")
    axis.axhline(float(even), color=GREY, linestyle=":", label="looking at all patches alike")
    axis.set(xlabel="layer", ylabel="mean distance (pixels of 8)", xticks=range(1, depth + 1), ylim=(3.45, 4.1))
    axis.legend(loc="lower right")
    return figure


@torch.no_grad()
def draw_attention_maps(model: VisionTransformer, images: Tensor, labels: Tensor) -> Figure:
    """Draw a digit of each class above its mean attention map of the last layer."""
    chosen = torch.stack([(labels == digit).nonzero()[0, 0] for digit in range(10)])
    logits, attention = model.forward_with_attention(images[chosen])
    maps = head_map(model, select(attention, layer=-1))  # (10, 4, 4)
    figure, axes = plt.subplots(2, 10, figsize=(10, 2.2), layout="constrained")
    for column in range(10):
        axes[0, column].imshow(images[chosen[column], 0].numpy(), cmap="gray_r")
        axes[0, column].set_title(f"says {int(logits[column].argmax())}", fontsize=9)
        shown = axes[1, column].imshow(maps[column].numpy(), cmap="viridis", vmin=0, vmax=float(maps.max()))
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
    figure.colorbar(shown, ax=axes[1, :], label="share", fraction=0.02, pad=0.01)
    return figure


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=HERE / "figures")
    parser.add_argument("--epochs", type=int, default=40, help="of the small ViT behind the attention figures")
    options = parser.parse_args(argv)
    options.output.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(STYLE):
        model, images, labels = train_on_digits(epochs=options.epochs)
        figures = {
            "patches": draw_patches(),
            "scaling": draw_scaling(),
            "activations": draw_activations(),
            "attention_distance": draw_attention_distance(model, images),
            "attention_maps": draw_attention_maps(model, images, labels),
        }
        for name, figure in figures.items():
            # Without the creation date and version the file depends on the picture alone.
            figure.savefig(options.output / f"{name}.png", metadata={"Software": None})
            plt.close(figure)


if __name__ == "__main__":
    main()
