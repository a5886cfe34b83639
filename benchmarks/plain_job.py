"""Train, evaluate or predict as benchmarks/many_classes.py does, in a plain PyTorch loop.

    python -m benchmarks.plain_job FOLDER train|evaluate|predict --out OUT --labels-per-class N [--part PATTERN]

FOLDER has a folder for each class, and PATTERN chooses those that are predicted.
"""

from __future__ import annotations

import argparse
import csv
import glob
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import default_loader
from torchvision.transforms import v2

from vit.config import VIT_SHAPES, ViTConfig
from vit.model import VisionTransformer

SIZE, BATCH, TENTH = 8, 256, 0.1
LAST = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.5] * 3)]
PLAIN = v2.Compose([v2.Resize(SIZE), *LAST])
AUGMENTED = v2.Compose([v2.Resize(SIZE), v2.RandomCrop(SIZE, padding=1), v2.RandomHorizontalFlip(), *LAST])


class Files(Dataset):
    """Pictures without labels."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return PLAIN(default_loader(self.paths[index])), 0


def network(classes: int) -> VisionTransformer:
    return VisionTransformer(ViTConfig(**VIT_SHAPES["vit_micro_2"], num_classes=classes))


def splits(targets: list[int], labels_per_class: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw a tenth for validation, a tenth for the test, and so many images of each class of the rest."""
    order = np.random.default_rng(0).permutation(len(targets))
    tenth = int(TENTH * len(order))
    rest, counts, chosen = order[2 * tenth :], np.zeros(max(targets) + 1, int), []
    for row in rest.tolist():
        if counts[targets[row]] < labels_per_class:
            counts[targets[row]] += 1
            chosen.append(row)
    return np.array(chosen), order[:tenth], order[tenth : 2 * tenth]


@torch.inference_mode()
def outputs(model: nn.Module, loader: DataLoader) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    model.eval()
    for images, labels in loader:
        yield model(images), labels


def accuracy(model: nn.Module, loader: DataLoader) -> float:
    right = [(logits.argmax(1) == labels).float().mean().item() for logits, labels in outputs(model, loader)]
    return float(np.mean(right))


def train(model: nn.Module, training: DataLoader, validation: DataLoader, test: DataLoader) -> None:
    optimizer, loss_fn = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True), nn.CrossEntropyLoss()
    print("untrained", accuracy(model, validation))
    model.train()
    for images, labels in training:
        loss = loss_fn(model(images), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    print("validation", accuracy(model, validation))
    print("test", accuracy(model, test))


def write_table(file: Path, model: nn.Module, loader: DataLoader, paths: list[str], names: list[str]) -> None:
    with file.open("w", newline="", encoding="utf-8") as stream:
        table, row = csv.writer(stream), 0
        table.writerow(["path", "class", "probability"])
        for logits, _ in outputs(model, loader):
            best = logits.softmax(1).max(1)
            for share, label in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                table.writerow([paths[row], names[label], f"{share:.4f}"])
                row += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("job", choices=("train", "evaluate", "predict"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--labels-per-class", type=int, required=True)
    parser.add_argument("--part", help="pattern of the folders to predict")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    weights = options.out / "model.safetensors"

    def loader(images: Dataset, *, shuffle: bool = False) -> DataLoader:
        return DataLoader(images, BATCH, shuffle=shuffle, num_workers=2)

    if options.job == "predict":
        paths = sorted(path for folder in glob.glob(options.part) for path in glob.glob(f"{folder}/*.jpg"))
        names = sorted(path.name for path in options.folder.iterdir())
        model = network(len(names))
        model.load_state_dict(load_file(weights))
        write_table(options.out / "plain.csv", model, loader(Files(paths)), paths, names)
        return
    images = ImageFolder(options.folder, PLAIN)
    training, val, test = splits(images.targets, options.labels_per_class)
    model = network(len(images.classes))
    if options.job == "evaluate":
        model.load_state_dict(load_file(weights))
        paths = [images.samples[row][0] for row in test]
        write_table(options.out / "test.csv", model, loader(Subset(images, test)), paths, images.classes)
        return
    augmented = ImageFolder(options.folder, AUGMENTED)
    train(
        model, loader(Subset(augmented, training), shuffle=True), loader(Subset(images, val)),
        loader(Subset(images, test)),
    )  # fmt: skip
    save_file(model.state_dict(), weights)


if __name__ == "__main__":
    main()
