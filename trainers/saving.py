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
    is kept in memory, and written when the training state is saved too.
    """

    def __init__(self, trainer: Engine, job: Job, evaluated: nn.Module, run_dir: Path) -> None:
        self.trainer, self.job = trainer, job
        self.epoch, self.head = Fact(0), job.classifier(evaluated)
        self.kept: dict[str, Tensor] | None = None
        self.waiting = False
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
            self.kept, self.waiting = copy.deepcopy(self.head.state_dict()), True
        else:
            self._save(engine)

    def write(self) -> None:
        """Write what waits in memory: a checkpoint to resume from must find the best of its history on the disk."""
        if not self.waiting:
            return
        now = copy.deepcopy(self.head.state_dict())
        self.put_back()
        self._save(self.trainer)
        self.head.load_state_dict(now)
        self.waiting = False

    def put_back(self) -> None:
        """Let the model have the head that is kept in memory."""
        assert self.kept is not None
        self.head.load_state_dict(self.kept)


def attach_files(trainer: Engine, run_dir: Path) -> None:
    @trainer.on(Events.EPOCH_COMPLETED)
    def write(engine: Engine) -> None:
        write_metrics_csv(run_dir / "metrics.csv", engine.state.history)


class TrainedWeights:
    """The model's weights in a checkpoint; with `only` set, those that train."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.only = model, False

    def state_dict(self) -> dict[str, Tensor]:
        trains = {name: parameter.requires_grad for name, parameter in self.model.named_parameters()}
        return {name: value for name, value in self.model.state_dict().items() if trains.get(name) or not self.only}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.model.load_state_dict(state)


class ResumeCheckpoint:
    """All of the training state, saved at the end of every epoch, every `save_every` steps, and when asked to.

    The newest two files stay. `epoch_open` in a file says that its epoch's steps are all done but its validation is
    not: a run resumed from it validates first. `frozen_in_best` says that the file lacks the backbone: with cached
    features it is that of the best checkpoint, which was written before.
    """

    def __init__(
        self, job: Job, run_dir: Path, trainer: Engine, *, ema: ModelEMA | None, stopper: EarlyStopping | None
    ) -> None:
        self.trainer, self.folder, self.on_features = trainer, run_dir / "checkpoints", job.on_features
        self.seconds_between = SECONDS_BETWEEN_SAVES if job.on_features else 0.0
        self.saved_at, self.saved_step = time.monotonic(), 0
        self.parts: dict[str, Any] = {
            "model": TrainedWeights(job.model),
            "optimizer": job.optimizer,
            "scaler": trainer.scaler,
            "trainer": trainer,
            "history": History(trainer),
        }
        self.parts |= {"ema": ema} if ema is not None else {}
        self.parts |= {"early_stopping": stopper} if stopper is not None else {}
        self.epoch_open, self.frozen_in_best = Fact(False), Fact(False)
        facts = {"epoch_open": self.epoch_open, "frozen_in_best": self.frozen_in_best, **identity(job)}
        self._save = Checkpoint(
            {**self.parts, **facts},
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
        self.frozen_in_best.value = self.on_features and bool(checkpoints(self.folder, "best"))
        self.parts["model"].only = self.frozen_in_best.value
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
            return with_backbone(read_checkpoint(path), run_dir)
        except CheckpointError as error:
            warn(f"{error}; trying the one before it")
    if found:
        raise CheckpointError(f"no checkpoint in {run_dir / 'checkpoints'} is whole: train anew, or restore one")
    return None


def with_backbone(checkpoint: dict[str, Any], run_dir: Path) -> dict[str, Any]:
    """A resume checkpoint with all weights of its model."""
    if checkpoint.get("frozen_in_best"):
        best = checkpoints(run_dir / "checkpoints", "best")
        if not best:
            raise CheckpointError(f"{run_dir / 'checkpoints'} has no best_*.pt, which holds the frozen weights")
        checkpoint["model"] = read_checkpoint(best[0])["model"] | checkpoint["model"]
    return checkpoint
