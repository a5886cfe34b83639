"""Heat maps that find planted evidence, and are faithful: `python -m benchmarks.heat_maps [MODEL...] [--images N]`.

Pictures of 4 x 4 tiles: one of them, anywhere, shows one of four patterns, which is the class; the others show some of
six other patterns, all in random colours. Each model is trained on 2,000 of them until it is right on 99.5 % of 256
others; its weights are kept in `--folder` for the next time. For each method, over N pictures that it never saw: the
share of the relevance in the tile of the class (by chance 6 %), the same of what lies above the even share, which is
what a picture shows in bright colours, the share of pictures whose brightest tile is that of the class, and what
removing the brightest fifth costs, against a random fifth. `--training S`: of models trained with another seed.
`--shuffled N`: of N copies of the last model, the numbers in each of their weights (or of the head's alone) shuffled,
how many have maps that are called faithful: to the copy itself, and to the trained model (Adebayo et al. 2018,
arXiv:1810.03292); and how alike these maps are to the trained model's. `--runs RUN...`: in place of all this, what
removing costs on the validation images of runs, photographs for instance, with the standard error of the lead.
"""

import argparse
import copy
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.environment import describe
from datasets.bundle import BatchKey
from datasets.sampling import evenly
from explanations.faithfulness import LEAST, LEVEL, costs_of, measure, paired
from explanations.methods import METHODS, heat_maps
from explanations.subject import NoMap, Subject
from inference.classifier import open_classifier
from inference.evaluate import images_of
from trainers.storage.finished_run import read_run_config
from vit import build_model
from vit.parts import parts
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


def trained(name: str, folder: Path, *, seed: int = 0) -> nn.Module:
    weights, rate = MODELS[name]
    path = folder / (f"{name}_s{seed}.safetensors" if seed else f"{name}.safetensors")
    torch.manual_seed(seed)
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


def by_tile(values: Tensor) -> Tensor:
    """Maps (N, G, G) -> (N, 16): the share of each tile."""
    fine = F.interpolate(values[:, None], size=(SIDE, SIDE), mode="nearest")[:, 0]
    tiles = fine.unflatten(2, (4, TILE)).unflatten(1, (4, TILE)).sum(dim=(2, 4)).flatten(1)
    return tiles / tiles.sum(dim=1, keepdim=True).clamp(min=1e-12)


def inside(values: Tensor, places: Tensor) -> float:
    """The share of maps (N, G, G) that lies in the tiles."""
    return float(by_tile(values)[torch.arange(len(places)), places].mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=[*MODELS])
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--folder", type=Path, default=Path("runs/planted"))
    parser.add_argument("--methods", nargs="+", default=[*METHODS], choices=[*METHODS])
    parser.add_argument("--training", type=int, default=0)
    parser.add_argument("--pictures", type=int, default=5, help="Seed that draws the pictures.")
    parser.add_argument("--shuffled", type=int, default=0)
    parser.add_argument("--runs", nargs="+", default=[])
    options = parser.parse_args()
    print(describe("timm"))
    for run in options.runs:
        of_run(run, options.methods, options.images)
    if options.runs:
        return
    images, _, places = planted(options.images, seed=options.pictures)
    for name in options.models:
        model = trained(name, options.folder, seed=options.training)
        print("| model | method | inside | above the even share | right tile | brightest fifth | random | s an image |")
        for method in options.methods if not options.shuffled else ():
            print(f"| {name} | {method} | {row(model, method, images, places)} |", flush=True)
    if options.shuffled:
        shuffle(model, images, options.shuffled)


def of_run(run: str, methods: Sequence[str], count: int) -> None:
    classifier = open_classifier(run, device="cpu")
    assert classifier.run_dir is not None
    config = read_run_config(classifier.run_dir)
    data = images_of(classifier.run_dir, config, classifier.spec, tuple(classifier.class_names))
    dataset = data.dataloaders["val"].dataset
    batches = [dataset.__getitems__(BatchKey(0, part))[0] for part in np.array_split(evenly(len(dataset), count), 8)]
    print("| run | images | method | brightest fifth | random fifth | lead and its standard error | p |")
    for method in methods:
        with suppress(NoMap):
            maps = [heat_maps(classifier.model, images, method=method) for images in batches]
            subjects = [
                Subject(classifier.model, images, found.classes) for images, found in zip(batches, maps, strict=True)
            ]
            pairs = zip(subjects, maps, strict=True)
            costs = [costs_of(subject, found.values, seed=seed) for seed, (subject, found) in enumerate(pairs)]
            bright, chance = (100 * torch.cat(each) for each in zip(*costs, strict=True))
            lead = bright - chance
            error = float(lead.std()) / len(lead) ** 0.5
            numbers = (
                f"{float(bright.mean()):.1f} | {float(chance.mean()):.1f} | {float(lead.mean()):.1f} ± {error:.1f}"
            )
            print(f"| {run} | {len(lead)} | {method} | {numbers} | {paired(lead.double()):.1g} |", flush=True)


def row(model: nn.Module, method: str, images: Tensor, places: Tensor) -> str:
    start = time.process_time()
    try:
        values = torch.cat([heat_maps(model, part, method=method).values for part in images.split(8)])
    except NoMap:
        return "no map"
    seconds = (time.process_time() - start) / len(images)
    found = measure(model, images.split(8), method=method)
    assert found is not None
    above = (values - values.mean(dim=(1, 2), keepdim=True)).clamp(min=0)
    hit = (by_tile(values).argmax(dim=1) == places).float().mean()
    shares = f"{inside(values, places):.2f} | {inside(above, places):.2f} | {hit:.2f}"
    return f"{shares} | {100 * found.brightest:.1f} | {100 * found.random:.1f} | {seconds:.3f}"


ITSELF = 20
"""Copies whose maps are judged by the copies themselves, too."""


def shuffle(model: nn.Module, images: Tensor, copies: int) -> None:
    ours = heat_maps(model, images)
    for part in ("all", "head"):
        itself, of_trained, alike = 0, 0, []
        for seed in range(copies):
            other = shuffled(model, part, seed)
            if seed < ITSELF:
                found = measure(other, images.split(8))
                itself += found is not None and found.faithful
            values = heat_maps(other, images, ours.classes).values
            bright, chance = costs_of(Subject(model, images, ours.classes), values, seed=seed)
            lead = bright - chance
            of_trained += paired(lead) < LEVEL and float(lead.mean()) >= LEAST
            alike += [
                float(np.corrcoef(a.flatten(), b.flatten())[0, 1]) for a, b in zip(values, ours.values, strict=True)
            ]
        print(f"{part} weights shuffled, {copies} copies, {len(images)} pictures, {ours.method}:", end=" ")
        print(
            f"called faithful to the copy {itself} of {min(ITSELF, copies)}, to the trained model {of_trained};",
            end=" ",
        )
        print(f"correlation with the trained model's maps {np.nanmean(alike):.2f}", flush=True)


def shuffled(model: nn.Module, part: str, seed: int) -> nn.Module:
    """A copy, the numbers within each of its weights in another order."""
    other, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    of = other if part == "all" else nn.ModuleList(parts(other).head)
    with torch.no_grad():
        for weight in of.parameters():
            weight.copy_(weight.flatten()[torch.randperm(weight.numel(), generator=generator)].view_as(weight))
    return other


if __name__ == "__main__":
    main()
