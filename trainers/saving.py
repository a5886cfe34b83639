"""What a run saves while it goes on, and how it takes it up again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint, EarlyStopping
from torch import nn

from trainers.checkpoint import FORMAT_VERSION, CheckpointWriter, Fact, checkpoints, read_checkpoint
from trainers.config import to_dict
from trainers.ema import ModelEMA
from trainers.errors import CheckpointError
from trainers.handlers import best_row
from trainers.job import Job
from trainers.run_directory import write_metrics_csv


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


def attach_best_checkpoint(trainer: Engine, job: Job, evaluated: nn.Module, run_dir: Path) -> None:
    """Keep the weights of the best epoch. Ignite's own score comparison knows no ties and keeps a NaN for ever."""
    epoch = Fact(0)
    save = Checkpoint(
        {"model": evaluated, "epoch": epoch, **identity(job)},
        CheckpointWriter(run_dir / "checkpoints", keep=1),
        filename_pattern="best.pt",
        n_saved=None,
    )

    @trainer.on(Events.EPOCH_COMPLETED)
    def save_if_best(engine: Engine) -> None:
        best = best_row(engine.state.history, job.config.train.select)
        if best is not None and best["epoch"] == engine.state.epoch:
            epoch.value = engine.state.epoch
            save(engine)


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
        self.parts: dict[str, Any] = {
            "model": job.model,
            "optimizer": job.optimizer,
            "scaler": trainer.scaler,
            "trainer": trainer,
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

    def attach(self, *, save_every: int | None, before_save: Callable[[], None]) -> None:
        """Save at the end of each epoch, after all other work of it, and every `save_every` steps within one."""
        self.before_save = before_save
        self.trainer.add_event_handler(Events.EPOCH_COMPLETED, self.save, epoch_open=False)
        if save_every:

            @self.trainer.on(Events.ITERATION_COMPLETED(every=save_every))
            def save_within_an_epoch(engine: Engine) -> None:
                if engine.state.iteration % engine.state.epoch_length:  # else EPOCH_COMPLETED saves in a moment
                    self.save(epoch_open=False)

    def save(self, *, epoch_open: bool) -> None:
        self.before_save()  # flush the event files: what a checkpoint knows, they must hold
        self.epoch_open.value = epoch_open
        self._save(self.trainer)

    def save_interrupted(self) -> None:
        """Save between two steps, or while the epoch's validation was under way."""
        state = self.trainer.state
        if state.iteration == 0:
            return  # the untrained model's validation was interrupted: there is nothing to keep
        at_end = state.iteration % state.epoch_length == 0
        recorded = bool(state.history) and state.history[-1]["step"] == state.iteration
        if at_end and recorded:
            return  # the end-of-epoch checkpoint holds just this
        self.save(epoch_open=at_end)

    def restore(self, checkpoint: dict[str, Any]) -> None:
        """Put every part where `checkpoint` has it."""
        for name, part in self.parts.items():
            part.load_state_dict(checkpoint[name])


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
