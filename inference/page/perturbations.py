"""Predictions for a changed picture, or with heads off: computed beforehand where the page cannot run the model."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from inference.page.residual_stream import entering
from vit.attention_maps import head_map, maps_of, relevance
from vit.parts import parts, position_embeddings

MOST_WORK = 2e12  # multiply-adds of all passes: within it each head is tried alone, or else each block, or neither


class Perturbation(NamedTuple):
    """One perturbation of a picture or of the model."""

    name: str
    patch_order: Tensor
    """int64 (N,): the patch that stands at each place, -1 where none does."""
    use_positions: bool = True
    """True if position embeddings are added."""
    disabled_heads: Sequence[tuple[int, int]] = ()
    """(block, head) of one block."""


def perturbations_of(model: nn.Module, images: Sequence[Tensor], shape: dict[str, Any]) -> list[list[Perturbation]]:
    """Return the same perturbations for each image (1, C, S, S), the first of them none."""
    moved = [rearranged(model, image) for image in images]
    most = int(MOST_WORK / (shape["parameters"] * shape["tokens"] * len(images))) - len(moved[0])
    blocks = [[(block, head) for head in range(shape["heads"])] for block in range(shape["blocks"])]
    heads = [[head] for block in blocks for head in block]
    chosen = next((off for off in (heads, blocks) if len(off) <= most), [])
    return [[*own, *(own[0]._replace(disabled_heads=off) for off in chosen)] for own in moved]


def rearranged(model: nn.Module, image: Tensor) -> list[Perturbation]:
    """Patches left out, shuffled, and without positions; only as they are where not each has a learned position."""
    looked, spoke = maps_of(model, image).rollout, head_map(model, relevance(model, image)[1])
    positions, places = position_embeddings(model), torch.arange(looked.numel())
    if positions is None or len(positions) != len(places) + 1:
        return [Perturbation("as it is", places)]
    chance = torch.randperm(len(places), generator=torch.Generator().manual_seed(0))
    count = min(max(1, len(places) // 8), len(places) - 1)
    first = {"brightest in the rollout": looked, "with the most evidence": spoke, "drawn by lot": chance}
    left_out = {name: values.flatten().argsort(descending=True)[:count].cpu() for name, values in first.items()}
    return [
        Perturbation("as it is", places),
        *(
            Perturbation(f"the {count} {name} left out", places.index_fill(0, out, -1))
            for name, out in left_out.items()
        ),
        Perturbation("patches shuffled", chance),
        Perturbation("positions off", places, use_positions=False),
        Perturbation("positions off, patches shuffled", chance, use_positions=False),
    ]


@torch.no_grad()
def logits_under(model: nn.Module, image: Tensor, change: Perturbation, num_heads: int) -> Tensor:
    """Logits (1, classes): tokens enter the first block so changed, and heads that are off hand on zeros."""

    def move(_: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        front, patches, positions = entering(model, given[0])
        kept = change.patch_order >= 0
        patches = patches[:, change.patch_order[kept]] + positions[1:][kept] * change.use_positions
        front = torch.cat([front[:, :1] - positions[:1] * (not change.use_positions), front[:, 1:]], dim=1)
        return (torch.cat([front, patches], dim=1), *given[1:])

    blocks = parts(model).blocks
    block = blocks[change.disabled_heads[0][0] if change.disabled_heads else 0]
    behind = [part for name, part in block.named_modules() if "att" in name and isinstance(part, nn.Linear)][-1].weight
    before, handle = behind.clone(), blocks[0].register_forward_pre_hook(move)
    behind.unflatten(1, (num_heads, -1))[:, [head for _, head in change.disabled_heads]] = 0
    try:
        return model(image).float().cpu()
    finally:
        behind.copy_(before)
        handle.remove()
