"""Ignite engines: one optimizer step per training iteration, one batch per evaluation iteration; scores of a split."""

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Any

import ignite.distributed as idist
import numpy as np
import torch
from ignite.engine import Engine
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from common.errors import OptionError
from common.files import replacing, text_file
from common.tables import csv_lines
from datasets.sampling import batch_sampler
from trainers.engine.metrics import SCALARS, Step, StepSums, attach_metrics
from trainers.engine.predictions import Predictions
from trainers.engine.randomness import seed_step, step_generator
from trainers.system import distributed

Batch = tuple[Tensor, ...]
"""(images, labels). In training more tensors may follow, a row per image; the loss gets them."""
# MixUp or CutMix: (images, labels (B,), generator) -> (blended images, soft targets (B, classes)).
Mix = Callable[[Tensor, Tensor, torch.Generator], tuple[Tensor, Tensor]]
LossFunction = Callable[..., Tensor]  # (logits, labels, *extra) -> mean over the images
SILENT = logging.Logger("engine", logging.CRITICAL)
"""Logger in place of Ignite's own, which would print exceptions that the command line reports in one line."""


def autocast(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager:
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


@dataclass(frozen=True)
class StepOptions:
    """Precision, clipping, randomness and micro-batches of a step, and how often it is read."""

    amp_dtype: torch.dtype | None = None
    clip_norm: float = 1.0
    """Largest norm of the gradient; 0: no clipping."""
    seed: int = 0
    mix: Mix | None = None
    """Blends images and targets; hits are counted against the plain labels."""
    micro_batches: int = 1
    """Slices of the images of one process. The random numbers of a slice depend on its index among the slices of all
    processes, and its loss is weighted by its number of images: two processes compute the same bits as one with two
    micro-batches."""
    step_images: Callable[[int], int] | None = None
    """Number of images of step 1, 2, ... over all processes; required with more than one process."""
    look_every: int = 1
    """Steps between two reads of loss and gradient norm, each of which synchronises with the device. More than 1 is
    used only with a fused optimizer, which itself skips a step that is not finite and all later ones until the next
    read."""


class TrainStep:
    """One optimizer step on a batch, as Ignite's Engine calls it: see `create_trainer`."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        loss_fn: LossFunction,
        device: torch.device,
        options: StepOptions,
        network: nn.Module,
    ) -> None:
        self.model, self.optimizer, self.loss_fn, self.device = model, optimizer, loss_fn, device
        self.options, self.network = options, network
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.scaled = (
            options.amp_dtype is torch.float16
        )  # otherwise the scaler's calls would cost a little in each step
        self.scaler = GradScaler(device.type, enabled=self.scaled)
        self.sums = StepSums(device, self.scaler)
        self.look_every = options.look_every if optimizer.defaults.get("fused") and not self.scaled else 1
        self.exact = torch.float32 if device.type == "mps" else torch.float64  # MPS has no float64
        self.rank, self.processes = distributed.rank(), distributed.world_size()

    def __call__(self, engine: Engine, batch: Batch) -> dict[str, Any]:
        state, optimizer = engine.state, self.optimizer
        if not self.model.training:  # after a validation pass
            self.model.train()
        optimizer.zero_grad(set_to_none=True)
        loss, hits, n = self.add_gradients(state.iteration, batch)
        if self.scaled:
            self.scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(self.parameters, self.options.clip_norm or math.inf, foreach=True)
        rate = max(group["lr"] for group in optimizer.param_groups)
        step = Step(state.iteration, n, rate, torch.stack([loss / n, hits, norm]))
        self.sums.unread.append(step)
        if state.iteration % self.look_every == 0 or state.iteration % state.epoch_length == 0:
            output = self.sums.read()  # before the step: a step that is not finite is not taken
        else:
            output = step.output()
            optimizer.found_inf = self.sums.failed_by(step)  # type: ignore[attr-defined]  # as torch's GradScaler has it
        if self.scaled:
            self.scaler.step(optimizer)
            self.scaler.update()
        else:
            optimizer.step()
        return output

    def add_gradients(self, iteration: int, batch: Batch) -> tuple[Tensor, Tensor, int]:
        """Run forward and backward slice by slice; return loss sum, hits and images.

        They are those of all processes."""
        tensors, parts = moved(batch, self.device, extra=True), self.options.micro_batches
        own = len(tensors[1])
        n = own if self.options.step_images is None else self.options.step_images(iteration)
        bounds = pairwise(own * k // parts for k in range(parts + 1))
        cuts = [(self.rank * parts + k, slice(*rows)) for k, rows in enumerate(bounds) if rows[0] < rows[1]]
        # Processes exchange gradients once per step, with the last micro-batch.
        no_sync: Any = getattr(self.network, "no_sync", nullcontext)
        sums = []
        for number, rows in cuts:
            with nullcontext() if rows.stop == own else no_sync():
                scale = (
                    (rows.stop - rows.start) * self.processes / n
                )  # of the mean loss; DDP averages over the processes
                sums.append(self.backward(iteration, number, [part[rows] for part in tensors], scale))
        loss, hits = (reduce(torch.add, of_slices) for of_slices in zip(*sums, strict=True))
        if self.processes > 1:
            loss, hits = idist.all_reduce(torch.stack([loss, hits]))
        return loss, hits, n

    def backward(self, iteration: int, number: int, tensors: list[Tensor], scale: float) -> tuple[Tensor, Tensor]:
        """Add the gradients of one slice; return the sum of its loss, and its hits."""
        images, labels, *extra = tensors
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
        return loss.detach().to(self.exact) * len(labels), (logits.detach().argmax(dim=1) == right).sum()


class Trainer(Engine):
    """Ignite engine whose iteration is a training step, with totals in its state."""

    def __init__(self, step: TrainStep) -> None:
        super().__init__(step)
        self.logger, self.scaler, self.sums = SILENT, step.scaler, step.sums

    def state_dict(self) -> OrderedDict:
        return OrderedDict(super().state_dict(), sums=self.sums.state_dict())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.sums.load_state_dict(state_dict["sums"])


def moved(batch: Any, device: torch.device, *, extra: bool = False) -> list[Tensor]:
    """Move a batch to a device.

    Raises OptionError: it is not (images, labels), or has more tensors without `extra`."""
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
) -> Trainer:
    """Create an engine whose iteration is one optimizer step on a batch.

    A batch is (images (B, C, S, S), labels (B,), *extra). `engine.state.output` is a dict of numbers: `loss` (mean over
    the batch), `correct`, `n`, `grad_norm` (before clipping), `lr`; between two reads (`StepOptions.look_every`) the
    measured ones are 0-d tensors. `loss_fn(logits, labels, *extra)` is a mean over images. `forward` computes the
    logits if that is not the model itself, but the compiled model or its wrapper for several processes. Raises
    Diverged: the loss or gradient of a step is not finite; the step is not taken, so the weights stay finite.
    """
    # Ignite's create_supervised_trainer cannot clip, autocasts on CUDA only, and drops the last window of an
    # accumulation.
    network = (
        model if forward is None else forward
    )  # not `forward or model`: a compiled module defines len() and raises in it
    return Trainer(TrainStep(model, optimizer, loss_fn, device, options, network))


def create_evaluator(model: nn.Module, device: torch.device, *, amp_dtype: torch.dtype | None = None) -> Engine:
    """Create an engine that scores a split by the metrics of `trainers.engine.metrics.attach_metrics`.

    Validation, `evaluate` and `compare` share it, so their numbers agree. `engine.state.output` holds (logits float32
    (B, classes), labels (B,)) of a batch, so other Ignite metrics can be attached. The model is left in evaluation
    mode.
    """

    def eval_step(engine: Engine, batch: Batch) -> Batch:
        if model.training:  # eval() visits every module
            model.eval()
        images, labels = moved(batch, device)
        with torch.inference_mode(), autocast(device, amp_dtype):
            logits = model(images)
        if distributed.world_size() > 1 and batch_sampler(engine.state.dataloader).borrows:
            return logits[:0].float(), labels[:0]
        return logits.float(), labels

    evaluator = Engine(eval_step)
    evaluator.logger = SILENT
    attach_metrics(evaluator, device)
    return evaluator


@dataclass(frozen=True)
class Scores:
    """Metrics of a split as fractions, and the predictions that they are computed from."""

    metrics: dict[str, float]
    outputs: Predictions


def score_split(model: nn.Module, loader: DataLoader, device: torch.device, amp_dtype: torch.dtype | None) -> Scores:
    """Run the evaluator of training over a whole split, in its stored order.

    With several processes each scores its share; all of them get the metrics and all predictions.
    """
    return scores_of(create_evaluator(model, device, amp_dtype=amp_dtype).run(loader))


def scores_of(state: Any) -> Scores:
    """Return the scores in the state of an evaluator after a pass."""
    return Scores({name: float(state.metrics[name]) for name in SCALARS}, state.predictions)


def write_predictions(folder: Path, name: str, scores: Scores, dataset: Any, class_names: Sequence[str]) -> Path:
    """Write the predictions of a split, a row per image.

    `<name>_predictions.csv` has path, label, predicted, and probabilities in class order, separated by spaces. If the
    logits were not kept, `<name>_predictions.npz` has paths, class_names, and the columns of `Predictions`.
    """
    folder.mkdir(exist_ok=True)
    outputs, paths = scores.outputs, map(dataset.path, range(len(scores.outputs.labels)))
    table, likeliest = folder / f"{name}_predictions.csv", folder / f"{name}_predictions.npz"
    path, other = (table, likeliest) if outputs.whole else (likeliest, table)
    if outputs.whole:
        probabilities = outputs.logits.double().softmax(dim=1)
        rows = zip(
            paths,
            (class_names[label] for label in outputs.labels.tolist()),
            (class_names[index] for index in probabilities.argmax(dim=1).tolist()),
            (" ".join(f"{share:.7g}" for share in shares.tolist()) for shares in probabilities),
            strict=True,
        )
        with text_file(path) as file:
            file.writelines(csv_lines(("path", "label", "predicted", "probabilities"), rows))
    else:
        columns = {name: column.numpy() for name, column in outputs._asdict().items()}
        with replacing(path) as temporary:
            np.savez_compressed(temporary, paths=np.array(list(paths)), class_names=np.array(class_names), **columns)
    other.unlink(missing_ok=True)  # left by an evaluation with other limits
    return path
