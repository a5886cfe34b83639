"""Maps of networks side by side with one linear head (`vit/mixture.py`): by part, and all of them together.

The logits of such a model are a sum, `W_1 f_1 + W_2 f_2 + ... + b`, so each network has its own share of the logit of a
class, and a map of its own, by the method that suits it. Their mean, weighted by the shares, is the model's map.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainers.reporting.explanations.subject import MAX_CELLS, Subject, shares


class Part(NamedTuple):
    """A network within a mixture, as it saw the images."""

    name: str
    subject: Subject
    spoke: Tensor
    """(B,): what it adds to the logit of the class, over the mean of all classes."""
    place: tuple[float, float]
    """Beginning and end of its input in the common picture, for either side: shares of 1."""


def is_mixture(model: nn.Module) -> bool:
    """Return whether a model is several networks (`views`) with one linear `head` on all their features (`columns`)."""
    return all(hasattr(model, name) for name in ("views", "columns", "head", "networks"))


def parts_of(model: Any, subject: Subject) -> Iterator[Part]:
    """The networks of a mixture, each with the input that it gets and its columns of the head."""
    side = subject.images.size(-1)
    for network, view, columns in zip(model.networks, model.views, model.columns, strict=True):
        taken: list[Tensor] = []
        with view.network.register_forward_pre_hook(lambda _, given: taken.append(given[0])), torch.no_grad():  # noqa: B023
            features = view(subject.images).float()
        weights = model.head.weight[:, columns]
        logits = F.linear(features, weights.detach())
        spoke = logits.gather(1, subject.classes[:, None])[:, 0] - logits.mean(dim=1)
        own = replace(subject, network=view.network, images=taken[0], head=partial(F.linear, weight=weights))
        yield Part(str(network), own, spoke.cpu(), (view.margin / side, (view.margin + view.cut) / side))


def together(spoke: Sequence[Tensor], maps: Sequence[Tensor]) -> Tensor:
    """Maps (B, N, N) of the parts over the common picture -> the same: their mean, weighted by what each part (B,) said
    for the class; 0 where none spoke for it."""
    weights = torch.stack([part.clamp(min=0) for part in spoke])  # (P, B)
    weights = weights / weights.sum(dim=0).clamp(min=torch.finfo(torch.float32).tiny)
    return (weights[:, :, None, None] * torch.stack([*maps])).sum(dim=0)


FINE = 8 * MAX_CELLS
"""Cells per side of the common picture, on which the maps of parts with other cells and other borders are laid."""


def in_picture(values: Tensor, place: tuple[float, float]) -> Tensor:
    """A map (B, G, G) that lies between the `place`s of either side -> (B, FINE, FINE), which sums to 1."""
    begin, end = (round(FINE * share) for share in place)
    inner = F.interpolate(values[:, None], size=(end - begin, end - begin), mode="bilinear")[:, 0]
    return shares(F.pad(inner, (begin, FINE - end, begin, FINE - end)))
