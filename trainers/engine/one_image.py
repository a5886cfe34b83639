"""Check a model on a few images: before anything is written, and when a loss is not finite."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader

from common.errors import DataError, OptionError, WeightsError, exit_code, first_line
from common.text import pluralise
from datasets.bundle import BatchKey, DataBundle, ImageSet, image_set
from datasets.sampling import batch_sampler
from vit.anatomy import uncompiled

LARGEST = 1e3
"""A value above those of any usual scale: 8-bit images end at 255."""


def first_image(data: DataBundle, device: torch.device, split: str = "train") -> Tensor:
    """Return the first image of a split, float32 (1, C, H, W)."""
    images: Tensor = image_set(data.dataloaders[split]).batch(BatchKey(0, np.zeros(1, np.int64)))[0]
    return images.to(device)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluate a model in the block, without gradients; restore the mode of every module."""
    modes = {module: module.training for module in model.modules()}
    try:
        with torch.no_grad():
            model.eval()
            yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextmanager
def training(model: nn.Module) -> Iterator[None]:
    """Set a model to training mode in the block, without gradients.

    Modes and running statistics are restored."""
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        with evaluating(model):
            model.train()
            yield
    finally:
        for buffer, values in kept:
            buffer.copy_(values)


def require_outputs(model: nn.Module, data: DataBundle, device: torch.device, name: str) -> None:
    """Run a model on one image of each split, and in training mode on two.

    Raises OptionError: it cannot take them, or does not return one logit per class.
    """
    model = uncompiled(model)  # not the compiled one, which would compile for these batches
    of_splits = {split: first_image(data, device, split) for split in data.dataloaders}
    looks = [(image, evaluating, f" of {split}") for split, image in of_splits.items()]
    for images, looking, where in (*looks, (of_splits["train"].repeat(2, 1, 1, 1), training, " in training")):
        count, shape, wanted = len(images), tuple(images.shape[1:]), (len(images), len(data.class_names))
        try:
            with looking(model):
                outputs = model(images.clone())
        except Exception as error:
            if exit_code(error) != 1:  # out of memory, say
                raise
            raise OptionError(f"{name} cannot take images of shape {shape}{where}: {first_line(error)}") from error
        found = (
            f"logits of shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
        )
        if found != f"logits of shape {wanted}":
            hints = {
                " (aux_logits=False)": hasattr(model, "aux_logits"),
                ": class 0 has no images, do labels start at 1?": data.samples.labels.min() > 0,
            }
            raise OptionError(
                f"{name} gives {found} for {pluralise(count, 'image')}{where}: its forward must return logits of shape"
                f" {wanted}{''.join(hint for hint, holds in hints.items() if holds)}"
            )


def require_finite(model: nn.Module, loader: DataLoader, step: int) -> None:
    """Look for weights or images that are not finite before a training step.

    Raises WeightsError: a weight. DataError: an image of the step's batch, or one with values far beyond any scale.
    """
    for name, weights in model.named_parameters():
        if not weights.isfinite().all():
            raise WeightsError(f"the model's {name} holds values that are not finite: start from other weights")
    images = loader.dataset
    if not isinstance(images, ImageSet):
        return
    epoch, batch = divmod(step - 1, len(loader))
    key = batch_sampler(loader).key(epoch, batch)
    for draw, largest in zip(key.draws, images.batch(key)[0].abs().flatten(1).amax(dim=1).tolist(), strict=True):
        if not largest < LARGEST:
            where = images.path(int(draw) % len(images))
            raise DataError(f"image {where} has the value {largest:.3g}: bring its values to about -3 to 3")


def refuse_batches_of_one(model: nn.Module, data: DataBundle, device: torch.device, *, accumulate: int) -> None:
    """Refuse batches, or parts, of one image that the model cannot train on."""
    sampler = batch_sampler(data.dataloaders["train"])
    n, size, slices = sampler.length, sampler.batch_size, accumulate * sampler.share.world_size

    def leaves_one(size: int) -> bool:
        rest = n % size
        return size < 2 * slices or (sampler.share.world_size <= rest < 2 * slices)

    if not leaves_one(size) or not needs_two(model, data, device):
        return
    near = (size + sign * step for step in range(1, n) for sign in (-1, 1))
    better = next((other for other in near if 2 <= other <= n and not leaves_one(other)), None)
    remedy = f"--batch-size {better} leaves none" if better else "give more images"
    parts = f" in {slices} parts" if slices > 1 else ""
    raise OptionError(
        f"{n} training images in steps of --batch-size {size}{parts} leave an image alone, and a batch norm of this"
        f" model needs two at this image size: {remedy}"
    )


def needs_two(model: nn.Module, data: DataBundle, device: torch.device) -> bool:
    """Return whether a trained batch norm has a single value per channel for one image."""
    alone: list[nn.Module] = []

    def note(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if inputs[0][:, 0].numel() == 1:
            alone.append(norm)

    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if not norms:
        return False
    hooks = [norm.register_forward_pre_hook(note) for norm in norms]
    with evaluating(model):
        model(first_image(data, device))
        model.train()  # frozen layers stay in evaluation mode
        found = any(norm.training for norm in alone)
    for hook in hooks:
        hook.remove()
    return found
