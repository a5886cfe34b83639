"""Predictions of a validation pass: all logits, or for a large pass only the most probable classes of each image."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from ignite.engine import Engine
from ignite.metrics import Metric
from torch import Tensor
from torch.nn.functional import cross_entropy

from trainers.engine.rows import Rows
from trainers.system import distributed

MOST_LOGITS = 2**24
"""A pass with more logits (images x classes; 64 MiB) keeps only the LIKELIEST classes of each image."""
LIKELIEST = 20


class Predictions(NamedTuple):
    """Predictions for N images, in the order of their table."""

    labels: Tensor  # int64 (N,)
    predicted: Tensor  # int64 (N,): the class with the largest logit
    losses: Tensor  # float32 (N,): cross-entropy
    confidence: Tensor  # float32 (N,): the probability of the predicted class
    logits: Tensor  # float32 (N, C); (N, 0) if they are not kept
    classes: Tensor  # int64 (N, K): if the logits are not kept, the LIKELIEST classes, best first
    probabilities: Tensor  # float32 (N, K): those of `classes`

    @property
    def whole(self) -> bool:
        """Return whether the logits are kept."""
        return self.logits.size(1) > 0

    @property
    def correct(self) -> Tensor:
        """Return which images are right: bool (N,)."""
        return self.predicted == self.labels


def predictions_from(logits: Tensor, labels: Tensor, *, whole: bool = True) -> Predictions:
    """Build a batch's predictions from logits float32 (B, C) and labels (B,).

    They stay on their device."""
    shares = logits.softmax(dim=1)
    likeliest = shares.topk(0 if whole else min(LIKELIEST, logits.size(1)), dim=1)
    return Predictions(
        labels,
        logits.argmax(dim=1),
        cross_entropy(logits, labels, reduction="none"),
        shares.amax(dim=1),
        logits if whole else logits.new_empty(len(logits), 0),  # a view would keep all of them alive
        likeliest.indices,
        likeliest.values,
    )


class PassPredictions(Metric):
    """Ignite metric: the `Predictions` of a whole pass, in the engine's state.

    They are on the CPU, in every process."""

    def started(self, engine: Engine) -> None:
        self.engine = engine
        super().started(engine)

    def reset(self) -> None:
        self.columns: list[Rows] = []

    def update(self, output: tuple[Tensor, Tensor]) -> None:
        logits, labels = output
        if not self.columns:  # the first batch is the largest
            batches = self.engine.state.epoch_length or 1
            self.whole = sum(distributed.all_gather(batches * logits.numel())) <= MOST_LOGITS
            self.columns = [Rows(batches * len(labels)) for _ in Predictions._fields]
        for rows, part in zip(self.columns, predictions_from(logits, labels, whole=self.whole), strict=True):
            rows.add(part)

    def completed(self, engine: Engine, name: str) -> None:
        setattr(engine.state, name, self.compute())

    def compute(self) -> Predictions:
        assert self.columns
        own = Predictions(*(rows.table() for rows in self.columns))
        self.columns = []
        if distributed.world_size() == 1:
            return own
        loader: Any = self.engine.state.dataloader
        rows = torch.as_tensor(loader.batch_sampler.indices[: len(own.labels)])
        rows, *parts = map(torch.cat, zip(*distributed.all_gather((rows, *own)), strict=True))
        order = rows.argsort()
        return Predictions(*(part[order] for part in parts))


def dense_probabilities(outputs: Predictions, count: int) -> Tensor:
    """Return the probabilities of all classes, float64 (N, count).

    If the logits were not kept, those of the most probable classes and of the label are exact, and the rest is spread
    evenly over the others.
    """
    if outputs.whole:
        return outputs.logits.double().softmax(dim=1)
    labels, likeliest = outputs.labels[:, None], outputs.probabilities.double()
    own = torch.exp(-outputs.losses.double())[:, None]
    beyond = ~(outputs.classes == labels).any(dim=1, keepdim=True)  # the label is not among the likeliest
    left = 1 - likeliest.sum(dim=1, keepdim=True) - own * beyond
    others = (count - likeliest.size(1) - beyond.long()).clamp(min=1)
    shares = (left.clamp(min=0) / others).repeat(1, count)
    return shares.scatter_(1, labels, own).scatter_(1, outputs.classes, likeliest)
