"""MixUp and CutMix on a batch, in the train step and on its device."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class BatchMix:
    """Blend each image with its neighbour in the batch: MixUp (Zhang et al. 2018) or CutMix (Yun et al. 2019).

    One of the two is chosen per batch, with equal odds when both are on (DeiT). A lone image stays as it is.
    """

    num_classes: int
    mixup_alpha: float = 0.0
    cutmix_alpha: float = 0.0

    def __call__(
        self, images: torch.Tensor, labels: torch.Tensor, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(B, C, S, S) and int64 (B,) -> blended images and soft targets float32 (B, classes), rows summing to one.

        A pure function of its arguments: all draws come from `generator`.
        """
        targets = F.one_hot(labels, self.num_classes).float()
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        random = np.random.default_rng(seed)
        cut = self.cutmix_alpha > 0 and (self.mixup_alpha == 0 or random.random() < 0.5)
        alpha = self.cutmix_alpha if cut else self.mixup_alpha
        if alpha == 0:
            return images, targets
        kept = float(random.beta(alpha, alpha))
        if cut:
            images, kept = _cut(images, kept, random)
        else:
            images = torch.lerp(images.roll(1, 0), images, kept)
        return images, torch.lerp(targets.roll(1, 0), targets, kept)


def _cut(images: torch.Tensor, kept: float, random: np.random.Generator) -> tuple[torch.Tensor, float]:
    """Paste a box of the neighbour over each image; the share of its own pixels an image really keeps."""
    height, width = images.shape[-2:]
    x, y = int(random.integers(width)), int(random.integers(height))
    half = 0.5 * np.sqrt(1 - kept)
    left, right = max(0, int(x - half * width)), min(width, int(x + half * width))
    top, bottom = max(0, int(y - half * height)), min(height, int(y + half * height))
    mixed = images.clone()
    mixed[..., top:bottom, left:right] = images.roll(1, 0)[..., top:bottom, left:right]
    return mixed, 1 - (bottom - top) * (right - left) / (height * width)
