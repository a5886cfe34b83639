"""Values measured in training steps, and their totals."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from ignite.engine import Engine, Events
from ignite.handlers import Timer
from torch import Tensor
from torch.amp import GradScaler

from common.errors import Diverged


class Step(NamedTuple):
    """A training step and its values, which stay on the device until `StepSums.read`."""

    number: int
    n: int
    lr: float
    measured: Tensor  # (3,): mean of the loss over `n` images, the number of hits, the norm of the gradient

    def output(self, measured: Sequence[Any] | None = None) -> dict[str, Any]:
        """Return `loss`, `correct`, `n`, `grad_norm`, `lr`: 0-d tensors on the device unless `measured` values are
        given."""
        # A plain dict: Ignite and programs rebuild, print and save the output of an engine.
        loss, correct, norm = self.measured.unbind() if measured is None else measured
        return {"loss": loss, "correct": correct, "n": self.n, "grad_norm": norm, "lr": self.lr}


class StepSums:
    """Totals of the training steps over the epoch and since the last log point.

    They are saved with the trainer, so a run resumed in mid-epoch continues them; Ignite's own metrics start anew with
    the trainer. Seconds include waiting for data, but neither validation nor logging.
    """

    def __init__(self, device: torch.device, scaler: GradScaler) -> None:
        self.scaler, self.unread, self.last_loss = scaler, list[Step](), math.nan
        self.failed = torch.zeros((), device=device)
        self.epoch, self.window = defaultdict[str, float](float), defaultdict[str, float](float)
        self.seconds, self.lr = 0.0, 0.0
        self.step, self.wait = Timer(), Timer()

    def attach(self, trainer: Engine) -> None:
        """Clear the totals at each epoch, and time each step."""
        self.wait.attach(trainer, start=Events.GET_BATCH_STARTED, pause=Events.GET_BATCH_COMPLETED)
        self.step.attach(trainer, start=Events.GET_BATCH_STARTED, pause=Events.ITERATION_COMPLETED)
        trainer.add_event_handler(Events.ITERATION_COMPLETED, self.take_time)
        trainer.add_event_handler(Events.EPOCH_STARTED, self.start_epoch)

    def take_time(self) -> None:
        self.seconds += self.step.total
        for totals in (self.epoch, self.window):
            totals["seconds"] += self.step.total
            totals["wait"] += self.wait.total

    def start_epoch(self, engine: Engine) -> None:
        self.read()
        if engine.state.iteration % engine.state.epoch_length == 0:  # otherwise: resumed in mid-epoch
            self.epoch.clear()

    def failed_by(self, step: Step) -> Tensor:
        """Return float32 () on the device: 1 if this step, or an earlier unread one, is not finite."""
        return self.failed.masked_fill_(~step.measured.isfinite().all(), 1.0)

    def read(self) -> dict[str, Any]:
        """Add unread steps to the totals, and return the output of the last one.

        Synchronises with the device. Raises Diverged: a step was not finite.
        """
        steps, self.unread = self.unread, []
        measured, output = [step.measured for step in steps], dict[str, Any]()
        rows = torch.stack(measured).tolist() if len(steps) > 1 else [row.tolist() for row in measured]
        for step, (mean, hits, gradient) in zip(steps, rows, strict=True):
            output = step.output((mean, int(hits), gradient))
            loss, correct, n, norm, lr = output.values()
            # A scaler skips such a step and halves its scale; below 1 it is not the scale that overflows.
            skipped = not math.isfinite(norm) and self.scaler.is_enabled() and self.scaler.get_scale() > 1
            if not (math.isfinite(loss) and (math.isfinite(norm) or skipped)):
                name, value = ("gradient norm", norm) if math.isfinite(loss) else ("loss", loss)
                self.failed.zero_()
                raise Diverged(
                    f"{name} is {value} at step {step.number} (lr {lr:.3g}, last finite loss {self.last_loss:.4g});"
                    " this step was not taken, the weights are as before it. Try a lower --lr, --amp off, or a"
                    " longer warm-up, in a file: warmup_epochs",
                    step.number,
                )
            self.last_loss, self.lr = loss, lr
            for totals in (self.epoch, self.window):
                totals["loss"] += loss * n
                totals["correct"] += correct
                totals["n"] += n
                if not skipped:
                    totals["grad_norm"] += norm
                    totals["steps"] += 1
        return output

    def epoch_means(self) -> dict[str, float]:
        self.read()
        return means(self.epoch)

    def take_window(self) -> dict[str, float]:
        """Return means over the steps since the last call."""
        self.read()
        found = means(self.window)
        self.window.clear()
        return found

    def state_dict(self) -> dict[str, Any]:
        self.read()
        return {"epoch": dict(self.epoch), "window": dict(self.window), "seconds": self.seconds, "lr": self.lr}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.epoch, self.window = (defaultdict(float, state[name]) for name in ("epoch", "window"))
        self.seconds, self.lr = state["seconds"], state["lr"]


def means(totals: Mapping[str, float]) -> dict[str, float]:
    """Return means over images or steps, seconds, images per second, and the share of waiting."""
    total = defaultdict(float, totals)
    n, seconds = max(total["n"], 1), max(total["seconds"], 1e-9)
    return {
        "loss": total["loss"] / n,
        "accuracy": total["correct"] / n,
        "grad_norm": total["grad_norm"] / max(total["steps"], 1),
        "seconds": total["seconds"],
        "images_per_s": total["n"] / seconds,
        "data_wait": total["wait"] / seconds,
    }
