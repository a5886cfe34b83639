"""The residual stream of a ViT: its tokens before and after each block, and what the head would say of them there."""

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from vit.anatomy import anatomy_of, position_embeddings, recording


def residual_stream(model: nn.Module) -> AbstractContextManager[list[Tensor]]:
    """Record in the list the tokens of a pass while entered: before the first block, then after each, (B, T, D)."""
    blocks = anatomy_of(model).blocks
    return recording([(blocks[0], "in"), *((block, "out") for block in blocks)])


def logit_lens(model: nn.Module, images: Tensor, stream: list[Tensor]) -> Tensor:
    """Compute what the head says of the tokens before the first block and after each, final norm and pooling applied:
    logits (L + 1, B, classes), of which the last are the model's own (nostalgebraist 2020, "the logit lens").

    `stream` is what `residual_stream` took of these `images`. The model's own end computes it, whatever it is made of:
    the last block hands on all of the stream as one batch.
    """

    def hand_on(_module: nn.Module, _given: Any, output: Any) -> Any:
        tokens = torch.cat(stream)
        return (tokens, *output[1:]) if isinstance(output, tuple) else tokens

    with anatomy_of(model).blocks[-1].register_forward_hook(hand_on):
        return model(images).unflatten(0, (len(stream), len(images)))


def patch_contents(model: nn.Module, tokens: Tensor) -> Tensor:
    """Return the patches (B, N, D) of the tokens that enter the first block, less the learnt position of each."""
    patches, positions = tokens[:, 1 + anatomy_of(model).extra_tokens :], position_embeddings(model)
    return patches if positions is None or len(positions) != patches.size(1) + 1 else patches - positions[1:]
