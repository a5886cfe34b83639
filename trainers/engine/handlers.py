"""Handlers of the engines: schedule, validation, history, early stopping, progress."""

import contextlib
import logging
import math
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from ignite.engine import Engine, Events
from ignite.handlers import EarlyStopping, ProgressBar
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from trainers.config import metric_of, rank_key
from trainers.engine.engines import Trainer
from trainers.engine.metrics import SCALARS
from trainers.engine.optim import set_learning_rate

UNTRAINED = Events.STARTED(event_filter=lambda engine, _: engine.state.iteration == 0)  # not when a run is resumed


def endless_batches(loader: DataLoader, start_iteration: int) -> Iterator[Any]:
    """Yield batches epoch after epoch, starting at any iteration without reading the earlier ones.

    Ignite counts epochs by `epoch_length`; the sampler gets the epoch of each pass, so that order and augmentation
    are functions of (seed, epoch, sample) alone.
    """
    epoch, start_batch = divmod(start_iteration, len(loader))
    while True:
        loader.batch_sampler.set_position(epoch, start_batch)  # type: ignore[union-attr]
        yield from loader
        epoch, start_batch = epoch + 1, 0


def attach_learning_rate(trainer: Engine, optimizer: Optimizer, lr_at: Callable[[int], float]) -> None:
    """Set the rate of every group before each step; `lr_at(0)` is the first."""

    @trainer.on(Events.ITERATION_STARTED)
    def set_rate(engine: Engine) -> None:
        set_learning_rate(optimizer, lr_at(engine.state.iteration - 1))


def peak_memory_mb(device: torch.device) -> float | None:
    """Return the device's peak memory in MB, on Linux the process's, else None."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    status = Path("/proc/self/status")  # getrusage would include the process before exec
    peak = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return int(peak[1]) * 1024 / 1e6 if peak else None


def reset_peak_memory(device: torch.device) -> None:
    """Reset the peak that the previous run has left, on Linux and CUDA."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # man 5 proc: resets VmHWM


def attach_validation(
    trainer: Engine, evaluator: Engine, loader: DataLoader, *, untrained: DataLoader | None = None
) -> None:
    """Validate after every epoch, and before the first one on the images of `untrained`.

    These are by default all. The early validation shows a broken validation path in seconds.
    """
    trainer.add_event_handler(UNTRAINED, lambda: evaluator.run(untrained or loader))
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(loader))


def attach_history(trainer: Trainer, evaluator: Engine, device: torch.device) -> None:
    """Append a row per epoch to `trainer.state.history`.

    Row 0 is the untrained model, without training values."""
    trainer.state_dict_user_keys.append("history")
    trainer.state.history = []

    @trainer.on(UNTRAINED | Events.EPOCH_COMPLETED)
    def append(engine: Engine) -> None:
        state, metrics, train = engine.state, evaluator.state.metrics, trainer.sums.epoch_means()
        shown = {"train_loss": train["loss"], "train_accuracy": train["accuracy"], "grad_norm": train["grad_norm"]}
        row: dict[str, Any] = {"epoch": state.epoch, "step": state.iteration}
        row["lr"] = trainer.sums.lr if state.iteration else None
        row |= shown if state.iteration else dict.fromkeys(shown)
        row |= {f"val_{name}": float(metrics[name]) for name in SCALARS}
        row |= {name: train[name] for name in ("seconds", "images_per_s", "data_wait")}
        state.history.append(row | {"memory_mb": peak_memory_mb(device)})


def best_row(history: list[dict[str, Any]], select: str, start_head: str | None) -> dict[str, Any] | None:
    """Return the trained epoch with the best validation score.

    Ties go to the lower loss, then to the earlier epoch. `last` is the last one. Row 0 counts if it has a trained head
    (`probe`): it is kept unless an epoch, or with `last` that one, is better. A pure function of the history, so a
    resumed run cannot forget its best. Rows with a non-finite score never win.
    """

    def key(row: dict[str, Any]) -> tuple[float, float]:
        return rank_key(select)({name: row[f"val_{name}"] for name in (metric_of(select), "loss")})

    first = 0 if start_head == "probe" else 1
    rows = [row for row in history if row["epoch"] >= first and all(map(math.isfinite, key(row)))]
    if has_to_beat_its_head(select, start_head):
        rows = [row for row in rows if row is history[-1] or not row["epoch"]]
    elif select == "last":
        rows = rows[-1:]
    return max(rows, key=key, default=None)


def has_to_beat_its_head(select: str, start_head: str | None) -> bool:
    """Return whether the last epoch has to beat the run's fitted first head.

    The weights of that head stay until then."""
    return select == "last" and start_head == "probe"


def attach_early_stopping(trainer: Engine, evaluator: Engine, *, patience: int, select: str) -> EarlyStopping:
    """Stop after `patience` epochs without a better validation score than before, the untrained model's excluded.

    The handler's state belongs in the checkpoint.
    """

    def score(engine: Engine) -> float:
        value, _ = rank_key(select)({"loss": 0.0} | engine.state.metrics)  # a lower loss alone does not count
        value = float(value)
        return value if math.isfinite(value) else -math.inf

    handler = EarlyStopping(patience=patience, score_function=score, trainer=trainer)
    handler.logger = logging.Logger("early_stopping", logging.WARNING)  # the run prints its own line
    # Not handler.attach(): that one also resets the count whenever the evaluator starts, so it would never stop.
    trained = Events.COMPLETED(event_filter=lambda *_: trainer.state.iteration > 0)
    evaluator.add_event_handler(trained, handler)
    return handler


def attach_progress(trainer: Engine) -> None:
    """Show a progress bar over the steps of an epoch, on a terminal only."""
    if sys.stderr.isatty():
        bar = ProgressBar(persist=False, desc="epoch")
        bar.attach(trainer, event_name=Events.ITERATION_COMPLETED(every=5))
