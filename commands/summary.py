"""`summary --model NAME`: what a model is made of, layer by layer, without its weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from commands import arguments
from vit.config import ModelConfig

if TYPE_CHECKING:
    from vit.summary import Summary

# Modules that compute nothing in this model's forward pass: a row each would only hide the others.
HIDDEN = {"Dropout", "StochasticDepth", "Identity"}


@dataclass(frozen=True)
class Options:
    """Print a model's layers with their output shapes, parameters and GFLOPs, and what one image becomes on its way."""

    model: str = "vit_tiny_16"
    """Model name, or hf:ID_OR_FOLDER."""
    num_classes: int = 1000
    """Outputs of the head."""
    image_size: int | None = None
    """Side of the square input, in pixels. Default: the model's own."""
    in_channels: int = 3
    """Channels of the input."""
    pool: Literal["cls", "mean", "mean_norm"] = "cls"
    """What the head sees: the class token, or the mean of the patch tokens."""
    patch_embedding: Literal["conv", "linear", "stem"] = "conv"
    """Patches by a strided convolution, by cutting and one Linear, or by a stem of several convolutions."""
    representation_size: int | None = None
    """Width of a Tanh layer before the head. Default: no such layer."""
    trainable: str = "all"
    """Which parameters count as trainable: all, head or last:K."""

    def __post_init__(self) -> None:
        self.model_config()  # wrong values stop here
        if self.model == "auto":
            raise ValueError("model `auto` depends on the data; name one, such as vit_tiny_16")
        if self.num_classes < 1:
            raise ValueError(f"num_classes={self.num_classes} must be at least 1")

    def model_config(self) -> ModelConfig:
        options = dataclasses.asdict(self)
        del options["num_classes"]
        return ModelConfig(name=options.pop("model"), weights="none", **options)


parse = partial(arguments.parse, Options)


def main(options: Options) -> int:
    import torch

    from vit.errors import WeightsError
    from vit.factory import Blueprint
    from vit.summary import summarise

    blueprint = Blueprint(options.model_config())
    try:
        with torch.device("meta"):  # shapes without numbers: ViT-H takes no longer than ViT-Ti
            model = blueprint.build(num_classes=options.num_classes)
        size = blueprint.image_spec.image_size
    except WeightsError:
        raise
    except ValueError as error:  # an option that this model does not have, or a size it cannot take
        raise arguments.UsageError(str(error)) from None
    summary = summarise(model, in_channels=options.in_channels, image_size=size)
    for line in lines(options.model, summary):
        print(line)
    return 0


def lines(name: str, summary: Summary) -> Iterator[str]:
    from vit.summary import collapse

    layers = [(layer, times) for layer, times in collapse(summary.layers) if layer.kind not in HIDDEN]
    named = []
    for layer, times in layers:
        label = layer.name.rsplit(".", 1)[-1] or name
        named.append(("  " * layer.depth + label + (f"  (x{times})" if times > 1 else ""), layer))
    width = max(len(label) for label, _ in named)
    kinds = max(len(layer.kind) for _, layer in named)
    yield f"{'layer':<{width}}  {'kind':<{kinds}}  {'output, one image':<20}  {'parameters':>12}  {'GFLOPs':>9}"
    for label, layer in named:
        yield (
            f"{label:<{width}}  {layer.kind:<{kinds}}  {_shape(layer.shape):<20}  {layer.parameters:>12,}  "
            f"{_gflops(layer.flops):>9}"
        ).rstrip()
    yield ""
    yield "what one image becomes:"
    stages = max(len(stage) for stage, _ in summary.stages)
    for stage, shape in summary.stages:
        yield f"  {stage:<{stages}}  {_shape(shape)}"
    yield ""
    yield f"parameters  {summary.parameters:,}, of which {summary.trainable:,} train"
    yield f"GFLOPs      {summary.flops / 1e9:.3f} per image, forward, as this model runs it; training takes 3x that"
    yield "            1 multiply-add = 2 FLOPs; matrix products and convolutions only (torch.utils.flop_counter)"


def _shape(shape: tuple[int, ...] | None) -> str:
    return "-" if shape is None else "(" + ", ".join(map(str, shape)) + ")"


def _gflops(flops: int) -> str:
    """Six decimals for tiny models, so that no row with work shows a zero."""
    return "" if not flops else f"{flops / 1e9:.3f}" if flops >= 1e6 else f"{flops / 1e9:.6f}"
