"""Find blocks, final norm and head of any model; look at them, and recompute them."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from common.errors import OptionError
from vit.config import grid_side


@dataclass(frozen=True)
class Parts:
    """List the parts of a classifier from input to output; all others belong to the stem."""

    blocks: Sequence[nn.Module]
    norms: Sequence[nn.Module]
    head: Sequence[nn.Module]
    block_name: str = "blocks"


def parts(model: nn.Module) -> Parts:
    """Find the parts of a model by its modules' names: classes would import all libraries."""
    own: Any = getattr(model, "find_parts", None)  # of the adapter of vit/huggingface.py
    if own is not None:
        return own()
    if hasattr(model, "get_classifier"):
        return _timm_parts(model)
    children: dict[str, Any] = dict(model.named_children())
    if {"embedding", "blocks", "norm", "head"} <= children.keys() and isinstance(children["blocks"], Iterable):  # ours
        before = [children["pre_logits"], nn.Tanh()] if "pre_logits" in children else []
        return Parts(list(children["blocks"]), [children["norm"]], [*before, children["head"]])
    if {"encoder", "heads"} <= children.keys():  # torchvision's
        return Parts(list(children["encoder"].layers), [children["encoder"].ln], [children["heads"]])
    if {"layer4", "fc"} <= children.keys():  # its ResNet: the four stages are the blocks
        stages = [children[f"layer{number}"] for number in (1, 2, 3, 4)]
        return Parts(stages, [], [children["fc"]], block_name="stages")
    raise OptionError(f"{type(model).__name__} is not a model of this project: its blocks and head are not known")


def _timm_parts(model: Any) -> Parts:
    """Take stem, blocks and head as timm names them; the layers that are left over after the blocks are norms.

    Where timm does not say, there are no blocks: such a model trains as a whole, or its head does.
    """
    matcher, head = None, model.get_classifier()
    with suppress(AttributeError, AssertionError):  # it has none, or none of whole blocks
        matcher = model.group_matcher(coarse=True)
    if not isinstance(matcher, dict) or not matcher.get("blocks"):
        return Parts([], [], [head], block_name="blocks that timm names")
    blocks, modules = _timm_blocks(model, matcher), list(model.modules())
    inside = {layer for block in blocks for layer in block.modules()} | {head}
    last = max((place for place, layer in enumerate(modules) if layer in inside - {head}), default=len(modules))
    norms = [layer for layer in modules[last:] if layer._parameters and inside.isdisjoint(layer.modules())]
    return Parts(blocks, outermost(norms), [head])


def _timm_blocks(model: nn.Module, matcher: dict[str, Any]) -> list[nn.Module]:
    """Take the blocks that timm names, and the layers that it counts between them, from input to output.

    Where lists run side by side, as in Twins, the layers of one number are one block.
    """
    given, modules = matcher["blocks"], dict(model.named_modules())
    rules: list[tuple[str, Any]] = [(given, None)] if isinstance(given, str) else given
    named: dict[str, list[int]] = {}
    for rule, between in sorted(((pattern, place is not None) for pattern, place in rules), key=itemgetter(1)):
        inside = {layer for name in named for layer in modules[name].modules()} if between else set()
        for name, module in modules.items():
            match = re.fullmatch(rule, name)
            first = between and re.match(matcher["stem"], name)
            if match and match.groups() and not first and inside.isdisjoint(module.modules()):
                named[name] = [*map(int, match.groups())]
    in_order = sorted(named, key=[*modules].index)
    by_number = sorted(in_order, key=named.__getitem__)
    if in_order == by_number:
        return [modules[name] for name in in_order]
    together = groupby(by_number, key=named.__getitem__)
    return [nn.ModuleList(modules[name] for name in names) for _, names in together]


def outermost(layers: Sequence[nn.Module]) -> list[nn.Module]:
    """Leave out the layers within others."""
    within = {inner for layer in layers for inner in layer.modules() if inner is not layer}
    return [layer for layer in layers if layer not in within]


def count_parameters(module: nn.Module) -> tuple[int, int]:
    """Count a module's parameters: all, and the trainable ones."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in module.parameters()]
    return sum(size for size, _ in sizes), sum(size for size, trains in sizes if trains)


@contextmanager
def inputs_of(module: nn.Module) -> Iterator[list[Tensor]]:
    """Record what each call of a module is given: of a head, the features."""
    inputs: list[Tensor] = []
    with module.register_forward_pre_hook(lambda _, given: inputs.append(given[0])):
        yield inputs


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


def position_embeddings(model: nn.Module) -> Tensor | None:
    """Return the learnt positions (T, D) of a class token and a square grid of patches, if any."""
    for name, parameter in model.named_parameters():
        if "pos" in name and parameter.dim() == 3 and parameter.size(0) == 1 and grid_side(parameter.size(1)):
            return parameter.detach()[0]
    return None
