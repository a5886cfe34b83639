"""Where the blocks, the final norm and the head of any model are, and what is done to them: freeze, recompute, look."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from vit.errors import OptionError

LOW_RANK = "vit.low_rank"
"""What adapts the attention for `lora:R`."""


@dataclass(frozen=True)
class Parts:
    """A classifier in the order of its data flow; whatever is not listed belongs to the stem."""

    blocks: Sequence[nn.Module]
    norms: Sequence[nn.Module]
    head: Sequence[nn.Module]
    block_name: str = "blocks"


def parts(model: nn.Module) -> Parts:
    """The parts of a model that `build_model` made, told by its modules: naming classes would import all libraries."""
    own: Any = getattr(model, "find_parts", None)  # of the adapter of vit/huggingface.py
    if own is not None:
        return own()
    children: dict[str, Any] = dict(model.named_children())
    if {"embedding", "blocks", "norm", "head"} <= children.keys():  # the ViT of vit/model.py
        before = [children["pre_logits"], nn.Tanh()] if "pre_logits" in children else []
        return Parts(list(children["blocks"]), [children["norm"]], [*before, children["head"]])
    if {"encoder", "heads"} <= children.keys():  # torchvision's
        return Parts(list(children["encoder"].layers), [children["encoder"].ln], [children["heads"]])
    if {"layer4", "fc"} <= children.keys():  # its ResNet: the four stages are the blocks
        stages = [children[f"layer{number}"] for number in (1, 2, 3, 4)]
        return Parts(stages, [], [children["fc"]], block_name="stages")
    if hasattr(model, "get_classifier"):
        return import_module("vit.timm_models").parts_of(model)
    raise OptionError(f"{type(model).__name__} is not a model of this project: its blocks and head are not known")


def count_parameters(module: nn.Module) -> tuple[int, int]:
    """All of a module's parameters, and those that train."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in module.parameters()]
    return sum(size for size, _ in sizes), sum(size for size, trains in sizes if trains)


@contextmanager
def inputs_of(module: nn.Module) -> Iterator[list[Tensor]]:
    """While entered, the list gets what each call of the module is given: of a head, the features."""
    inputs: list[Tensor] = []
    with module.register_forward_pre_hook(lambda _, given: inputs.append(given[0])):
        yield inputs


def freeze(model: nn.Module, trainable: str) -> None:
    """Let `all` parameters train, only the `head`, `last:K` (the head, the final norm and the last K blocks), `norms`
    (the head and every LayerNorm) or `lora:R` (the head, and what vit/low_rank.py adds to the attention of each block).

    A frozen part stays in evaluation mode even after `model.train()`: no dropout, no stochastic depth and no moving
    batch statistics, so that its output is a fixed function of the image.
    """
    if trainable == "all":
        return
    own, (kind, _, number) = parts(model), trainable.partition(":")
    chosen: list[nn.Module] = []
    if kind == "last":
        count = int(number)
        if count > len(own.blocks):
            raise OptionError(f"trainable={trainable}: this model has {len(own.blocks)} {own.block_name}")
        chosen = [*own.norms, *own.blocks[len(own.blocks) - count :]]
    elif kind == "norms":
        chosen = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    elif kind == "lora":
        chosen = import_module(LOW_RANK).adapt(model, int(number))
    if kind != "head" and not chosen:
        raise OptionError(
            f"trainable={trainable}: {type(model).__name__} has no such part; all, head or last:K train it"
        )
    model.requires_grad_(False)
    for part in (*own.head, *chosen):
        part.requires_grad_(True)
    # A method of the instance: the model keeps its class, and copies (deepcopy, EMA) keep the behaviour.
    model.train = MethodType(_train_unfrozen_parts, model)  # type: ignore[method-assign]
    model.train(model.training)


def _train_unfrozen_parts(model: nn.Module, mode: bool = True) -> nn.Module:
    type(model).train(model, False)
    model.training = mode
    own = parts(model)
    for part in (*own.blocks, *own.norms, *own.head):
        if any(parameter.requires_grad for parameter in part.parameters()):
            part.train(mode)
    return model


def set_layer_norm_eps(model: nn.Module, eps: float | None) -> None:
    """Give every LayerNorm this epsilon; None leaves them as they are."""
    for module in model.modules():
        if isinstance(module, nn.LayerNorm) and eps is not None:
            module.eps = eps


def recompute_activations(blocks: list[nn.Module]) -> None:
    """Keep only the input of each block in training, and compute its activations again in the backward pass: less
    memory for more time (Chen et al. 2016). Its dropout draws the same numbers the second time."""
    if any(isinstance(module, _BatchNorm) for block in blocks for module in block.modules()):
        raise OptionError("checkpoint_activations: a model with batch norm would count every batch's statistics twice")
    for block in blocks:
        # A method of the instance: the class stays as it is, and copies (deepcopy, EMA) keep the behaviour.
        block.forward = MethodType(_forward_again, block)


def _forward_again(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
    forward = MethodType(type(block).forward, block)
    if not (block.training and torch.is_grad_enabled()):
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)
