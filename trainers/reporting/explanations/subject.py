"""Subject of a heat map: a network, its images and a class of each; and its images blurred, or with parts covered."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.errors import OptionError

MAX_CELLS, MIN_CELLS, CELL = 14, 8, 16
POINTS = (1 / 3, 2 / 3, 1.0)
"""Points on the way from the blurred picture to the picture at which gradients are taken."""


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


def blurred(images: Tensor) -> Tensor:
    """Remove what is finer than a quarter of the side from (B, C, S, S), by a Gaussian of an eighth of the side.

    What stands in for a part that is taken away. A grey square would be an object of its own, with sharp edges that
    no training image had; a blurred one has the colours of its neighbourhood, and nothing else is left to see.
    """
    side = images.size(-1)
    sigma = side / 8
    reach = max(1, min(math.ceil(3 * sigma), side - 1))
    axis = torch.arange(-reach, reach + 1, dtype=images.dtype, device=images.device)
    kernel = (-(axis**2) / (2 * sigma**2)).exp()
    kernel /= kernel.sum()
    channels = images.size(1)
    rows = kernel.view(1, 1, -1, 1).expand(channels, 1, -1, 1)
    for weights, padding in ((rows, (0, 0, reach, reach)), (rows.mT, (reach, reach, 0, 0))):
        images = F.conv2d(F.pad(images, padding, mode="reflect"), weights, groups=channels)
    return images


def way(subject: Subject, start: Tensor) -> Iterator[Subject]:
    """Yield the subject at each of the POINTS between `start` and its images.

    The gradient at the picture alone is that of one point, where a sure model is flat and noisy; a mean over a path
    is that of integrated gradients (Sundararajan, Taly and Yan 2017, arXiv:1703.01365).
    Raises NoMap: a program without gradients, such as an ONNX file.
    """
    if next(subject.network.parameters(), None) is None:
        raise NoMap(f"{type(subject.network).__name__} has no gradients: only occlusion explains it")
    for share in POINTS:
        yield replace(subject, images=(start + share * (subject.images - start)).detach())


def without(images: Tensor, removed: Tensor, instead: Tensor) -> Tensor:
    """Put `instead` into the cells (B, N, N) of images (B, C, S, S) that `removed` marks."""
    mask = F.interpolate(removed[:, None].float(), size=images.shape[2:], mode="nearest") > 0.5
    return torch.where(mask, instead, images)  # one image under many masks, or as many of both


def probabilities(subject: Subject, images: Tensor) -> Tensor:
    """Compute the probability of each image's class, float32 (B,)."""
    logits = subject(images).float()
    return logits.softmax(dim=1).gather(1, subject.classes[:, None].to(logits.device))[:, 0]
