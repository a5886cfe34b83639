"""Handlers of the engines: schedule, sums, validation, history, early stopping, progress."""

import contextlib
import logging
import math
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from ignite.engine import Engine, Events
from ignite.handlers import EarlyStopping, ProgressBar
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from trainers.engine.metrics import SCALARS
from trainers.engine.optim import set_learning_rate
from trainers.system import distributed

UNTRAINED = Events.STARTED(event_filter=lambda engine, _: engine.state.iteration == 0)  # not where a run is resumed


def endless_batches(loader: DataLoader, start_iteration: int) -> Iterator[Any]:
    """Batches of one epoch after the other, from any iteration on, without reading what lies before it.

    Ignite counts epochs by `epoch_length`; the sampler is told which epoch each pass is, so that order and
    augmentation are functions of (seed, epoch, sample) alone.
    """
    epoch, start_batch = divmod(start_iteration, len(loader))
    while True:
        loader.batch_sampler.set_position(epoch, start_batch)  # type: ignore[union-attr]
        yield from loader
        epoch, start_batch = epoch + 1, 0


def attach_learning_rate(trainer: Engine, optimizer: Optimizer, lr_at: Callable[[int], float]) -> None:
    """Set every group's rate before each step; `lr_at(0)` is the first step's."""

    @trainer.on(Events.ITERATION_STARTED)
    def set_rate(engine: Engine) -> None:
        set_learning_rate(optimizer, lr_at(engine.state.iteration - 1))


class Sums:
    """Running totals of the train step's output, over the epoch and since the last log point.

    They live in the engine's state as plain numbers, so a checkpoint in mid-epoch carries them. Ignite's own metrics
    would be reset when a resumed run starts.
    """

    KEYS = ("loss", "correct", "grad_norm", "n", "steps", "lr")
    """`lr` is no sum: the rate that the last step used."""

    def attach(self, trainer: Engine) -> None:
        trainer.state_dict_user_keys.extend(["epoch_sums", "window_sums"])
        trainer.state.epoch_sums, trainer.state.window_sums = self.zeros(), self.zeros()
        trainer.add_event_handler(Events.EPOCH_STARTED, self.start_epoch)
        trainer.add_event_handler(Events.ITERATION_COMPLETED, self.add)

    def zeros(self) -> dict[str, float]:
        return dict.fromkeys(self.KEYS, 0.0)

    def start_epoch(self, engine: Engine) -> None:
        if engine.state.iteration % engine.state.epoch_length == 0:  # else: resumed in mid-epoch
            engine.state.epoch_sums = self.zeros()

    def add(self, engine: Engine) -> None:
        state, output = engine.state, engine.state.output
        n, norm = output["n"], output["grad_norm"]
        for sums in (state.epoch_sums, state.window_sums):
            sums["loss"] += output["loss"] * n
            sums["correct"] += output["correct"]
            sums["n"] += n
            sums["lr"] = output["lr"]
            if math.isfinite(norm):  # else a step that the scaler of fp16 skipped
                sums["grad_norm"] += norm
                sums["steps"] += 1

    @staticmethod
    def means(sums: dict[str, float]) -> dict[str, float]:
        return {
            "loss": sums["loss"] / sums["n"],
            "accuracy": sums["correct"] / sums["n"],
            "grad_norm": sums["grad_norm"] / max(sums["steps"], 1),
        }


class StepClock:
    """Seconds of training steps, waiting for data included, validation and logging not: over epoch and log window, and
    all of them in `trainer.state.step_seconds`."""

    def attach(self, trainer: Engine) -> None:
        trainer.state.step_seconds = 0.0
        self.epoch = self.window = (0.0, 0.0, 0)
        trainer.add_event_handler(Events.EPOCH_STARTED, self.start_epoch)
        trainer.add_event_handler(Events.GET_BATCH_STARTED, self.ask)
        trainer.add_event_handler(Events.GET_BATCH_COMPLETED, self.receive)
        trainer.add_event_handler(Events.ITERATION_COMPLETED, self.finish)

    def start_epoch(self) -> None:
        self.epoch = (0.0, 0.0, 0)

    def ask(self) -> None:
        self.asked = time.perf_counter()

    def receive(self) -> None:
        self.received = time.perf_counter()

    def finish(self, engine: Engine) -> None:
        seconds, wait = time.perf_counter() - self.asked, self.received - self.asked
        images = engine.state.output["n"]
        engine.state.step_seconds += seconds
        self.epoch = (self.epoch[0] + seconds, self.epoch[1] + wait, self.epoch[2] + images)
        self.window = (self.window[0] + seconds, self.window[1] + wait, self.window[2] + images)

    def take_window(self) -> dict[str, float]:
        values, self.window = self.rates(self.window), (0.0, 0.0, 0)
        return values

    @staticmethod
    def rates(total: tuple[float, float, int]) -> dict[str, float]:
        """Seconds, training images per second, and the share of the time spent waiting for data."""
        seconds, wait, images = total
        safe = max(seconds, 1e-9)
        return {"seconds": seconds, "images_per_s": images / safe, "data_wait": wait / safe}


def peak_memory_mb(device: torch.device) -> float | None:
    """Peak memory so far, in MB: of the device on CUDA, of the process elsewhere; None where nobody knows (Windows)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    if sys.platform == "win32":
        return None
    with contextlib.suppress(OSError):  # Linux: getrusage would count what the process was before it became Python
        peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        if peak is not None:
            return int(peak[1]) * 1024 / 1e6
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (1e6 if sys.platform == "darwin" else 1e3)


def reset_peak_memory(device: torch.device) -> None:
    """Let the peak count from here, so that a run does not report that of the one before; Linux and CUDA only."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # man 5 proc: resets VmHWM


def attach_validation(
    trainer: Engine, evaluator: Engine, loader: DataLoader, *, untrained: DataLoader | None = None
) -> None:
    """Validate after every epoch, and once before the first, on the images of `untrained` where it is given: a broken
    validation path shows in seconds."""
    trainer.add_event_handler(UNTRAINED, lambda: evaluator.run(untrained or loader))
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(loader))


def attach_history(trainer: Engine, evaluator: Engine, clock: StepClock, device: torch.device, *, learns: bool) -> None:
    """Append one row per epoch to `trainer.state.history`; row 0 is the untrained model. Unless its steps let the
    model learn, a row says nothing of the training images."""
    trainer.state_dict_user_keys.append("history")
    trainer.state.history = []

    @trainer.on(UNTRAINED | Events.EPOCH_COMPLETED)
    def append(engine: Engine) -> None:
        state = engine.state
        row: dict[str, float | int | None] = {"epoch": state.epoch, "step": state.iteration}
        nothing: dict[str, float | None] = dict.fromkeys(("loss", "accuracy", "grad_norm"))
        train = Sums.means(state.epoch_sums) if state.iteration and learns else nothing
        row["lr"] = state.epoch_sums.get("lr") if state.iteration else None
        row |= {"train_loss": train["loss"], "train_accuracy": train["accuracy"], "grad_norm": train["grad_norm"]}
        row |= {f"val_{name}": float(evaluator.state.metrics[name]) for name in SCALARS}
        row |= StepClock.rates(clock.epoch) | {"memory_mb": peak_memory_mb(device)}
        state.history.append(row)


def metric_of(select: str) -> str:
    """The validation metric that tells runs apart where their epochs are chosen by `select`."""
    return "loss" if select == "last" else select


def best_row(history: list[dict[str, Any]], select: str) -> dict[str, Any] | None:
    """The trained epoch with the best validation score: ties go to the lower loss, then to the earlier epoch. `last`
    is the last one.

    A pure function of the history, so a resumed run cannot forget its best. Rows with a non-finite score never win.
    """
    score, sign = metric_of(select), -1.0 if metric_of(select) == "loss" else 1.0
    rows = [
        row
        for row in history
        if row["epoch"] > 0 and math.isfinite(row[f"val_{score}"]) and math.isfinite(row["val_loss"])
    ]
    if select == "last":
        return rows[-1] if rows else None
    return max(rows, key=lambda row: (sign * row[f"val_{score}"], -row["val_loss"], -row["epoch"]), default=None)


def attach_time_budget(trainer: Engine, seconds: float) -> None:
    """End training once its steps have taken so many seconds, waiting for data included, validation and saving not.
    They are part of the engine's state: a resumed run has what the first life left over."""
    trainer.state_dict_user_keys.append("step_seconds")

    @trainer.on(Events.ITERATION_COMPLETED)
    def check(engine: Engine) -> None:
        if engine.state.step_seconds >= seconds:
            distributed.end_training(engine)


def attach_early_stopping(trainer: Engine, evaluator: Engine, *, patience: int, select: str) -> EarlyStopping:
    """Stop after `patience` epochs without a better validation score; that of the untrained model does not count.

    The handler's state belongs in the checkpoint.
    """

    def score(engine: Engine) -> float:
        value = float(engine.state.metrics[select])
        if not math.isfinite(value):
            return -math.inf
        return -value if select == "loss" else value

    handler = EarlyStopping(patience=patience, score_function=score, trainer=trainer)
    handler.logger = logging.Logger("early_stopping", logging.WARNING)  # the run says it in its own words
    # Not handler.attach(): that one also resets the count whenever the evaluator starts, so it would never stop.
    trained = Events.COMPLETED(event_filter=lambda *_: trainer.state.iteration > 0)
    evaluator.add_event_handler(trained, handler)
    return handler


def attach_progress(trainer: Engine) -> None:
    """A bar over the steps of an epoch on a terminal; nothing, and nothing to call, where a log file is written."""
    if sys.stderr.isatty():
        bar = ProgressBar(persist=False, desc="epoch")
        bar.attach(trainer, event_name=Events.ITERATION_COMPLETED(every=5))
