"""Checkpoints: what a run saves, and how it resumes."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint
from torch import nn

from trainers.config import to_dict
from trainers.engine.handlers import best_row
from trainers.setup import RunSetup
from trainers.storage.checkpoint_file import FORMAT_VERSION, CheckpointWriter, StateValue, has_best

SECONDS_BETWEEN_SAVES = 60.0  # when epochs on cached features take seconds


def identity(setup: RunSetup) -> dict[str, StateValue]:
    """Return what makes a checkpoint self-describing."""
    facts = {
        "format_version": FORMAT_VERSION,
        "class_names": list(setup.data.class_names),
        "image_spec": to_dict(setup.spec),
        "config": to_dict(setup.config),
        "torch_version": str(torch.__version__),
    }
    return {name: StateValue(value) for name, value in facts.items()}


class BestCheckpoint:
    """Keep the weights of the best epoch. Ignite's own score comparison knows no ties and keeps a NaN for ever.

    They wait until the run itself is saved: on cached features an epoch takes less time than a file of the whole model.
    """

    def __init__(self, trainer: Engine, setup: RunSetup, network: nn.Module, run_dir: Path) -> None:
        self.trainer, self.setup, self.network = trainer, setup, network
        self.folder = run_dir / "checkpoints"
        self.epoch, self.weights, facts = StateValue(0), StateValue({}), identity(setup)
        self.config, self.waiting = facts["config"], False
        self._save = Checkpoint(
            {"model": self.weights, "epoch": self.epoch, **facts},
            CheckpointWriter(self.folder, keep=1),
            filename_pattern="best",
            n_saved=None,
        )
        trainer.add_event_handler(Events.EPOCH_COMPLETED, self.keep_if_best)

    def keep_if_best(self, engine: Engine) -> None:
        best = best_row(engine.state.history, self.setup.config.train.select)
        if best is None or best["epoch"] != engine.state.epoch:
            return
        from vit.low_rank import merged_state

        self.epoch.value, self.waiting = engine.state.epoch, True
        self.weights.value = merged_state(self.network)
        if self.setup.on_features:
            trains = {name for name, parameter in self.setup.network.named_parameters() if parameter.requires_grad}
            self.weights.value |= {name: self.weights.value[name].clone() for name in trains}

    def save(self) -> None:
        """Write the best weights, if that has not been done."""
        if self.waiting:
            self._save(self.trainer)
            self.waiting = False

    def save_if_lost(self) -> None:
        """Write the best weights again where they are gone or damaged, and are those that were just restored."""
        state = self.trainer.state
        if not has_best(self.folder.parent) and state.history[-1]["step"] == state.iteration:
            self.keep_if_best(self.trainer)
            self.save()


class ResumeCheckpoint:
    """All of the training state, saved at the end of every epoch, every `save_every` steps, and when asked to.

    The newest two files stay. `epoch_open` in a file says that its epoch's steps are all done but its validation is
    not: a run resumed from it validates first.
    """

    def __init__(self, setup: RunSetup, run_dir: Path, trainer: Engine, parts: dict[str, Any]) -> None:
        """`parts`: everything that has a state, by the name it has in the file."""
        self.trainer, self.parts = trainer, parts
        self.seconds_between = SECONDS_BETWEEN_SAVES if setup.on_features else 0.0
        self.saved_at, self.saved_step = time.monotonic(), 0
        self.epoch_open = StateValue(False)
        facts = identity(setup)
        self.config = facts["config"]
        self._save = Checkpoint(
            {**parts, "epoch_open": self.epoch_open, **facts},
            CheckpointWriter(run_dir / "checkpoints", keep=2),
            filename_pattern="step_{global_step}",
            global_step_transform=lambda engine, _: engine.state.iteration,
            n_saved=None,
        )

    def attach(self, *, save_every: int | None, before_save: Sequence[Callable[[], None]]) -> None:
        """Save at the end of each epoch, after all other work of it, and every `save_every` steps within one.
        `before_save` is called first: what a checkpoint knows, event files and best weights must hold."""
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
        """Save where training has ended or was interrupted, perhaps while the epoch's validation was under way; nothing
        where that has been done."""
        state = self.trainer.state
        if self.saved_step != state.iteration:
            recorded = bool(state.history) and state.history[-1]["step"] == state.iteration
            self.save(epoch_open=state.iteration % state.epoch_length == 0 and not recorded)

    def save(self, *, epoch_open: bool) -> None:
        for work in self.before_save:
            work()
        self.epoch_open.value = epoch_open
        self._save(self.trainer)
        self.saved_at, self.saved_step = time.monotonic(), self.trainer.state.iteration

    def restore(self, checkpoint: dict[str, Any]) -> None:
        """Put every part where `checkpoint` has it."""
        # JSON has made strings of these numbers, in the file and again on the way to another process.
        slots = {int(place): slot for place, slot in checkpoint["optimizer"]["state"].items()}
        checkpoint = checkpoint | {"optimizer": checkpoint["optimizer"] | {"state": slots}}
        for name, part in self.parts.items():
            part.load_state_dict(checkpoint[name])
        self.saved_step = self.trainer.state.iteration
