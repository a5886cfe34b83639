"""Pictures with parts taken away, or half blurred: for occlusion, for gradients on a path, and for faithfulness."""

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from trainers.reporting.explanations.subject import NoMap, Subject, cells

BATCH = 32
POINTS = (1 / 3, 2 / 3, 1.0)
"""Points on the way from the blurred picture to the picture at which gradients are taken."""


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


def occlusion(subject: Subject) -> Tensor:
    """Measure how far the log odds of the class fall without each cell (Zeiler and Fergus 2014, section 4.2).

    Windows of 2 x 2 cells are covered; a cell has the mean over its windows. It needs no gradients, so it is a map of
    a program, too (ONNX); it takes a pass for each window.
    """
    side = cells(subject.images.size(-1))
    instead, corners = blurred(subject.images), torch.eye((side - 1) ** 2).view(-1, 1, side - 1, side - 1)
    windows = F.conv_transpose2d(corners, torch.ones(1, 1, 2, 2))[:, 0]  # (W, N, N): 1 inside of each window
    maps = []
    with torch.no_grad():
        for row in range(len(subject.images)):
            image, blank = subject.images[row : row + 1], instead[row : row + 1]
            falls = []
            for part in windows.split(BATCH):
                many = replace(subject, classes=subject.classes[row].expand(len(part)))
                covered = without(image, part.to(image.device), blank)
                falls.append(many.odds(many(covered).float()).cpu())
            one = replace(subject, classes=subject.classes[row : row + 1])
            fall = one.odds(one(image).float()).cpu() - torch.cat(falls)
            maps.append((fall[:, None, None] * windows).sum(dim=0) / windows.sum(dim=0))
    return torch.stack(maps)


def probabilities(subject: Subject, images: Tensor) -> Tensor:
    """Compute the probability of each image's class, float32 (B,)."""
    logits = subject(images).float()
    return logits.softmax(dim=1).gather(1, subject.classes[:, None].to(logits.device))[:, 0]
