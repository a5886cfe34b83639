"""Many classes: the most confused ones for a picture, and dense probabilities from the likeliest of each image."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from trainers.engine.predictions import Predictions, class_counts

MOST_SHOWN, SHOWN_CLASSES = 40, 30
"""A picture shows SHOWN_CLASSES classes if there are more than MOST_SHOWN."""


def dense_probabilities(outputs: Predictions, count: int) -> Tensor:
    """Probabilities of all classes, float64 (N, count). Where the logits are not kept, those of the likeliest and of
    the label are right, and what is left lies evenly on the others."""
    if outputs.whole:
        return outputs.logits.double().softmax(dim=1)
    labels, likeliest = outputs.labels[:, None], outputs.probabilities.double()
    own = torch.exp(-outputs.losses.double())[:, None]
    beyond = ~(outputs.classes == labels).any(dim=1, keepdim=True)  # the label is none of the likeliest
    left = 1 - likeliest.sum(dim=1, keepdim=True) - own * beyond
    others = (count - likeliest.size(1) - beyond.long()).clamp(min=1)
    shares = (left.clamp(min=0) / others).repeat(1, count)
    return shares.scatter_(1, labels, own).scatter_(1, outputs.classes, likeliest)


def most_confused(confusion: Tensor, class_names: Sequence[str]) -> tuple[np.ndarray, list[str], str]:
    """The counts among the SHOWN_CLASSES with the most mistakes, their names in class order, and how a title ends that
    says so; all classes where they fit."""
    if len(class_names) <= MOST_SHOWN:
        return confusion.numpy(), list(class_names), ""
    hits, images, predicted = class_counts(confusion)
    chosen = (images + predicted - 2 * hits).sort(descending=True, stable=True).indices[:SHOWN_CLASSES].sort().values
    among = confusion.index_select(0, chosen).index_select(1, chosen).to_dense()
    title = f"; the {SHOWN_CLASSES} of {len(class_names):,} classes with the most mistakes"
    return among.numpy(), [class_names[index] for index in chosen], title
