"""Maps from gradients along the way to the picture, after integrated gradients (Sundararajan, Taly and Yan 2017).

The gradient at the picture alone is that of one point, where a sure model is flat and noisy. Here it is the mean of
POINTS between the blurred picture and the picture, for three passes forward and back. B images, G cells per side.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from trainers.reporting.explanations.attnlrp import relevance_gradient
from trainers.reporting.explanations.layercam import deepest, layer_map
from trainers.reporting.explanations.perturbation import blurred
from trainers.reporting.explanations.subject import Subject, on_cells, resized, shares

POINTS = (1 / 3, 2 / 3, 1.0)
FLOOR = 0.1
"""Amount that a cell keeps of one map where the other one is 0, in shares of a cell of an even map."""


def integrated_attnlrp(subject: Subject) -> Tensor:
    """The map (B, G, G): AttnLRP's relevance along the way, squared. Squaring leaves the order of cells as it is, and
    most of the map to those that stand out. Raises NoMap: no Transformer."""
    start = blurred(subject.images)
    gradient = sum((relevance_gradient(point) for point in _way(subject, start)), torch.zeros_like(start))
    return on_cells(((subject.images - start) * gradient / len(POINTS)).sum(dim=1)).clamp(min=0) ** 2


def integrated_layercam(subject: Subject) -> Tensor:
    """The map (B, G, G): LayerCAM, which knows which object, times integrated gradients, which know where, as Guided
    Grad-CAM has it (Selvaraju et al. 2017, arXiv:1610.02391, section 3.2); of LayerCAM what lies above its mean.
    Raises NoMap: there are no feature maps."""
    start = blurred(subject.images)
    coarse, gradient = torch.zeros(()), torch.zeros_like(start)
    for point in _way(subject, start):
        point.images.requires_grad_()
        activations, logits = deepest(point)
        with torch.enable_grad():
            by_layer, by_image = torch.autograd.grad(point.odds(logits).sum(), [activations, point.images])
        coarse = coarse + layer_map(activations.detach(), by_layer)
        gradient += by_image
    fine = on_cells(((subject.images - start) * gradient).sum(dim=1))
    return _both(resized(coarse - coarse.mean(dim=(1, 2), keepdim=True), fine.size(-1)), fine)


def _way(subject: Subject, start: Tensor) -> Iterator[Subject]:
    """The subject at each of the POINTS between `start` and its images."""
    for share in POINTS:
        yield replace(subject, images=(start + share * (subject.images - start)).detach())


def _both(first: Tensor, second: Tensor) -> Tensor:
    """The product of two maps (B, G, G), with FLOOR of an even map added to each: a cell that one of them missed is
    not lost, and the other one has the word where one is 0 throughout."""
    one, other = shares(first), shares(second)
    floor = FLOOR / one[0].numel()
    return one * other + floor * (one + other)
