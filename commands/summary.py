"""Run `summary --model NAME`: print a model layer by layer, without its weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from commands.parser import UsageError
from common.text import format_table
from vit.config import WHAT_THEY_ARE, ModelConfig

if TYPE_CHECKING:
    from vit.summary import Summary

# Modules without computation in this model's forward pass: their rows would hide the others.
HIDDEN = {"Dropout", "StochasticDepth", "Identity"}


@dataclass(frozen=True)
class Options:
    """Print a model's layers with their output shapes, parameters and GFLOPs."""

    num_classes: int = 1000
    """Give the head this many outputs."""
    depth: int = 2
    """Show this many levels of modules. 1 shows the outermost; 4 the layers within the blocks of a ViT."""
    model: ModelConfig = field(default_factory=partial(ModelConfig, name="vit_tiny_16", weights="none"))

    def __post_init__(self) -> None:
        if self.model.name == "auto":
            raise UsageError("model `auto` depends on the data; name one, such as vit_tiny_16")
        if self.model.weights != "none":
            raise UsageError(f"--weights {self.model.weights}: leave it out; a summary is of what --model names alone")


def main(options: Options) -> int:
    import torch

    from vit.factory import Blueprint
    from vit.summary import summarise

    blueprint = Blueprint(options.model)
    with torch.device("meta"):  # shapes without data: ViT-H is as fast as ViT-Ti
        model = blueprint.build(num_classes=options.num_classes)
    size = blueprint.image_spec.image_size
    summary = summarise(model, in_channels=options.model.in_channels, image_size=size)
    print("\n".join(lines(options.model.name, summary, depth=options.depth)))
    return 0


def lines(name: str, summary: Summary, *, depth: int) -> Iterator[str]:
    rows = [("layer", "kind", "output, one image", "parameters", "GFLOPs")]
    for layer in summary.layers:
        if layer.depth <= depth and layer.kind not in HIDDEN:
            label = "  " * layer.depth + (layer.name.rsplit(".", 1)[-1] or name)
            digits = 3 if layer.flops >= 1e6 else 6  # so that no row with operations shows a zero
            gflops = f"{layer.flops / 1e9:.{digits}f}" if layer.flops else ""
            rows.append((label, layer.kind, _shape(layer.shape), f"{layer.parameters:,}", gflops))
    yield from format_table(rows, left=(0, 1, 2))
    yield ""
    if name in WHAT_THEY_ARE:
        yield f"what it is  {WHAT_THEY_ARE[name]}"
    yield f"parameters  {summary.parameters:,}, of which {summary.trainable:,} train"
    yield f"GFLOPs      {summary.flops / 1e9:.3f} per image, forward, as this model runs it; training takes 3x that"
    yield "            1 multiply-add = 2 FLOPs; matrix products and convolutions only (torch.utils.flop_counter)"


def _shape(shape: tuple[int, ...] | None) -> str:
    return "-" if shape is None else "(" + ", ".join(map(str, shape)) + ")"
