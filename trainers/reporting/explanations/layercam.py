"""LayerCAM (Jiang et al. 2021, IEEE TIP 30, doi:10.1109/TIP.2021.3089943): heat maps of convolutional networks.

Of a layer with activations A (B, K, h, w) and gradients g of the class's score by them, the map is
`ReLU(sum over k of ReLU(g_k) * A_k)` (eq. 6-8): every place has its own weights, so that layers before the last have
maps, too. The layer that is asked is the deepest one with enough cells to point at something.
"""

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from trainers.reporting.explanations.perturbation import blurred, way
from trainers.reporting.explanations.subject import NoMap, Subject, on_cells, resized, shares

FLOOR = 0.1
"""Amount that a cell keeps of one map where the other one is 0, in shares of a cell of an even map."""
FEWEST = 4
"""Cells per side that the layer has at least, where the network has such a layer: the last one of a network for 224 px
has 7 there, and 2 at 64 px, which point at nothing."""


def integrated_layercam(subject: Subject) -> Tensor:
    """Map (B, G, G) LayerCAM, which knows which object, times integrated gradients, which know where.

    So does Guided Grad-CAM (Selvaraju et al. 2017, arXiv:1610.02391, section 3.2). Of LayerCAM what lies above its mean
    counts. Raises NoMap: there are no feature maps.
    """
    start = blurred(subject.images)
    coarse, gradient = torch.zeros(()), torch.zeros_like(start)
    for point in way(subject, start):
        activations, logits = deepest(point)
        with torch.enable_grad():
            by_layer, by_image = torch.autograd.grad(point.odds(logits).sum(), [activations, point.images])
        coarse = coarse + layer_map(activations.detach(), by_layer)
        gradient += by_image
    fine = on_cells(((subject.images - start) * gradient).sum(dim=1))
    return both(resized(coarse - coarse.mean(dim=(1, 2), keepdim=True), fine.size(-1)), fine)


def both(first: Tensor, second: Tensor) -> Tensor:
    """Multiply two maps (B, G, G), with FLOOR of an even map added to each.

    A cell that one of them missed is not lost, and the other one has the word where one is 0 throughout.
    """
    one, other = shares(first), shares(second)
    floor = FLOOR / one[0].numel()
    return one * other + floor * (one + other)


def layer_map(activations: Tensor, gradients: Tensor) -> Tensor:
    """Weight activations by gradients, two (B, K, h, w) -> (B, h, w)."""
    return (gradients.clamp(min=0) * activations).sum(dim=1).clamp(min=0)


def deepest(subject: Subject) -> tuple[Tensor, Tensor]:
    """Return the last activations (B, K, h, w) of the coarsest resolution with FEWEST cells per side, and the logits.

    Where no resolution has so many cells, they are of the finest. Raises NoMap: there are no feature maps.
    """
    height, width = subject.images.shape[2:]
    taken: dict[int, Tensor] = {}

    def keep(_: nn.Module, __: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.dim() == 4 and output.requires_grad:
            rows, columns = output.shape[2:]
            # Not the (B, h, w, K) of a Swin Transformer: feature maps have the proportions of the images.
            if 1 < rows < height and abs(rows * width - columns * height) < max(height, width):
                taken[rows] = output

    with ExitStack() as hooks, torch.enable_grad():
        for module in subject.network.modules():
            hooks.enter_context(module.register_forward_hook(keep))
        logits = subject(subject.images.requires_grad_())  # a graph also where every parameter is frozen
    reached = {rows: kept for rows, kept in taken.items() if len(kept) == len(subject.images)}
    if not reached:
        raise NoMap(f"{type(subject.network).__name__} has no feature maps (B, K, h, w): LayerCAM has nothing to show")
    return reached[min((rows for rows in reached if rows >= FEWEST), default=max(reached))], logits
