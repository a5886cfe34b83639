"""A head that begins as the linear probe of the model as it starts (LP-FT: Kumar et al. 2022, arXiv:2202.10054).

What is trained after it then has no reason to distort the features: a zero head would, while it learns itself.
N images, D numbers that reach the head's last Linear, K classes.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from datasets.bundle import image_set
from datasets.image_dataset import ImageDataset
from datasets.loaders import evaluation_loader
from datasets.split import subset_training
from trainers.features import compute_features
from trainers.setup import RunSetup
from vit.parts import parts

PENALTIES = tuple(10.0**exponent for exponent in range(0, -6, -1))
"""Penalties on the squared weights, beside the mean cross-entropy; the strongest first."""


MOST_IMAGES = 60_000
"""Training images to which a head is fitted: the features of more take gigabytes."""


@torch.no_grad()
def fit_head(setup: RunSetup) -> str:
    """Give the setup's model the head that predicts the validation images best, of those that logistic regression finds
    for the training images, not augmented; one line about it."""
    ends = [module for part in parts(setup.network).head for module in part.modules() if isinstance(module, nn.Linear)]
    head = ends[-1]

    def seen(loader: DataLoader) -> tuple[Tensor, Tensor]:
        features = compute_features(setup.network, loader, setup.device, amp_dtype=setup.amp_dtype, end=head)
        return features.double(), torch.from_numpy(image_set(loader).labels)

    (x, y), (x_val, y_val) = seen(not_augmented(setup)), seen(setup.data.dataloaders["val"])
    mean, deviation = x.mean(dim=0), x.std(dim=0).clamp(min=1e-6)
    train, val = ((x - mean) / deviation, y), ((x_val - mean) / deviation, y_val)
    weight, bias = best_probe(train, val, head.out_features)
    head.weight.copy_(weight / deviation)
    head.bias.copy_(bias - weight / deviation @ mean)
    right = ((val[0] @ weight.T + bias).argmax(dim=1) == y_val).double().mean().item()
    return f"begins as a linear probe: {right:.1%} of the validation images"


def not_augmented(setup: RunSetup) -> DataLoader:
    """Load the training images as for evaluation, a part of very many; the Datasets of a program as they are."""
    loader = setup.data.dataloaders["train"]
    images = image_set(loader)
    if not isinstance(images, ImageDataset):
        return loader
    samples, share = images.samples, MOST_IMAGES / len(images)
    if share < 1:
        samples = subset_training(samples, replace(setup.config.data, labels_per_class=None, fraction=share))
    return evaluation_loader(samples, "train", setup.spec, setup.config.data, device=setup.device)


def best_probe(train: tuple[Tensor, Tensor], val: tuple[Tensor, Tensor], classes: int) -> tuple[Tensor, Tensor]:
    """Weight (K, D) and bias (K,), float64, of the penalty with the least validation loss; weaker ones are tried as
    long as that falls."""
    best, least = (train[0].new_zeros(classes, train[0].size(1)), train[0].new_zeros(classes)), math.inf
    for penalty in PENALTIES:
        found = logistic_regression(*train, penalty, *best)
        loss = nn.functional.cross_entropy(val[0] @ found[0].T + found[1], val[1]).item()
        if loss > least:
            break
        best, least = found, loss
    return best


@torch.enable_grad()
def logistic_regression(x: Tensor, y: Tensor, penalty: float, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The weight (K, D) and bias (K,) with the least mean cross-entropy plus `penalty` times the squared weights, found
    from those that are given. x (N, D), y int64 (N,)."""
    weight, bias = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=200, tolerance_grad=1e-6, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(x @ weight.T + bias, y) + penalty * weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return weight.detach(), bias.detach()
