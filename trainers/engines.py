"""The two Ignite engines: one optimizer step per training iteration, one batch per evaluation iteration."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from ignite.engine import Engine
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from trainers.errors import TrainingError
from trainers.metrics import attach_metrics
from trainers.optim import gradient_norm
from trainers.seeding import seed_step, step_generator

Batch = tuple[Tensor, Tensor]
# MixUp or CutMix: (images, labels (B,), generator) -> (blended images, soft targets (B, classes)).
Mix = Callable[[Tensor, Tensor, torch.Generator], Batch]


def autocast(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager:
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


def create_trainer(
    model: nn.Module,
    optimizer: Optimizer,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    device: torch.device,
    *,
    amp_dtype: torch.dtype | None = None,
    clip_norm: float = 1.0,
    seed: int = 0,
    mix: Mix | None = None,
) -> Engine:
    """An engine whose iteration is one optimizer step on a batch (images (B, C, S, S), labels (B,)).

    `engine.state.output` is a dict of plain numbers: `loss` (mean over the batch), `correct`, `n`, `grad_norm` (before
    clipping). Ignite's own create_supervised_trainer is not used: it cannot clip, autocasts on CUDA only and drops the
    last window of an accumulation. `mix` blends images and targets; hits are still counted against the plain labels.

    Raises:
        TrainingError: a loss or a gradient is not finite. The step is not taken, so the weights stay finite.
    """
    scaler = GradScaler(device.type, enabled=amp_dtype is torch.float16)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]

    last_loss = math.nan

    def train_step(engine: Engine, batch: Batch) -> dict[str, float]:
        nonlocal last_loss
        if not model.training:  # a validation pass came between
            model.train()
        seed_step(seed, engine.state.iteration, 0, device)
        images, labels = (part.to(device, non_blocking=True) for part in batch)
        targets = labels
        if mix is not None:
            images, targets = mix(images, labels, step_generator(seed, engine.state.iteration, 0))
        with autocast(device, amp_dtype):
            logits = model(images)
            loss = loss_fn(logits.float(), targets)
        value = loss.item()
        if not math.isfinite(value):
            raise TrainingError(_not_finite("loss", value, engine, optimizer, last_loss))
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = gradient_norm(parameters, clip_norm=clip_norm).item()
        if not math.isfinite(norm) and not scaler.is_enabled():  # a scaler skips such a step by itself
            raise TrainingError(_not_finite("gradient norm", norm, engine, optimizer, value))
        scaler.step(optimizer)
        scaler.update()
        last_loss = value
        correct = int((logits.argmax(dim=1) == labels).sum())
        return {"loss": value, "correct": correct, "n": len(labels), "grad_norm": norm}

    trainer = Engine(train_step)
    trainer.scaler = scaler  # the checkpoint handler saves it
    return trainer


def _not_finite(what: str, value: float, engine: Engine, optimizer: Optimizer, last_loss: float) -> str:
    lr = max(group["lr"] for group in optimizer.param_groups)
    return (
        f"{what} is {value} at step {engine.state.iteration} (lr {lr:.3g}, last finite loss {last_loss:.4g}); this step"
        " was not taken, the weights are as before it. Try a lower --lr, a longer --warmup-epochs or --amp off"
    )


def create_evaluator(
    model: nn.Module,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    device: torch.device,
    *,
    num_classes: int,
    amp_dtype: torch.dtype | None = None,
) -> Engine:
    """An engine that scores a whole split; `engine.state.metrics` holds `trainers.metrics.SCALARS` and `confusion`.

    Validation, `evaluate` and `compare` share it, so their numbers agree. `engine.state.output` is (logits float32
    (B, classes), labels (B,)). The model is left in evaluation mode.
    """

    def eval_step(_: Engine, batch: Batch) -> Batch:
        model.eval()
        images, labels = (part.to(device, non_blocking=True) for part in batch)
        with torch.inference_mode(), autocast(device, amp_dtype):
            logits = model(images)
        return logits.float(), labels

    evaluator = Engine(eval_step)
    attach_metrics(evaluator, num_classes=num_classes, loss_fn=loss_fn, device=device)
    return evaluator
