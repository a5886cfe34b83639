"""Record features of blocks and head in the pass that computes the logits.

Fine-tuning makes what reaches the head blind to what it need not tell apart (arXiv:2603.11269); the first and the
middle block keep more of it. Each part is the mean over the places of an image. B images, D features of all parts.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from trainers.engine.engines import autocast
from trainers.engine.rows import Rows
from vit.anatomy import known_anatomy, recording

UNLIKE = "unlike"
"""The output of an ONNX file that says how unlike the validation images each image is."""


@contextmanager
def recorded(model: nn.Module, images: int) -> Iterator[list[Rows]]:
    """Record the parts (N, width) of N images, float32, while entered.

    There are none where the blocks and the head of a model are not known. The logits keep their bits.
    """
    parts: list[Rows] = []
    with watched(model) as features:

        def keep(*_: Any) -> None:
            parts.extend(Rows(images) for _ in features[len(parts) :])
            for rows, part in zip(parts, features, strict=True):
                rows.add(part.detach().float())
            features.clear()

        with model.register_forward_hook(keep):
            yield parts


@contextmanager
def watched(model: nn.Module) -> Iterator[list[Tensor]]:
    """Record the parts (B, width) of a batch in the list while entered.

    The caller empties it after each batch. They are what the first block and the middle one hand on, and what
    reaches the head; of an ONNX file its own score.
    """
    if UNLIKE in names_of_outputs(model):
        features: list[Tensor] = []
        with scored_by_itself(model, features):
            yield features
        return
    own = known_anatomy(model)
    ends: list[tuple[nn.Module, Literal["in", "out"]]] = []
    if own is not None:
        blocks = list(own.blocks)
        ends = [(blocks[place], "out") for place in sorted({0, len(blocks) // 2}) if blocks]
        ends.append((own.head[0], "in"))
    with recording(ends, take=pooled) as features:
        yield features


def names_of_outputs(model: nn.Module) -> list[str]:
    """Name the outputs of an ONNX file; none of another model."""
    session: Any = getattr(model, "session", None)
    return [] if session is None else [output.name for output in session.get_outputs()]


@contextmanager
def scored_by_itself(model: Any, features: list[Tensor]) -> Iterator[None]:
    """Let an ONNX file compute its score (B, 1) in the pass of the logits."""

    def forward(images: Tensor) -> Tensor:
        logits, score = model.run(images, model.output, UNLIKE)
        features.append(score[:, None])
        return logits

    model.forward = forward  # of the instance
    try:
        yield
    finally:
        del model.forward


def pooled(values: Tensor) -> Tensor:
    """Average tokens (B, N, width) or maps (B, width, H, W) to (B, width)."""
    if values.dim() == 3:
        return values.mean(dim=1)
    return values.mean(dim=(2, 3)) if values.dim() == 4 else values.flatten(1)


class WithUnlikeness(nn.Module):
    """A model with two answers of one pass: logits (B, C), and unlikeness (B,)."""

    def __init__(self, model: nn.Module, unlikeness: nn.Module, amp_dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.model, self.unlikeness, self.amp_dtype = model, unlikeness, amp_dtype

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        with watched(self.model) as features, autocast(images.device, self.amp_dtype):
            logits = self.model(images)
        return logits, self.unlikeness(logits, tuple(part.float() for part in features) or None)


def whole_parts(parts: Sequence[Rows]) -> tuple[Tensor, ...] | None:
    """Return recorded parts (N, width); None unless each of all images has them."""
    return tuple(rows.table() for rows in parts) if parts and all(len(rows) == rows.images for rows in parts) else None
