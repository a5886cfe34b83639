"""Layer by layer: output shapes, parameters and FLOPs of any model here, without memory for its weights.

One multiply-add counts as 2 FLOPs, and only matrix products and convolutions are counted, not biases, norms,
activations and softmax: the convention of `torch.utils.flop_counter`, which does the counting.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.flop_counter import FlopCounterMode

from vit.model import VisionTransformer
from vit.parts import count_parameters


@dataclass(frozen=True)
class Layer:
    """One module as one image passed through it."""

    name: str
    kind: str
    depth: int
    shape: tuple[int, ...] | None  # of the output for one image, batch axis first; None if the pass did not come by
    parameters: int
    flops: int


@dataclass(frozen=True)
class Summary:
    layers: tuple[Layer, ...]
    stages: tuple[tuple[str, tuple[int, ...]], ...]
    """Shapes of the data on their way: (name, shape) from the images to the logits."""
    parameters: int
    trainable: int
    flops: int
    """Operations of one image's forward pass as the model runs it; 2 per multiply-add."""


def summarise(model: nn.Module, *, in_channels: int, image_size: int) -> Summary:
    """Pass one image through `model` and note what comes out of every module. A meta model needs no memory."""
    device = next(model.parameters()).device
    images = torch.zeros(1, in_channels, image_size, image_size, device=device)
    names = {module: name for name, module in model.named_modules()}
    shapes: dict[str, tuple[int, ...]] = {}

    def note(_: Any, module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Mapping):  # of transformers
            output = output.get("logits")
        first = output[0] if isinstance(output, tuple) else output
        if isinstance(first, Tensor) and module in names:
            shapes[names[module]] = tuple(first.shape)

    counter = FlopCounterMode(display=False)
    with ExitStack() as hooks:
        hooks.callback(model.train, model.training)
        # As a hook of the counter, which reads no tensor: `vit.fast` computes more where it finds any other.
        hooks.enter_context(register_module_forward_hook(MethodType(note, counter.mod_tracker)))
        # Gradients stay on: without them torchvision's encoder takes a fused kernel that no hook and no counter sees.
        # The counter does not know the fused attention of the CPU either; the plain products do the same work.
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), counter:
            model.eval()(images)
    counts = {name: sum(by_operator.values()) for name, by_operator in counter.get_flop_counts().items()}
    root = type(model).__name__
    layers = tuple(
        Layer(
            name=name,
            kind=type(module).__name__,
            depth=name.count(".") + 1 if name else 0,
            shape=shapes.get(name),
            parameters=count_parameters(module)[0],
            flops=counts.get(f"{root}.{name}" if name else "Global", 0),
        )
        for module, name in names.items()
    )
    return Summary(
        layers=layers,
        stages=(("images", tuple(images.shape)), *_stages(model, shapes)),
        parameters=layers[0].parameters,
        trainable=count_parameters(model)[1],
        flops=counter.get_total_flops(),
    )


def collapse(layers: Sequence[Layer]) -> Iterator[tuple[Layer, int]]:
    """(layer, how many times): neighbours equal inside and out, such as the blocks of a ViT, are told once."""

    def equality(layer: Layer) -> tuple[str, list[tuple[str, Layer]]]:
        """All there is to say about a layer and its insides, but for the number in its own name."""
        own, rest = layer.name, len(layer.name)
        inside = [part for part in layers if part.name == own or part.name.startswith(f"{own}.")]
        return own.rstrip("0123456789"), [(part.name[rest:], dataclasses.replace(part, name="")) for part in inside]

    def tell(layer: Layer, times: int) -> Iterator[tuple[Layer, int]]:
        yield layer, times
        children = [part for part in layers if part.name and part.name.rpartition(".")[0] == layer.name]
        for _, group in groupby(children, key=equality):
            equals = list(group)
            yield from tell(equals[0], len(equals))

    return tell(layers[0], 1)


def _stages(model: nn.Module, shapes: dict[str, tuple[int, ...]]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """List what the images become: for our own ViT by the terms of the paper, for other models by their outermost
    modules."""
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
