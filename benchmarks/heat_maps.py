"""Which heat maps find planted evidence, and are faithful: `python -m benchmarks.heat_maps [MODEL...] [--images N]`.

Pictures of 4 x 4 tiles: one of them, anywhere, shows one of four patterns, which is the class; the others show some of
six other patterns, all in random colours. Each model is trained on 2,000 of them until it is right on 99.5 % of 256
others; its weights are kept in `--folder` for the next time. For each method, over N pictures that it never saw: the
share of the relevance in the tile of the class (by chance 6 %), the same of what lies above the even share, which is
what a picture shows in bright colours, and what removing the brightest fifth costs, against a random fifth.
`--shuffled N`: of N copies of the last model, the numbers in each of their weights shuffled, how many are called
faithful: to themselves, and to the trained model.
"""

import argparse
import copy
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.environment import describe
from explanations.faithfulness import LEAST, LEVEL, costs_of, measure, paired
from explanations.methods import METHODS, heat_maps
from explanations.subject import NoMap, Subject
from vit import build_model
from vit.tensor_files import read_tree, write_tree

SIDE, TILE = 64, 16
MODELS = {
    "vit_stem_16": ("tiny_imagenet", 5e-4), "vit_nano_8": ("none", 1e-3), "resnet18": ("none", 1e-3),
    "efficientnet_lite0": ("imagenet", 1e-3),
}  # fmt: skip
"""Weights to start from, and the learning rate."""


def patterns() -> np.ndarray:
    """(10, TILE, TILE) of 0 and 1: four that are classes, and six that mean nothing."""
    y, x = np.mgrid[:TILE, :TILE]
    middle = (TILE - 1) / 2
    radius = np.hypot(y - middle, x - middle)
    found = [
        y // 2 % 2, x // 2 % 2, (x // 4 + y // 4) % 2, abs(radius - 5) < 1.6,
        (x + y) // 3 % 2, (x - y) // 3 % 2, (abs(x - middle) < 1.6) | (abs(y - middle) < 1.6), radius < 5,
        (abs(x - middle) < 5) & (abs(y - middle) < 5), (abs(x - y) < 2) | (abs(x + y - 15) < 2),
    ]  # fmt: skip
    return np.stack(found).astype(np.float32)


def planted(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Images (N, 3, SIDE, SIDE), normalised, their classes, and the tiles, 0 to 15, that show them."""
    draw = np.random.default_rng(seed)
    classes, places = draw.integers(0, 4, count), draw.integers(0, 16, count)
    kinds = draw.integers(4, 10, (count, 16))
    kinds[np.arange(count), places] = classes
    light, dark = draw.uniform(0.55, 1, (count, 16, 3)), draw.uniform(0, 0.45, (count, 16, 3))
    swapped = draw.random((count, 16, 1)) < 0.5
    front, back = (np.where(swapped, one, other)[:, :, None, None] for one, other in ((dark, light), (light, dark)))
    shapes = patterns()[kinds][..., None]
    tiles = shapes * front + (1 - shapes) * back
    images = tiles.reshape(count, 4, 4, TILE, TILE, 3).transpose(0, 5, 1, 3, 2, 4).reshape(count, 3, SIDE, SIDE)
    images = np.round(255 * (images + draw.normal(0, 0.03, images.shape)).clip(0, 1)) / 127.5 - 1
    return torch.from_numpy(images).float(), torch.from_numpy(classes), torch.from_numpy(places)


def trained(name: str, folder: Path) -> nn.Module:
    weights, rate = MODELS[name]
    path = folder / f"{name}.safetensors"
    torch.manual_seed(0)
    kept = path.is_file()
    model = build_model(name, num_classes=4, image_size=SIDE, weights="none" if kept else weights)
    if kept:
        model.load_state_dict(read_tree(path)["model"])
        return model.eval()
    images, classes, _ = planted(2_000, seed=1)
    unseen, expected, _ = planted(256, seed=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.05)
    for epoch in range(30):
        model.train()
        for rows in torch.randperm(len(images)).split(50):
            optimizer.zero_grad()
            F.cross_entropy(model(images[rows]), classes[rows]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        with torch.no_grad():
            right = (model.eval()(unseen).argmax(dim=1) == expected).float().mean().item()
        print(f"{name}: epoch {epoch + 1}, {right:.1%} right")
        if right > 0.995:
            break
    folder.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        write_tree(file, {"model": dict(model.state_dict())})
    return model


def inside(values: Tensor, places: Tensor) -> float:
    """The share of maps (N, G, G) that lies in the tiles."""
    fine = F.interpolate(values[:, None], size=(SIDE, SIDE), mode="nearest")[:, 0]
    tiles = fine.unflatten(2, (4, TILE)).unflatten(1, (4, TILE)).sum(dim=(2, 4)).flatten(1)
    return float((tiles[torch.arange(len(places)), places] / tiles.sum(dim=1).clamp(min=1e-12)).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=[*MODELS])
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--folder", type=Path, default=Path("runs/planted"))
    parser.add_argument("--shuffled", type=int, default=0)
    options = parser.parse_args()
    print(describe("timm"))
    images, _, places = planted(options.images, seed=5)
    for name in options.models:
        model = trained(name, options.folder)
        print("| model | method | inside | above the even share | brightest fifth | random fifth | s an image |")
        for method in METHODS:
            start = time.process_time()
            try:
                values = torch.cat([heat_maps(model, part, method=method).values for part in images.split(8)])
            except NoMap:
                continue
            seconds = (time.process_time() - start) / len(images)
            found = measure(model, images.split(8), method=method)
            assert found is not None
            above = (values - values.mean(dim=(1, 2), keepdim=True)).clamp(min=0)
            shares = f"{inside(values, places):.2f} | {inside(above, places):.2f}"
            costs = f"{100 * found.brightest:.1f} | {100 * found.random:.1f}"
            print(f"| {name} | {method} | {shares} | {costs} | {seconds:.3f} |", flush=True)
    if options.shuffled:
        shuffle(model, images, options.shuffled)


def shuffle(model: nn.Module, images: Tensor, copies: int) -> None:
    with torch.no_grad():
        classes = model(images).argmax(dim=1)
    itself = trained_one = 0
    for seed in range(copies):
        other, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in other.parameters():
                weight.copy_(weight.flatten()[torch.randperm(weight.numel(), generator=generator)].view_as(weight))
        found = measure(other, images.split(8))
        itself += found is not None and found.faithful
        values = heat_maps(other, images, classes).values
        bright, chance = costs_of(Subject(model, images, classes), values, seed=seed)
        lead = bright - chance
        trained_one += paired(lead) < LEVEL and float(lead.mean()) >= LEAST
    print(
        f"of {copies} with shuffled weights called faithful: {itself} to themselves, {trained_one} to the trained one"
    )


if __name__ == "__main__":
    main()
