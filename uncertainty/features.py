"""What reaches the head of a model, taken from the very pass that computes its logits."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vit.errors import OptionError
from vit.parts import inputs_of, parts

UNLIKE = "unlike"
"""The output of an ONNX file that says how unlike the validation images each image is."""


@contextmanager
def recorded(model: nn.Module) -> Iterator[list[Tensor]]:
    """While entered, the list gets the features (B, D) of each pass, float32 on the CPU; it stays empty where the head
    of a model is not known. The logits keep their bits."""
    head = head_of(model)
    if head is None:
        yield []
        return
    kept: list[Tensor] = []

    def keep(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        kept.append(flat(given[0]).detach().float().cpu())

    with head.register_forward_pre_hook(keep):
        yield kept


def head_of(model: nn.Module) -> nn.Module | None:
    """The first module of the head; None of a model that is not known, such as an ONNX file."""
    try:
        return parts(model).head[0]
    except OptionError:
        return None


def flat(features: Tensor) -> Tensor:
    """(B, ..., D) or (B, D) -> (B, D): tokens are averaged."""
    return features if features.dim() == 2 else features.flatten(1, -2).mean(dim=1)


class WithUnlikeness(nn.Module):
    """A model that answers logits (B, C) and, from the same pass, how unlike its validation images each image is
    (B,)."""

    def __init__(self, model: nn.Module, unlikeness: nn.Module) -> None:
        super().__init__()
        self.model, self.unlikeness, self.head = model, unlikeness, [head_of(model)]  # in a list: no second child

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        if self.head[0] is None:
            logits = self.model(images)
            return logits, self.unlikeness(logits, None)
        with inputs_of(self.head[0]) as seen:
            logits = self.model(images)
        return logits, self.unlikeness(logits, flat(seen[-1]))


class OfFile(nn.Module):
    """The same of an ONNX file, which computes both."""

    def __init__(self, session: Any) -> None:
        super().__init__()
        self.session, self.input = session, session.get_inputs()[0].name

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        return tuple(map(torch.from_numpy, self.session.run(["logits", UNLIKE], {self.input: images.numpy()})))


def two_outputs(model: nn.Module, unlikeness: nn.Module) -> nn.Module:
    """A model, or the network of an ONNX file, with both outputs."""
    session: Any = getattr(model, "session", None)
    if session is not None and UNLIKE in [output.name for output in session.get_outputs()]:
        return OfFile(session)
    return WithUnlikeness(model, unlikeness)


def in_one(kept: Sequence[Tensor], images: int) -> Tensor | None:
    """The features (N, D) of a pass over N images; None where none were kept, or not of each."""
    whole = torch.cat([*kept]) if kept else None
    return whole if whole is not None and len(whole) == images else None
