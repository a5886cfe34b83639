"""Refusal of batches of one image where a batch norm would take its statistics from one value."""

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from common.errors import OptionError
from datasets.bundle import DataBundle
from datasets.sampling import batch_sampler
from trainers.engine.own_module import evaluating, one_image


def refuse_batches_of_one(model: nn.Module, data: DataBundle, device: torch.device, *, accumulate: int) -> None:
    """Refuse a run of which a step, or a part of one, has one image that the model cannot be trained on."""
    sampler = batch_sampler(data.dataloaders["train"])
    n, size, slices = sampler.length, sampler.batch_size, accumulate * sampler.share.world_size

    def leaves_one(size: int) -> bool:
        rest = n % size
        return size < 2 * slices or (sampler.share.world_size <= rest < 2 * slices)

    if not leaves_one(size) or not needs_two(model, one_image(data), device):
        return
    near = (size + sign * step for step in range(1, n) for sign in (-1, 1))
    better = next((other for other in near if 2 <= other <= n and not leaves_one(other)), None)
    remedy = f"--batch-size {better} leaves none" if better else "give more images"
    parts = f" in {slices} parts" if slices > 1 else ""
    raise OptionError(
        f"{n} training images in steps of --batch-size {size}{parts} leave an image alone, and a batch norm of this"
        f" model needs two at this image size: {remedy}"
    )


def needs_two(model: nn.Module, image: torch.Tensor, device: torch.device) -> bool:
    """Return whether a batch norm that learns has one value a channel of one image."""
    alone: list[nn.Module] = []

    def note(norm: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if inputs[0][:, 0].numel() == 1:
            alone.append(norm)

    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if not norms:
        return False
    hooks = [norm.register_forward_pre_hook(note) for norm in norms]
    with evaluating(model):
        model(image.to(device))
        model.train()  # what is frozen stays as it is
        found = any(norm.training for norm in alone)
    for hook in hooks:
        hook.remove()
    return found
