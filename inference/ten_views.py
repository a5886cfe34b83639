"""Test-time augmentation: a model's mean answer to ten views of an image (Krizhevsky et al. 2012, section 4.1)."""

import dataclasses
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from inference.classifier import Classifier
from trainers.storage.finished_run import read_run_config

SHIFT = 1 / 16
"""Shift of a view, as a fraction of the image side: the patch of a ViT with 16 patches a side."""


class TenViews(nn.Module):
    """Images (B, C, S, S) -> logarithms (B, classes) of the mean probabilities of ten views: the image, the image moved
    to each of the four corners, and the mirror image of each; of five where a mirror changes the class. Moved images
    have their border repeated."""

    def __init__(self, model: nn.Module, *, mirror: bool = True) -> None:
        super().__init__()
        self.model, self.mirror = model, mirror

    def forward(self, images: Tensor) -> Tensor:
        side = images.size(-1)
        shift = max(1, round(side * SHIFT))
        padded = F.pad(images, (shift,) * 4, mode="replicate")
        corners = [(top, left) for top in (0, 2 * shift) for left in (0, 2 * shift)]
        moved = [padded[..., top : top + side, left : left + side] for top, left in [(shift, shift), *corners]]
        views = moved + [view.flip(-1) for view in moved] * self.mirror
        logs = torch.stack([self.model(view).float().log_softmax(dim=1) for view in views])
        return logs.logsumexp(dim=0) - math.log(len(views))


def with_ten_views(classifier: Classifier) -> Classifier:
    """Return the classifier with ten views; without mirror images where the classifier's run had none; and without
    promises, which hold for one view."""
    mirror = classifier.run_dir is None or read_run_config(classifier.run_dir).data.may_mirror
    return dataclasses.replace(classifier, model=TenViews(classifier.model, mirror=mirror), answers=None)
