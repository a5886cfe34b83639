"""Test-time augmentation: a model's mean answer to ten views of an image (Krizhevsky et al. 2012, section 4.1)."""

import dataclasses
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from inference.classifier import Classifier

SHIFT = 1 / 16
"""Of an image's side: that of the patch of a ViT at 16 patches a side."""


class TenViews(nn.Module):
    """Images (B, C, S, S) -> logarithms (B, classes) of the mean probabilities of ten views: the image, the image moved
    to each of the four corners, and the mirror image of each. Moved images have their border repeated."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        side = images.size(-1)
        shift = max(1, round(side * SHIFT))
        padded = F.pad(images, (shift,) * 4, mode="replicate")
        corners = [(top, left) for top in (0, 2 * shift) for left in (0, 2 * shift)]
        moved = [padded[..., top : top + side, left : left + side] for top, left in [(shift, shift), *corners]]
        views = [view for image in moved for view in (image, image.flip(-1))]
        logs = torch.stack([self.model(view).float().log_softmax(dim=1) for view in views])
        return logs.logsumexp(dim=0) - math.log(len(views))


def with_ten_views(classifier: Classifier) -> Classifier:
    return dataclasses.replace(classifier, model=TenViews(classifier.model))
