"""Choice of the samples of each batch: a function of (seed, epoch) alone, so that any position is reached at once."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler

from datasets.bundle import BatchKey, evenly
from datasets.seeding import ORDER, mix


@dataclass(frozen=True)
class Share:
    """The part of the work that one process does: number `rank`, from 0, of `world_size`."""

    rank: int = 0
    world_size: int = 1


ALL = Share()
"""The share of a process that is alone."""


class BatchSampler(Sampler[BatchKey]):
    """The batches of one process, from any place on."""

    def __init__(self, length: int, batch_size: int, *, share: Share = ALL) -> None:
        """`length`: images of one epoch, over all processes. `batch_size`: in training over all processes, too."""
        self.length, self.batch_size, self.share = length, batch_size, share
        self.borrows = False
        """True if the process has no batch of its own, and takes one of another's."""
        self._next = (0, 0)

    def set_position(self, epoch: int, start_batch: int = 0) -> None:
        """Let the next pass be epoch `epoch` (from 0) from batch `start_batch` on. Costs nothing: no batch is read."""
        if epoch < 0 or not 0 <= start_batch <= len(self):
            raise ValueError(f"epoch={epoch}, start_batch={start_batch}: an epoch has batches 0 to {len(self) - 1}")
        self._next = (epoch, start_batch)

    def __iter__(self) -> Iterator[BatchKey]:
        # A generator: the position is taken at the first batch, not here. A loader with processes calls iter() twice.
        epoch, start = self._next
        self._next = (epoch + 1, 0)  # a plain `for epoch: for batch in loader` sees a new order each time
        yield from self._batches(epoch, start)

    def key(self, epoch: int, batch: int) -> BatchKey:
        """Return the key of a batch, both from 0."""
        return next(self._batches(epoch, batch))

    @property
    def indices(self) -> np.ndarray:
        """Return the rows that this process takes in the coming epoch, in their order: int64."""
        return np.concatenate([key.draws for key in self._batches(self._next[0], 0)]) % self.length

    def __len__(self) -> int:
        raise NotImplementedError

    def _batches(self, epoch: int, start: int) -> Iterator[BatchKey]:
        raise NotImplementedError


def batch_sampler(loader: DataLoader) -> BatchSampler:
    """Return the batch sampler of a loader with its type."""
    return cast("BatchSampler", loader.batch_sampler)


class EpochBatchSampler(BatchSampler):
    """Shuffled batches of the training split. The last one of an epoch may be smaller.

    With several processes each takes its contiguous slice of every global batch of the one permutation; `batch_size` is
    the global one. A last batch with fewer images than processes is then left out: nobody may wait for an empty step.
    """

    def __init__(
        self, labels: np.ndarray, batch_size: int, *, seed: int = 0, balanced: bool = False, share: Share = ALL
    ) -> None:
        super().__init__(len(labels), batch_size, share=share)
        self.labels, self.seed, self.balanced = labels, seed, balanced

    def __len__(self) -> int:
        full, rest = divmod(self.length, self.batch_size)
        return full + (rest >= self.share.world_size)

    def _batches(self, epoch: int, start: int) -> Iterator[BatchKey]:
        order, rank, world_size = self.order(epoch), self.share.rank, self.share.world_size
        for batch in range(start, len(self)):
            draws = order[batch * self.batch_size : (batch + 1) * self.batch_size]
            yield BatchKey(epoch, draws[len(draws) * rank // world_size : len(draws) * (rank + 1) // world_size])

    def order(self, epoch: int) -> np.ndarray:
        """Return all draws of an epoch, int64 (n,)."""
        generator = torch.Generator().manual_seed(mix(self.seed, ORDER, epoch))
        if self.balanced:
            return _balanced_order(self.labels, generator)
        return torch.randperm(self.length, generator=generator).numpy()


class OrderedBatchSampler(BatchSampler):
    """Batches in table order, each sample once, the same in every epoch.

    Process r of w takes batches r, r + w, ... as one process forms them, for a model's outputs may depend, in the last
    bit, on the size of a batch. One that has none takes the first, too. With `sample`, as many batches as so many
    images make, their rows spread over the table.
    """

    def __init__(self, length: int, batch_size: int, *, sample: int | None = None, share: Share = ALL) -> None:
        super().__init__(length, batch_size, share=share)
        rows = np.arange(length)
        # Every process has as many batches of a sample: signals are looked for together.
        step = batch_size * share.world_size
        if sample is not None and step <= sample < length:
            rows = evenly(length, sample // step * step)
        batches = np.split(rows, range(batch_size, len(rows), batch_size))
        self.borrows = share.rank >= len(batches)
        self._rows = batches[:1] if self.borrows else batches[share.rank :: share.world_size]

    def __len__(self) -> int:
        return len(self._rows)

    def _batches(self, epoch: int, start: int) -> Iterator[BatchKey]:
        for rows in self._rows[start:]:
            yield BatchKey(0, rows)


def _balanced_order(labels: np.ndarray, generator: torch.Generator) -> np.ndarray:
    """Return n draws in which counts of classes, and of a class's samples, are even.

    They differ by at most one."""
    n = len(labels)
    present = np.unique(labels)
    turn = torch.randperm(len(present), generator=generator).numpy()  # who gets the n % classes extra draws
    parts = []
    for place, which in enumerate(turn):
        members = np.flatnonzero(labels == present[which])
        wanted = n // len(present) + (place < n % len(present))
        for copy in range(-(-wanted // len(members))):
            shuffled = members[torch.randperm(len(members), generator=generator).numpy()]
            parts.append(shuffled[: wanted - copy * len(members)] + copy * n)
    draws = np.concatenate(parts)
    return draws[torch.randperm(len(draws), generator=generator).numpy()]
