"""Convolutional networks of other libraries as a processor computes them fastest: docs/evidence/benchmarks.md,
"Convolutional networks"."""

from functools import partial

import torch
from torch import Tensor, nn


def quick_on_processors(model: nn.Module) -> nn.Module:
    """The model, its names and weights as they were: with an image's channels side by side in memory, and depthwise
    convolutions that train in float32, whatever autocast says. Their gradients in bf16 take several times as long, for
    oneDNN has no fast code for them, and they do little of a network's arithmetic."""
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    depthwise = [layer for layer in convolutions if layer.groups == layer.in_channels > 1]
    for layer in depthwise:
        # Of the instance: the class stays as it is, and copies (deepcopy, EMA, pickle) keep the behaviour.
        layer.forward = partial(_in_float32_where_it_trains, layer)  # type: ignore[method-assign]
    return model.to(memory_format=torch.channels_last)


def _in_float32_where_it_trains(layer: nn.Conv2d, images: Tensor) -> Tensor:
    kind = images.device.type
    trains = torch.is_grad_enabled() and (images.requires_grad or layer.weight.requires_grad)
    if kind != "cpu" or not trains or not torch.is_autocast_enabled(kind):
        made: Tensor = type(layer).forward(layer, images)
        return made
    with torch.autocast(kind, enabled=False):
        made = type(layer).forward(layer, images.float())
    return made.to(torch.get_autocast_dtype(kind))  # what the next layer would get
