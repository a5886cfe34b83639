"""A student: a model that learns from the labels and from what a teacher says of the same images.

B batch, N images, K numbers that the teacher says of each.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vit.parts import inputs_of, parts

TEMPERATURE = 3.0  # of soft predictions: Hinton et al. 2015 (section 3) found 2.5 to 4 best for small students


class Student(nn.Module):
    """A model in training, which answers each batch twice: (B, classes) logits, and the loss against its teacher."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, model: nn.Module, targets: np.ndarray, kind: str, *, num_classes: int) -> None:
        """`targets` (N, K): what the teacher says of each training image."""
        super().__init__()
        self.model, self.kind, self.scale = model, kind, math.log(num_classes)
        head: Any = next(module for module in parts(model).head[0].modules() if hasattr(module, "in_features"))
        self.projection = nn.Linear(head.in_features, targets.shape[1]) if kind == "features" else nn.Identity()
        for name, statistic in (("mean", np.mean), ("deviation", np.std)):
            some = targets[:: max(1, len(targets) // 10_000)]
            of_all = torch.from_numpy(statistic(some, axis=0, dtype=np.float32))
            self.register_buffer(name, of_all.clamp(min=1e-4) if name == "deviation" else of_all, persistent=False)

    def forward(self, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C, S, S) and (B, K) -> (B, classes) and one number."""
        with inputs_of(parts(self.model).head[0]) as features:
            logits = self.model(images)
        if self.kind == "logits":
            return logits, soft_loss(logits.float(), targets.float())
        # Each number in units of its spread over the images, else a few strong ones decide. The factor lets both parts
        # of the loss begin at ln(classes), where a model that knows nothing is.
        wanted = (targets.float() - self.mean) / self.deviation
        similarity = F.cosine_similarity(self.projection(features[0]).float(), wanted)
        return logits, self.scale * (1 - similarity).mean()


def soft_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """KL divergence from the teacher's predictions at `TEMPERATURE`, in the scale of gradients at temperature 1."""
    ours, theirs = F.log_softmax(logits / TEMPERATURE, dim=1), F.log_softmax(targets / TEMPERATURE, dim=1)
    return F.kl_div(ours, theirs, reduction="batchmean", log_target=True) * TEMPERATURE**2
