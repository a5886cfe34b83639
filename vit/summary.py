"""Count parameters and FLOPs of any model, and note output shapes, layer by layer.

One multiply-add counts as 2 FLOPs, and only matrix products and convolutions are counted, not biases, norms,
activations and softmax: the convention of `torch.utils.flop_counter`, which does the counting.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.flop_counter import FlopCounterMode

from vit.anatomy import count_parameters


@dataclass(frozen=True)
class Layer:
    """Describe one module as one image passed through it."""

    name: str
    kind: str
    depth: int
    shape: tuple[int, ...] | None  # of the output for one image, batch axis first; None if the pass did not come by
    parameters: int
    flops: int


@dataclass(frozen=True)
class Summary:
    layers: tuple[Layer, ...]
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

    def note(module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Mapping):  # of transformers
            output = output.get("logits")
        first = output[0] if isinstance(output, tuple) else output
        if isinstance(first, Tensor) and module in names:
            shapes[names[module]] = tuple(first.shape)

    counter, training = FlopCounterMode(display=False), model.training
    # A hook of all modules: at one of its own the last block of our ViT would compute every token.
    # Gradients stay on: without them torchvision's encoder takes a fused kernel that no hook and no counter sees.
    # The counter does not know the fused attention of the CPU either; the plain products do the same work.
    with register_module_forward_hook(note), torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        model.eval()(images)
    model.train(training)
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
        parameters=layers[0].parameters,
        trainable=count_parameters(model)[1],
        flops=counter.get_total_flops(),
    )
