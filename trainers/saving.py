"""What a run saves while it goes on, and how it takes it up again."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint, EarlyStopping
from torch import Tensor, nn

from trainers.checkpoint import FORMAT_VERSION, CheckpointWriter, Fact, checkpoints, read_checkpoint
from trainers.config import to_dict
from trainers.ema import ModelEMA
from trainers.errors import CheckpointError
from trainers.handlers import History, best_row
from trainers.job import Job
from trainers.run_directory import write_metrics_csv

SECONDS_BETWEEN_SAVES = 60.0  # when epochs on cached features take seconds


def identity(job: Job) -> dict[str, Fact]:
    """What makes a checkpoint self-describing."""
    facts = {
        "format_version": FORMAT_VERSION,
        "class_names": list(job.data.class_names),
        "image_spec": to_dict(job.spec),
        "config": to_dict(job.config),
        "torch_version": str(torch.__version__),
    }
    return {name: Fact(value) for name, value in facts.items()}


class BestCheckpoint:
    """Keep the weights of the best epoch. Ignite's own score comparison knows no ties and keeps a NaN for ever.

    With cached features an epoch takes less time than the file of a large backbone: then the head of the best epoch
    waits in memory until the training state is saved too.
    """

    def __init__(self, trainer: Engine, job: Job, evaluated: nn.Module, run_dir: Path) -> None:
        self.trainer, self.job = trainer, job
        self.epoch, self.head = Fact(0), job.classifier(evaluated)
        self.waiting: dict[str, Tensor] | None = None
        self._save = Checkpoint(
            {"model": evaluated, "epoch": self.epoch, **identity(job)},
            CheckpointWriter(run_dir / "checkpoints", keep=1),
            filename_pattern="best.pt",
            n_saved=None,
        )

    def attach(self) -> None:
        self.trainer.add_event_handler(Events.EPOCH_COMPLETED, self.keep_if_best)

    def keep_if_best(self, engine: Engine) -> None:
        best = best_row(engine.state.history, self.job.config.train.select)
        if best is None or best["epoch"] != engine.state.epoch:
            return
        self.epoch.value = engine.state.epoch
        if self.job.on_features:
            self.waiting = copy.deepcopy(self.head.state_dict())
        else:
            self._save(engine)

    def write(self) -> None:
        """Write what waits in memory: a checkpoint to resume from must find the best of its history on the disk."""
        if self.waiting is None:
            return
        now = copy.deepcopy(self.head.state_dict())
        self.head.load_state_dict(self.waiting)
        self._save(self.trainer)
        self.head.load_state_dict(now)
        self.waiting = None


def attach_files(trainer: Engine, run_dir: Path) -> None:
    @trainer.on(Events.EPOCH_COMPLETED)
    def write(engine: Engine) -> None:
        write_metrics_csv(run_dir / "metrics.csv", engine.state.history)


class ResumeCheckpoint:
    """All of the training state, saved at the end of every epoch, every `save_every` steps, and when asked to.

    The newest two files stay. `epoch_open` in a file says that its epoch's steps are all done but its validation is
    not: a run resumed from it validates first.
    """

    def __init__(
        self, job: Job, run_dir: Path, trainer: Engine, *, ema: ModelEMA | None, stopper: EarlyStopping | None
    ) -> None:
        self.trainer, self.folder = trainer, run_dir / "checkpoints"
        self.seconds_between = SECONDS_BETWEEN_SAVES if job.on_features else 0.0
        self.saved_at, self.saved_step = time.monotonic(), 0
        self.parts: dict[str, Any] = {
            "model": job.model,
            "optimizer": job.optimizer,
            "scaler": trainer.scaler,
            "trainer": trainer,
            "history": History(trainer),
        }
        self.parts |= {"ema": ema} if ema is not None else {}
        self.parts |= {"early_stopping": stopper} if stopper is not None else {}
        self.epoch_open = Fact(False)
        self._save = Checkpoint(
            {**self.parts, "epoch_open": self.epoch_open, **identity(job)},
            CheckpointWriter(self.folder, keep=2),
            filename_pattern="step_{global_step}.pt",
            global_step_transform=lambda engine, _: engine.state.iteration,
            n_saved=None,
        )

    def attach(self, *, save_every: int | None, before_save: Sequence[Callable[[], None]]) -> None:
        """Save at the end of each epoch, after all other work of it, and every `save_every` steps within one."""
        self.before_save = before_save
        self.trainer.add_event_handler(Events.EPOCH_COMPLETED, self.save_epoch)
        if save_every:

            @self.trainer.on(Events.ITERATION_COMPLETED(every=save_every))
            def save_within_an_epoch(engine: Engine) -> None:
                if engine.state.iteration % engine.state.epoch_length:  # else EPOCH_COMPLETED saves in a moment
                    self.save(epoch_open=False)

    def save_epoch(self) -> None:
        if time.monotonic() - self.saved_at >= self.seconds_between:
            self.save(epoch_open=False)

    def save_last(self) -> None:
        """Training is over: save what the last epoch left, where that has not been done."""
        if self.saved_step != self.trainer.state.iteration:
            self.save(epoch_open=False)

    def save(self, *, epoch_open: bool) -> None:
        for prepare in self.before_save:  # what a checkpoint knows, event files and best weights must hold
            prepare()
        self.epoch_open.value = epoch_open
        self._save(self.trainer)
        self.saved_at, self.saved_step = time.monotonic(), self.trainer.state.iteration

    def save_interrupted(self) -> None:
        """Save between two steps, or while the epoch's validation was under way."""
        state = self.trainer.state
        if state.iteration == 0:
            return  # the untrained model's validation was interrupted: there is nothing to keep
        at_end = state.iteration % state.epoch_length == 0
        recorded = bool(state.history) and state.history[-1]["step"] == state.iteration
        if at_end and recorded:
            self.save_last()  # nothing, where the end of the epoch was saved
        else:
            self.save(epoch_open=at_end)

    def restore(self, checkpoint: dict[str, Any]) -> None:
        """Put every part where `checkpoint` has it."""
        if "history" not in checkpoint:  # written when the history was still a part of the trainer's state
            checkpoint = checkpoint | {"history": {"rows": json.dumps(checkpoint["trainer"]["history"])}}
        for name, part in self.parts.items():
            part.load_state_dict(checkpoint[name])
        self.saved_step = self.trainer.state.iteration


def newest_checkpoint(run_dir: Path, warn: Callable[[str], None]) -> dict[str, Any] | None:
    """The newest whole resume checkpoint; each damaged one on the way is named. None when there is none at all.

    Raises:
        CheckpointError: there are files, and all are damaged.
    """
    found = checkpoints(run_dir / "checkpoints", "step")
    for path in found:
        try:
            return read_checkpoint(path)
        except CheckpointError as error:
            warn(f"{error}; trying the one before it")
    if found:
        raise CheckpointError(f"no checkpoint in {run_dir / 'checkpoints'} is whole: train anew, or restore one")
    return None
