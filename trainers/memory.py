"""Less memory for more time: activations of the blocks computed again in the backward pass (Chen et al. 2016)."""

from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


def recompute_activations(blocks: list[nn.Module]) -> None:
    """Keep only the input of each block in training; its dropout draws the same numbers the second time."""
    if any(isinstance(module, _BatchNorm) for block in blocks for module in block.modules()):
        raise ValueError("checkpoint_activations: a model with batch norm would count every batch's statistics twice")
    for block in blocks:
        # A method of the instance: the class stays as it is, and copies (deepcopy, EMA) keep the behaviour.
        block.forward = MethodType(_forward, block)


def _forward(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
    forward = MethodType(type(block).forward, block)
    if not (block.training and torch.is_grad_enabled()):
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)
