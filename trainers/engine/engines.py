"""The two Ignite engines: one optimizer step per training iteration, one batch per evaluation iteration."""

import logging
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import Engine
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from common.errors import Diverged, OptionError
from trainers.engine.metrics import attach_metrics
from trainers.engine.optim import gradient_norm
from trainers.engine.randomness import seed_step, step_generator

Batch = tuple[Tensor, ...]
"""(images, labels); in training more tensors may follow, a row for each image, which the loss gets."""
# MixUp or CutMix: (images, labels (B,), generator) -> (blended images, soft targets (B, classes)).
Mix = Callable[[Tensor, Tensor, torch.Generator], tuple[Tensor, Tensor]]
LossFunction = Callable[..., Tensor]  # (logits, labels, *extra) -> mean over the images
SILENT = logging.Logger("engine", logging.CRITICAL)
"""Log in place of Ignite's own, which would show an exception that the command line says in one line."""


def autocast(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager:
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


@dataclass(frozen=True)
class Slices:
    """Division of the images of one step: a share for each process, each share in micro-batches.

    Whatever a slice draws depends on its number among all slices, and its loss weighs as many images as it has: two
    processes do, bit for bit, what one process does with two micro-batches.
    """

    micro_batches: int = 1
    rank: int = 0
    world_size: int = 1
    step_images: Callable[[int], int] | None = None
    """Images of step 1, 2, ... over all processes; needed with more than one."""

    @property
    def whole(self) -> bool:
        """True if a step is one slice."""
        return self.micro_batches == self.world_size == 1

    def cut(self, n: int) -> list[tuple[int, slice]]:
        """(number among all slices, rows) of every slice of this process's `n` images; none is empty."""
        bounds = [n * k // self.micro_batches for k in range(self.micro_batches + 1)]
        first = self.rank * self.micro_batches
        return [(first + k, slice(*rows)) for k, rows in enumerate(pairwise(bounds)) if rows[0] < rows[1]]

    def scale(self, n: int, *, share: int, iteration: int) -> float:
        """Return the factor of the mean loss over a slice of `n` images; DDP then averages over the processes."""
        if self.step_images is None:
            return n / share
        return n * self.world_size / self.step_images(iteration)


@dataclass(frozen=True)
class StepOptions:
    """Options of a training step: its precision, the limit on its gradient, what it draws, and how it is cut."""

    amp_dtype: torch.dtype | None = None
    clip_norm: float = 1.0
    seed: int = 0
    mix: Mix | None = None
    """Blends images and targets; hits are still counted against the plain labels."""
    slices: Slices = Slices()


class TrainStep:
    """One optimizer step on a batch, in the form Ignite's Engine calls: see `create_trainer`."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, loss_fn: LossFunction, device: torch.device, options: StepOptions
    ) -> None:
        self.model, self.optimizer, self.loss_fn, self.device = model, optimizer, loss_fn, device
        self.options, self.network = options, model
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.scaled = options.amp_dtype is torch.float16  # else the scaler's calls would cost a little at each step
        self.scaler = GradScaler(device.type, enabled=self.scaled)
        self.last_loss = math.nan

    def __call__(self, engine: Engine, batch: Batch) -> dict[str, float]:
        if not self.model.training:  # a validation pass came between
            self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        loss, correct, n = self.add_gradients(engine.state.iteration, batch)
        if not math.isfinite(loss):
            raise Diverged(self.not_finite("loss", loss, engine))
        if self.scaled:
            self.scaler.unscale_(self.optimizer)
        norm = gradient_norm(self.parameters, clip_norm=self.options.clip_norm).item()
        self.last_loss = loss
        # A scaler skips such a step and halves its scale; below 1 it is not the scale that overflows.
        if not math.isfinite(norm) and not (self.scaled and self.scaler.get_scale() > 1):
            raise Diverged(self.not_finite("gradient norm", norm, engine))
        if self.scaled:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        return {"loss": loss, "correct": correct, "n": n, "grad_norm": norm, "lr": self.rate}

    @property
    def rate(self) -> float:
        """Largest learning rate of the groups."""
        return max(group["lr"] for group in self.optimizer.param_groups)

    def add_gradients(self, iteration: int, batch: Batch) -> tuple[float, int, int]:
        """Forward and backward, slice by slice; mean loss, hits and number of images over all slices and processes."""
        slices = self.options.slices
        images, labels, *extra = moved(batch, self.device, extra=True)
        n = len(labels)
        if slices.whole:
            loss, hits, _ = self.backward(iteration, 0, images, labels, extra, 1.0)
            return loss.item(), int(hits), n

        def add(number: int, rows: slice) -> tuple[Tensor, Tensor, int]:
            scale = slices.scale(rows.stop - rows.start, share=n, iteration=iteration)
            of_slice = [part[rows] for part in extra]
            return self.backward(iteration, number, images[rows], labels[rows], of_slice, scale)

        *early, last = slices.cut(n)
        # Processes exchange gradients once a step, with its last micro-batch.
        no_sync: Any = getattr(self.network, "no_sync", nullcontext)
        with no_sync():
            results = [add(*cut) for cut in early]
        results.append(add(*last))
        sums = [sum(loss.item() * n for loss, _, n in results), sum(int(hits) for _, hits, _ in results), n]
        if slices.world_size > 1:
            sums = idist.all_reduce(torch.tensor(sums, dtype=torch.float64, device=self.device)).tolist()
        return sums[0] / sums[2], int(sums[1]), int(sums[2])

    def backward(
        self, iteration: int, number: int, images: Tensor, labels: Tensor, extra: list[Tensor], scale: float
    ) -> tuple[Tensor, Tensor, int]:
        """Add the gradients of one slice; its mean loss, its hits and its number of images."""
        seed, mix, targets = self.options.seed, self.options.mix, labels
        seed_step(seed, iteration, number, self.device)
        if mix is not None:
            images, targets = mix(images, labels, step_generator(seed, iteration, number))
        with autocast(self.device, self.options.amp_dtype):
            logits = self.network(images)
            loss = self.loss_fn(logits.float(), targets, *extra)
        share = loss if scale == 1 else loss * scale
        (self.scaler.scale(share) if self.scaled else share).backward()
        right = labels.argmax(dim=1) if labels.dim() == 2 else labels  # soft targets, as MixUp in a loader makes
        return loss.detach(), (logits.detach().argmax(dim=1) == right).sum(), len(labels)

    def not_finite(self, quantity: str, value: float, engine: Engine) -> str:
        return (
            f"{quantity} is {value} at step {engine.state.iteration} (lr {self.rate:.3g}, last finite loss"
            f" {self.last_loss:.4g}); this step was not taken, the weights are as before it. Try a lower --lr, a longer"
            " --warmup-epochs or --amp off"
        )


def moved(batch: Any, device: torch.device, *, extra: bool = False) -> list[Tensor]:
    """Return the parts of a batch on a device. Raises OptionError: they are not images and labels, or more without
    `extra`."""
    count = len(batch) if isinstance(batch, tuple | list) else 0
    if (count == 2 or (extra and count > 2)) and all(isinstance(part, Tensor) for part in batch):
        return [part.to(device, non_blocking=True) for part in batch]
    kinds = ", ".join(map(repr, batch) if isinstance(batch, Mapping) else (type(part).__name__ for part in batch))
    raise OptionError(f"a batch is a {type(batch).__name__} of {kinds}: give pairs of tensors, (images, labels)")


def create_trainer(
    model: nn.Module,
    optimizer: Optimizer,
    loss_fn: LossFunction,
    device: torch.device,
    *,
    options: StepOptions = StepOptions(),
    forward: nn.Module | None = None,
) -> Engine:
    """Create an engine whose iteration is one optimizer step on a batch (images (B, C, S, S), labels (B,), *extra).

    `engine.state.output` is a dict of plain numbers: `loss` (mean over the batch), `correct`, `n`, `grad_norm` (before
    clipping), `lr`. Ignite's own create_supervised_trainer is not used: it cannot clip, autocasts on CUDA only and
    drops the last window of an accumulation. `loss_fn(logits, labels, *extra)` is a mean over images. `forward`
    computes the logits where that is not the model itself: the model compiled, or wrapped for several processes. A step
    raises Diverged where a loss or a gradient is not finite; it is not taken, so the weights stay finite.
    """
    step = TrainStep(model, optimizer, loss_fn, device, options)
    if forward is not None:
        step.network = forward
    trainer = Engine(step)
    trainer.logger = SILENT
    trainer.scaler = step.scaler  # the checkpoint handler saves it
    return trainer


def create_evaluator(model: nn.Module, device: torch.device, *, amp_dtype: torch.dtype | None = None) -> Engine:
    """An engine that scores a split; `engine.state.metrics` holds `trainers.engine.metrics.SCALARS` and `confusion`.

    Validation, `evaluate` and `compare` share it, so their numbers agree. `engine.state.outputs` holds (logits float32
    (B, classes), labels (B,)) of each batch. The model is left in evaluation mode.
    """

    def eval_step(_: Engine, batch: Batch) -> Batch:
        if model.training:  # eval() visits every module
            model.eval()
        images, labels = moved(batch, device)
        with torch.inference_mode(), autocast(device, amp_dtype):
            logits = model(images)
        return logits.float(), labels

    evaluator = Engine(eval_step)
    evaluator.logger = SILENT
    attach_metrics(evaluator)
    return evaluator
