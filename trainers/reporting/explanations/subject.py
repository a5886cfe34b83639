"""Subject of a heat map: a network, its input, and a class of each image."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.errors import OptionError

MAX_CELLS, MIN_CELLS, CELL = 14, 8, 16


class NoMap(OptionError):
    """A method that has no map for this model; another method may have one."""


@dataclass(frozen=True)
class Subject:
    """A network in evaluation mode and the images (B, C, S, S), normalised, that it is asked about.

    `head` turns its outputs into logits (B, classes): they are the logits, but for a network within a mixture.
    """

    network: nn.Module
    images: Tensor
    classes: Tensor
    """int64 (B,): the class of each image that its map is about."""
    head: Callable[[Tensor], Tensor] = field(default_factory=nn.Identity)

    def __call__(self, images: Tensor) -> Tensor:
        """Compute logits (B, classes) of images (B, C, S, S)."""
        return self.head(self.network(images))

    def odds(self, logits: Tensor) -> Tensor:
        """Return the log odds of the class of each image against all others, (B,).

        What maps are about: a map of the logit alone shows what speaks for any class, too, and softmax takes that out
        again; a probability near 1 changes no more, whatever is taken away.
        """
        own = logits.gather(1, self.classes[:, None])[:, 0]
        if logits.size(1) == 1:
            return own
        return own - logits.scatter(1, self.classes[:, None], -torch.inf).logsumexp(dim=1)


def cells(side: int) -> int:
    """Count the cells per side of a map without a grid of its own, for images of so many pixels."""
    return min(max(MIN_CELLS, min(MAX_CELLS, side // CELL)), max(2, side // 2))


def on_cells(values: Tensor) -> Tensor:
    """Average over each cell the relevance of its pixels, (B, S, S) -> (B, N, N): single ones are too noisy."""
    return F.adaptive_avg_pool2d(values, cells(values.size(-1)))


def resized(maps: Tensor, side: int) -> Tensor:
    """Put maps (B, G, G) on `side` cells per side; parts of a patch are as bright as the patch."""
    if side % maps.size(-1) == 0:
        return F.interpolate(maps[:, None], size=(side, side), mode="nearest")[:, 0]
    if maps.size(-1) > side:
        return F.adaptive_avg_pool2d(maps[:, None], side)[:, 0]
    return F.interpolate(maps[:, None], size=(side, side), mode="bilinear", align_corners=False)[:, 0]


def shares(values: Tensor) -> Tensor:
    """Divide each map (B, G, G) by its sum: float32 on the CPU, at least 0; one with nothing above 0 is 0."""
    values = values.detach().float().cpu().nan_to_num(posinf=0.0, neginf=0.0).clamp(min=0)
    total = values.sum(dim=(1, 2), keepdim=True)
    return values / total.clamp(min=torch.finfo(torch.float32).tiny)
