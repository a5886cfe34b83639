"""Freezing: the parts of a model that train, and those that stay as they are."""

from functools import partial

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from common.errors import OptionError
from vit.parts import parts


def freeze(model: nn.Module, trainable: str) -> None:
    """Let `all` parameters train, only the `head`, `last:K` (the head, the final norm and the last K blocks), `norms`
    (the head and every LayerNorm) or `lora:R` (the head, and what vit/low_rank.py adds to the attention of each block).

    A block, norm or head of which nothing trains stays in evaluation mode even after `model.train()`: no dropout, no
    stochastic depth and no moving batch statistics, so that its output is a fixed function of the image. With `norms`
    and `lora:R` something trains in every block, so all of it is in training mode.
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
        from vit.low_rank import adapt

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
    """Normalise by the statistics that the weights came with: a fitted head knows no other features.

    Those of few small images are so unlike them that features are worth less (docs/evidence/fine-tuning.md)."""
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.train = partial(_stay_in_evaluation, module)  # type: ignore[assignment]
    model.train(model.training)


def _stay_in_evaluation(layer: nn.Module, mode: bool = True) -> nn.Module:
    return type(layer).train(layer, False)


def _train_unfrozen_parts(model: nn.Module, mode: bool = True) -> nn.Module:
    type(model).train(model, False)
    model.training = mode
    own = parts(model)
    for part in (*own.blocks, *own.norms, *own.head):
        if any(parameter.requires_grad for parameter in part.parameters()):
            part.train(mode)
    return model
