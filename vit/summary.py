"""Layer by layer: output shapes, parameters and FLOPs of any model here, without memory for its weights.

One multiply-add counts as 2 FLOPs, and only matrix products and convolutions are counted, not biases, norms,
activations and softmax: the convention of `torch.utils.flop_counter`, which does the counting.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from vit.config import ViTConfig
from vit.model import VisionTransformer


@dataclass(frozen=True)
class Layer:
    """One module as one image passed through it."""

    name: str
    kind: str
    depth: int
    shape: tuple[int, ...] | None
    """Of the output for one image, batch axis first; None where the forward pass did not come by."""
    parameters: int
    flops: int


@dataclass(frozen=True)
class Summary:
    layers: tuple[Layer, ...]
    stages: tuple[tuple[str, tuple[int, ...]], ...]
    """What the data become on their way: (name, shape) from the images to the logits."""
    parameters: int
    trainable: int
    flops: int
    """Of one image's forward pass as the model runs it; 2 per multiply-add."""


def summarise(model: nn.Module, *, in_channels: int, image_size: int) -> Summary:
    """Pass one image through `model` and note what comes out of every module. A meta model needs no memory."""
    device = next(model.parameters()).device
    images = torch.zeros(1, in_channels, image_size, image_size, device=device)
    names = {module: name for name, module in model.named_modules()}
    shapes: dict[str, tuple[int, ...]] = {}

    def note(module: nn.Module, args: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) else getattr(output, "logits", output)
        if isinstance(first, Tensor):
            shapes[names[module]] = tuple(first.shape)

    handles = [module.register_forward_hook(note) for module in names]
    was_training = model.training
    counter = FlopCounterMode(display=False)
    try:
        # Gradients stay on: without them torchvision's encoder takes a fused kernel that no hook and no counter sees.
        # The counter does not know the fused attention of the CPU either; the plain products do the same work.
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), counter:
            model.eval()(images)
    finally:
        model.train(was_training)
        for handle in handles:
            handle.remove()
    counts = {name: sum(by_operator.values()) for name, by_operator in counter.get_flop_counts().items()}
    root = type(model).__name__
    layers = tuple(
        Layer(
            name=name,
            kind=type(module).__name__,
            depth=name.count(".") + 1 if name else 0,
            shape=shapes.get(name),
            parameters=_count(module),
            flops=counts.get(f"{root}.{name}" if name else "Global", 0),
        )
        for module, name in names.items()
    )
    return Summary(
        layers=layers,
        stages=(("images", tuple(images.shape)), *_stages(model, shapes)),
        parameters=_count(model),
        trainable=_count(model, trainable=True),
        flops=counter.get_total_flops(),
    )


def vit_flops(config: ViTConfig) -> int:
    """FLOPs of one image's forward pass through the textbook model, every block working on all tokens.

    Per block and token 12 D^2 multiply-adds in the Linears (4 D^2 of attention, 8 D^2 of an MLP of ratio 4), and
    2 T D in the two products with the attention weights. A multiply-add is 2 FLOPs.
    """
    tokens, dim = config.num_patches + 1, config.embed_dim
    hidden = int(dim * config.mlp_ratio)
    stem = config.num_patches * config.in_channels * config.patch_size**2 * dim
    if config.patch_embedding == "stem":
        widths = enumerate(pairwise(config.stem_widths))
        stem = sum((config.image_size >> halvings) ** 2 * 9 * width * doubled for halvings, (width, doubled) in widths)
    block = tokens * (4 * dim**2 + 2 * dim * hidden) + 2 * tokens**2 * dim
    width = config.representation_size or dim
    head = (dim * width if config.representation_size else 0) + width * config.num_classes
    return 2 * (stem + config.depth * block + head)


def collapse(layers: tuple[Layer, ...]) -> Iterator[tuple[Layer, int]]:
    """(layer, how many times): neighbours equal inside and out, such as the blocks of a ViT, are told once."""
    skipped: list[str] = []
    for layer in layers:
        if any(_inside(layer.name, name) for name in skipped):
            continue
        names = [layer.name]
        while (following := _next_sibling(layers, names[-1])) and _equal(layers, layer.name, following):
            names.append(following)
        skipped += names[1:]
        yield layer, len(names)


def _next_sibling(layers: tuple[Layer, ...], name: str) -> str | None:
    """`blocks.0` -> `blocks.1` where that comes next; None for a name without a number, or with another neighbour."""
    match = re.fullmatch(r"(.*?)(\d+)", name)
    names = [layer.name for layer in layers]
    after = next((other for other in names[names.index(name) :] if not _inside(other, name)), None)
    return after if match and after == f"{match[1]}{int(match[2]) + 1}" else None


def _equal(layers: tuple[Layer, ...], name: str, other: str) -> bool:
    return _signature(layers, name) == _signature(layers, other)


def _signature(layers: tuple[Layer, ...], name: str) -> list[tuple[Any, ...]]:
    """All there is to say about a layer and its insides, but for its own name."""
    return [
        (layer.name[len(name) :], layer.kind, layer.shape, layer.parameters, layer.flops)
        for layer in layers
        if _inside(layer.name, name)
    ]


def _inside(name: str, parent: str) -> bool:
    return name == parent or name.startswith(f"{parent}.")


def _stages(model: nn.Module, shapes: dict[str, tuple[int, ...]]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """What the images become: our own ViT by the terms of the paper, other models by their outermost modules."""
    if not isinstance(model, VisionTransformer):
        yield from ((name, shapes[name]) for name, _ in model.named_children() if name in shapes)
        return
    last = len(model.blocks) - 1
    named = {
        "patches on the grid (convolution)": "embedding.patches.projection",
        "patch tokens": "embedding.patches",
        "with class token and positions": "embedding",
        "after the first block": "blocks.0",
        "after the last block": f"blocks.{last}",
        "representation (Tanh)": "pre_logits",
        "logits": "head",
    }
    if model.config.patch_embedding != "conv":
        del named["patches on the grid (convolution)"]
    for stage, name in named.items():
        if name in shapes:
            yield stage, shapes[name]
        if name == f"blocks.{last}":
            yield "pooled", (1, model.config.embed_dim)


def _count(module: nn.Module, *, trainable: bool = False) -> int:
    return sum(p.numel() for p in module.parameters() if p.requires_grad or not trainable)
