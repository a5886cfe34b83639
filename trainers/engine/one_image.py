"""Checks of a model on one training image, before anything is written."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from common.errors import OptionError, exit_code, first_line
from datasets.bundle import BatchKey, DataBundle, image_set
from datasets.sampling import batch_sampler


def first_image(data: DataBundle, device: torch.device) -> Tensor:
    """Return the first training image, float32 (1, C, H, W)."""
    images: Tensor = image_set(data.dataloaders["train"]).batch(BatchKey(0, np.zeros(1, np.int64)))[0]
    return images.to(device)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluate a model in the block, without gradients, and leave every module in the mode that it was in."""
    modes = {module: module.training for module in model.modules()}
    try:
        with torch.no_grad():
            model.eval()
            yield
    finally:
        for module, training in modes.items():
            module.training = training


def require_outputs(model: nn.Module, data: DataBundle, device: torch.device, name: str) -> None:
    """Let a model see one image, where it or the Dataset is a program's own.

    Raises OptionError: it cannot take it, or has not one output for each class."""
    image, wanted = first_image(data, device), (1, len(data.class_names))
    model = getattr(model, "_orig_mod", model)  # of torch.compile, which would compile for a batch of one
    try:
        with evaluating(model):
            outputs = model(image)
    except Exception as error:
        if exit_code(error) != 1:  # out of memory, say
            raise
        shape = tuple(image.shape[1:])
        raise OptionError(f"{name} cannot take images of shape {shape}: {first_line(error)}") from error
    found = f"logits of shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
    if found != f"logits of shape {wanted}":
        raise OptionError(f"{name} gives {found} for one image: its forward must return logits of shape {wanted}")


def refuse_batches_of_one(model: nn.Module, data: DataBundle, device: torch.device, *, accumulate: int) -> None:
    """Refuse a run of which a step, or a part of one, has one image that the model cannot be trained on."""
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
    """Return whether a batch norm that learns has one value a channel of one image."""
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
        model.train()  # what is frozen stays as it is
        found = any(norm.training for norm in alone)
    for hook in hooks:
        hook.remove()
    return found
