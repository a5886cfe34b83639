"""Say how a model is built, as the module of its library says; record what its layers do, and recompute them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from common.errors import OptionError
from vit.config import LIBRARIES, grid_side


@dataclass(frozen=True)
class Anatomy:
    """List the parts of a classifier from input to output. What is in none of them lies before the blocks."""

    blocks: Sequence[nn.Module]
    norms: Sequence[nn.Module]
    """Layers between the blocks and the head."""
    head: Sequence[nn.Module]
    """What turns features into logits, one layer after the other."""
    head_name: str
    """Name of the linear layer that classifies."""
    block_name: str = "blocks"
    stem: str | None = None
    """Name of the first weight, which reads the pixels; None: no file of weights loads into such a model."""
    family: str | None = None
    """Table of families.toml that turns its names into ours; None: only files with its own names load into it."""
    positions: str | None = None
    """Name of the learnt positions (1, T, D) of a class token and a square grid of patches."""
    extra_tokens: int = 0
    """Tokens between the class token and the patches, which have no place on a map."""
    num_heads: int = 0
    """Heads of the first block's attention; 0 where it has none."""


def anatomy_of(model: nn.Module) -> Anatomy:
    """Return how a model is built. Raises OptionError: its class is of no library here."""
    found = known_anatomy(model)
    if found is None:
        raise OptionError(f"{type(model).__name__} is not a model of this project: its blocks and head are not known")
    return found


def known_anatomy(model: nn.Module) -> Anatomy | None:
    """Ask the libraries whose class a model may have; None for any other model."""
    model = uncompiled(model)
    homes = [f"{kind.__module__}." for kind in type(model).__mro__]
    modules = (row.module for home in homes for row in LIBRARIES if home.startswith(f"{row.classes}."))
    found = (import_module(f"{__package__}.{module}").anatomy(model) for module in modules)
    return next((each for each in found if each is not None), None)


def uncompiled(model: nn.Module) -> nn.Module:
    """Return the model that `torch.compile` wrapped; any other as it is."""
    return getattr(model, "_orig_mod", model)


def grid_positions(model: nn.Module) -> str | None:
    """Find positions of a class token and a square grid, by their shape.

    A library may give them many names."""
    shapes = ((name, parameter.shape) for name, parameter in model.named_parameters() if "pos" in name)
    return next((name for name, shape in shapes if len(shape) == 3 and shape[0] == 1 and grid_side(shape[1])), None)


def position_embeddings(model: nn.Module) -> Tensor | None:
    """Return the learnt positions (T, D) of a class token and a square grid, if any."""
    model = uncompiled(model)
    own = known_anatomy(model)
    return model.get_parameter(own.positions).detach()[0] if own and own.positions else None


def outermost(layers: Sequence[nn.Module]) -> list[nn.Module]:
    """Leave out the layers within others."""
    within = {inner for layer in layers for inner in layer.modules() if inner is not layer}
    return [layer for layer in layers if layer not in within]


def count_parameters(module: nn.Module) -> tuple[int, int]:
    """Count a module's parameters: all, and the trainable ones."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in module.parameters()]
    return sum(size for size, _ in sizes), sum(size for size, trains in sizes if trains)


@contextmanager
def recording(
    ends: Iterable[tuple[nn.Module, Literal["in", "out"]]], *, take: Callable[[Tensor], Tensor] = lambda value: value
) -> Iterator[list[Tensor]]:
    """Record what modules are given or hand on while entered: `take` of the first tensor.

    What goes into a head are the features."""
    record: list[Tensor] = []

    def keep(value: Any) -> None:
        record.append(take(value[0] if isinstance(value, tuple) else value))

    with ExitStack() as hooks:
        for module, end in ends:
            if end == "in":
                hooks.enter_context(module.register_forward_pre_hook(lambda _, given: keep(given)))
            else:
                hooks.enter_context(module.register_forward_hook(lambda _, given, made: keep(made)))
        yield record


def zero_(layer: nn.Linear) -> nn.Linear:
    """Set a linear layer to zero: all classes are then equally likely."""
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def set_layer_norm_eps(model: nn.Module, eps: float | None) -> None:
    """Give every LayerNorm this epsilon; None leaves them as they are."""
    for module in model.modules():
        if isinstance(module, nn.LayerNorm) and eps is not None:
            module.eps = eps


def recompute_activations(blocks: list[nn.Module]) -> None:
    """Compute the activations of each block again in the backward pass, and keep only its input.

    Less memory for more time (Chen et al. 2016). Dropout draws the same numbers the second time.
    """
    if not blocks:
        raise OptionError("checkpoint_activations: this model has no blocks that timm names")
    if any(isinstance(module, _BatchNorm) for block in blocks for module in block.modules()):
        raise OptionError("checkpoint_activations: a model with batch norm would count every batch's statistics twice")
    for layer in (layer for block in blocks for layer in _called(block)):
        # Of the instance: the class stays as it is, and copies (deepcopy, EMA, pickle) keep the behaviour.
        layer.forward = partial(_forward_again, layer)


def _called(block: nn.Module) -> list[nn.Module]:
    """Return a block, or the layers of a list, which is not called itself."""
    return [layer for part in block for layer in _called(part)] if isinstance(block, nn.ModuleList) else [block]


def _forward_again(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
    if not (block.training and torch.is_grad_enabled()):
        return type(block).forward(block, *args, **kwargs)
    return checkpoint(type(block).forward, block, *args, use_reentrant=False, **kwargs)
