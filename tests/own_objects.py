"""A program's own module, Datasets and options: what is handed to `train` from Python."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from datasets import DataConfig
from trainers.config import OutputConfig, RunConfig, TrainConfig
from vit import ModelConfig


def tensors(n, seed):
    """Grey images whose brightness is their class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 3
    return TensorDataset(0.3 * torch.rand(n, 1, 8, 8, generator=generator) + labels[:, None, None, None] / 3, labels)


class Noisy(Dataset):
    """Draws from torch's and numpy's global generators, as augmentations do."""

    def __init__(self, inner):
        self.inner, self.labels = inner, inner.tensors[1]

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        image, label = self.inner[index]
        return image + 0.1 * torch.randn(image.shape) + float(np.random.rand()) / 10, label


def splits():
    return {"train": Noisy(tensors(48, 0)), "val": tensors(18, 1), "test": tensors(18, 2)}


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 3))


def options(folder, *, model=None, epochs=4, tb="scalars", **train_options):
    return RunConfig(
        model=ModelConfig(**(model or {})),
        data=DataConfig(batch_size=8, workers=0),
        train=TrainConfig(epochs=epochs, lr=0.03, device="cpu", **train_options),
        output=OutputConfig(output_dir=folder, run_name="r", tb=tb),
    )
