"""Integrated gradients (Sundararajan, Taly and Yan 2017, arXiv:1703.01365, eq. 1): a map of any model
that can be differentiated."""

import torch
from torch import Tensor

from trainers.reporting.explanations.subject import Subject, on_cells

STEPS = 32
"""Points on the way from the baseline to the image, each in the middle of its part."""


def attributions(subject: Subject, *, steps: int = STEPS) -> Tensor:
    """(B, C, S, S): what each value of the images adds to the logit of its class, against images of zeros, which is
    the grey of the mean. Their sum is the difference of the two logits, the more exactly the more steps."""
    subject.require_gradients()
    total = torch.zeros_like(subject.images)
    with torch.enable_grad():
        for step in range(steps):
            point = (subject.images * ((step + 0.5) / steps)).detach().requires_grad_()
            total += torch.autograd.grad(subject.odds(subject(point)).sum(), point)[0]
    return subject.images * total / steps


def integrated_gradients(subject: Subject) -> Tensor:
    """The attributions of each cell."""
    return on_cells(attributions(subject).sum(dim=1))
