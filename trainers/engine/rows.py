"""Values of all images of a pass, in one table on the CPU."""

import torch
from torch import Tensor

FETCHED_BYTES = 2**26
"""Bytes of rows after which they leave a GPU, which idles while it is waited for."""


class Rows:
    """Rows (images, ...) of a pass, taken batch by batch.

    They are written into one table: small tensors that outlive a batch would fragment the memory over a million
    images."""

    def __init__(self, images: int) -> None:
        self.images, self.values, self.taken = images, torch.empty(0), 0
        self.waiting: list[Tensor] = []
        """Batches that have not left their device, as copies: a class token is a view of all tokens."""

    def __len__(self) -> int:
        return self.taken

    def add(self, batch: Tensor) -> None:
        """Take the rows of a batch, on any device."""
        if not self.taken:
            self.values = torch.empty(self.images, *batch.shape[1:], dtype=batch.dtype, device="cpu")
        on_cpu = batch.device.type == "cpu"
        self.waiting.append(batch if on_cpu else batch.clone())
        self.taken += len(batch)
        if on_cpu or len(self.waiting) * batch.nbytes >= FETCHED_BYTES:
            self._fetch()

    def table(self) -> Tensor:
        """Return all rows so far."""
        self._fetch()
        return self.values[: self.taken]

    def _fetch(self) -> None:
        if self.waiting:
            rows = torch.cat(self.waiting)
            self.values[self.taken - len(rows) : self.taken] = rows.cpu()
            self.waiting = []
