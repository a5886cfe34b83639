"""Freeze parts of a model: their weights stay, and they compute as in evaluation."""

from functools import partial

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from common.errors import OptionError
from vit.anatomy import anatomy_of
from vit.low_rank import adapt


def freeze(model: nn.Module, trainable: str) -> None:
    """Train only a part of a model, in place.

    `trainable` is `all`, `head`, `last:K` (head, final norm and the last K blocks), `norms` (head and every LayerNorm)
    or `lora:R` (head, and the low-rank changes of vit/low_rank.py in the attention of each block).

    A block, norm or head that does not train as a whole stays in evaluation mode even after `model.train()`: without
    dropout, stochastic depth and moving batch statistics. So with `norms` and `lora:R` no block drops anything.

    Raises:
        OptionError: the model has no such part, or fewer than K blocks.
    """
    if trainable == "all":
        return
    own, (kind, _, number) = anatomy_of(model), trainable.partition(":")
    chosen: list[nn.Module] = []
    if kind == "last":
        count = int(number)
        if count > len(own.blocks):
            raise OptionError(f"trainable={trainable}: this model has {len(own.blocks)} {own.block_name}")
        chosen = [*own.norms, *own.blocks[len(own.blocks) - count :]]
    elif kind == "norms":
        chosen = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    elif kind == "lora":
        chosen = adapt(model, int(number))
    if kind != "head" and not chosen:
        raise OptionError(
            f"trainable={trainable}: {type(model).__name__} has no such part; all, head or last:K train it"
        )
    model.requires_grad_(False)
    for part in (*own.head, *chosen):
        part.requires_grad_(True)
    # Of the instance: the model keeps its class, and copies (deepcopy, EMA, pickle) keep the behaviour.
    model.train = partial(_train_unfrozen_parts, model)  # type: ignore[method-assign]
    model.train(model.training)


def keep_statistics(model: nn.Module) -> None:
    """Normalise by the statistics of the pretrained weights, for a fitted head knows no other features.

    Statistics of few small images differ so much that the head is less accurate on them (docs/results.md)."""
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.train = partial(_stay_in_evaluation, module)  # type: ignore[assignment]
    model.train(model.training)


def _stay_in_evaluation(layer: nn.Module, mode: bool = True) -> nn.Module:
    return type(layer).train(layer, False)


def _train_unfrozen_parts(model: nn.Module, mode: bool = True) -> nn.Module:
    type(model).train(model, False)
    model.training = mode
    own = anatomy_of(model)
    for part in (*own.blocks, *own.norms, *own.head):
        trains = [parameter.requires_grad for parameter in part.parameters()]
        if all(trains):
            part.train(mode)
        elif any(trains):
            part.training = mode  # itself and none of its layers: `recompute_activations` asks for it
    return model
