"""Predictions that a validation keeps of each image: all logits, or for a large pass the likeliest classes alone."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

MOST_LOGITS = 2**24
"""A pass with more logits (images x classes; 64 MiB) keeps only the LIKELIEST of each image."""
LIKELIEST = 20
MOST_CLASSES = 1_000
"""The confusion matrix is sparse for more classes."""


class Predictions(NamedTuple):
    """Per-image predictions of N images, in dataset order, on the CPU."""

    labels: Tensor
    """int64 (N,)"""
    predicted: Tensor
    """int64 (N,): the class with the largest logit."""
    losses: Tensor
    """float32 (N,): cross-entropy."""
    in_top5: Tensor
    """bool (N,): whether the label is among the five likeliest classes; of 4 classes, top-5 is top-4."""
    confidence: Tensor
    """float32 (N,): the probability of the predicted class."""
    logits: Tensor
    """float32 (N, C); (N, 0) where they are not kept."""
    classes: Tensor
    """int64 (N, K): where the logits are not kept, the LIKELIEST classes, the likeliest first."""
    probabilities: Tensor
    """float32 (N, K): theirs."""

    @property
    def whole(self) -> bool:
        """True if the logits are kept."""
        return self.logits.size(1) > 0

    @property
    def correct(self) -> Tensor:
        """bool (N,)"""
        return self.predicted == self.labels


def predictions_of(logits: Tensor, labels: Tensor, *, whole: bool = True) -> Predictions:
    """Predictions of a batch from logits float32 (B, C) and labels (B,), on any device."""
    shares = logits.softmax(dim=1)
    likeliest = shares.topk(0 if whole else min(LIKELIEST, logits.size(1)), dim=1)
    parts = Predictions(
        labels,
        logits.argmax(dim=1),
        cross_entropy(logits, labels, reduction="none"),
        (logits.topk(min(5, logits.size(1)), dim=1).indices == labels[:, None]).any(dim=1),
        shares.amax(dim=1),
        logits if whole else logits.new_empty(len(logits), 0),  # a view would keep all of them
        likeliest.indices,
        likeliest.values,
    )
    return Predictions(*(part.cpu() for part in parts))


class PredictionBuffer:
    """Collects the predictions of one pass, whose first batch is the largest, in one preallocated tensor per column:
    small tensors that stay among the passing ones of a million images would fragment the memory."""

    def __init__(self, batches: int, whole: bool) -> None:
        self.batches, self.whole, self.images = batches, whole, 0
        self.columns: Predictions | None = None

    def add(self, logits: Tensor, labels: Tensor) -> None:
        batch = predictions_of(logits, labels, whole=self.whole)
        if self.columns is None:
            self.columns = Predictions(*(part.new_empty(self.batches * len(labels), *part.shape[1:]) for part in batch))
        for column, part in zip(self.columns, batch, strict=True):
            column[self.images : self.images + len(part)] = part
        self.images += len(labels)

    def outputs(self) -> Predictions:
        assert self.columns is not None
        return Predictions(*(column[: self.images] for column in self.columns))


def confusion_of(outputs: Predictions, count: int) -> Tensor:
    """int64 (count, count), rows true; sparse where there are more than MOST_CLASSES."""
    pairs = torch.stack([outputs.labels, outputs.predicted])
    if count > MOST_CLASSES:
        ones = torch.ones_like(pairs[0])
        return torch.sparse_coo_tensor(pairs, ones, (count, count), check_invariants=True).coalesce()
    return torch.bincount(pairs[0] * count + pairs[1], minlength=count**2).reshape(count, count)


def class_counts(confusion: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Images of each class that are right, that it has, and that are taken for it: (classes,) each."""
    if not confusion.is_sparse:
        return confusion.diag(), confusion.sum(dim=1), confusion.sum(dim=0)
    (true, predicted), images = confusion.indices(), confusion.values()
    none = images.new_zeros(confusion.size(0))
    hits = none.index_add(0, true, images * (true == predicted))
    return hits, none.index_add(0, true, images), none.index_add(0, predicted, images)
