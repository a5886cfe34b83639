"""Subject of a heat map: a network, images and a class of each; and versions of the images, blurred or covered."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.errors import OptionError

MAX_CELLS, MIN_CELLS, CELL = 14, 8, 16
POINTS = (1 / 3, 2 / 3, 1.0)
"""Points on the path from the blurred image to the image at which gradients are taken."""


class NoMap(OptionError):
    """The method has no map for this model; another method may have one."""


@dataclass(frozen=True)
class Subject:
    """A network in evaluation mode, normalised images (B, C, S, S), and their classes.

    `head` turns the outputs of the network into logits (B, classes). It is the identity, except for a network of a
    ensemble.
    """

    network: nn.Module
    images: Tensor
    classes: Tensor
    """int64 (B,): the class that the map of each image explains."""
    head: Callable[[Tensor], Tensor] = field(default_factory=nn.Identity)

    def __call__(self, images: Tensor) -> Tensor:
        """Compute logits (B, classes) of images (B, C, S, S)."""
        return self.head(self.network(images))

    def odds(self, logits: Tensor) -> Tensor:
        """Return the log odds (B,) of the class of each image against all others.

        Maps explain the log odds. The logit alone would also show evidence for all classes, which softmax cancels; and
        a probability near 1 hardly changes, whatever is covered.
        """
        own = logits.gather(1, self.classes[:, None])[:, 0]
        if logits.size(1) == 1:
            return own
        return own - logits.scatter(1, self.classes[:, None], -torch.inf).logsumexp(dim=1)


def cells(side: int) -> int:
    """Return the cells per side of a map for images of `side` pixels."""
    return min(max(MIN_CELLS, min(MAX_CELLS, side // CELL)), max(2, side // 2))


def on_cells(values: Tensor) -> Tensor:
    """Average the relevance of pixels over each cell, (B, S, S) -> (B, N, N).

    Single pixels are too noisy."""
    return F.adaptive_avg_pool2d(values, cells(values.size(-1)))


def resized(maps: Tensor, side: int) -> Tensor:
    """Resize maps (B, G, G) to `side` cells per side.

    Parts of a patch are as bright as the patch."""
    if side % maps.size(-1) == 0:
        return F.interpolate(maps[:, None], size=(side, side), mode="nearest")[:, 0]
    if maps.size(-1) > side:
        return F.adaptive_avg_pool2d(maps[:, None], side)[:, 0]
    return F.interpolate(maps[:, None], size=(side, side), mode="bilinear", align_corners=False)[:, 0]


def shares(values: Tensor) -> Tensor:
    """Clip each map (B, G, G) at 0 and divide it by its sum.

    float32 on the CPU; a map without positive values is 0."""
    values = values.detach().float().cpu().nan_to_num(posinf=0.0, neginf=0.0).clamp(min=0)
    total = values.sum(dim=(1, 2), keepdim=True)
    return values / total.clamp(min=torch.finfo(torch.float32).tiny)


def blurred(images: Tensor) -> Tensor:
    """Blur images (B, C, S, S) strongly, as a stand-in for covered parts.

    A Gaussian of an eighth of the side. A grey square would be an object of its own, with sharp edges that no training
    image had; a blurred part has the colours of its neighbourhood and no detail.
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


def along_path(subject: Subject, start: Tensor) -> Iterator[Subject]:
    """Yield the subject at the POINTS between `start` and its images.

    At the image itself the gradient of a confident model is flat and noisy, so gradients are averaged along a path:
    integrated gradients (Sundararajan, Taly and Yan 2017, arXiv:1703.01365).
    Raises NoMap: a program without gradients, such as an ONNX file.
    """
    if next(subject.network.parameters(), None) is None:
        raise NoMap(f"{type(subject.network).__name__} has no gradients: only occlusion explains it")
    for share in POINTS:
        yield replace(subject, images=(start + share * (subject.images - start)).detach())


def without(images: Tensor, removed: Tensor, instead: Tensor) -> Tensor:
    """Replace cells of images (B, C, S, S), marked by masks (B, N, N).

    Those of `instead` take their place."""
    mask = F.interpolate(removed[:, None].float(), size=images.shape[2:], mode="nearest") > 0.5
    return torch.where(mask, instead, images)  # one image and many masks, or as many of both


def probabilities(subject: Subject, images: Tensor) -> Tensor:
    """Compute the probability of each image's class, float32 (B,)."""
    logits = subject(images).float()
    return logits.softmax(dim=1).gather(1, subject.classes[:, None].to(logits.device))[:, 0]
