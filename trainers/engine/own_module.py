"""Check of a module that a program gives a run in place of a model by its name."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from common.errors import OptionError, exit_code, first_line
from datasets.bundle import BatchKey, DataBundle, image_set


def one_image(data: DataBundle) -> Tensor:
    """Return the first training image, float32 (1, C, H, W)."""
    images: Tensor = image_set(data.dataloaders["train"]).__getitems__(BatchKey(0, np.zeros(1, np.int64)))[0]
    return images


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
    """Let a program's own module see one image, before anything is written. Raises OptionError: it cannot take the
    image, or has not one output for each class."""
    classes = len(data.class_names)
    images = one_image(data)
    model = getattr(model, "_orig_mod", model)  # of torch.compile, which would compile for a batch of one
    try:
        with evaluating(model):
            outputs = model(images.to(device))
    except Exception as error:
        if exit_code(error) != 1:  # out of memory, say
            raise
        shape = tuple(images.shape[1:])
        raise OptionError(f"{name} cannot take images of shape {shape}: {first_line(error)}") from error
    if not isinstance(outputs, Tensor):
        raise OptionError(f"{name} gives a {type(outputs).__name__}: its forward must return logits (B, {classes})")
    if outputs.shape != (1, classes):
        found = f"logits of shape {tuple(outputs.shape)}"
        raise OptionError(
            f"{name} gives {found} for one image, and there are {classes} classes: (1, {classes}) would do"
        )
