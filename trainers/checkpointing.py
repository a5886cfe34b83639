"""Checkpoints of a run: all that it goes on from when it is stopped, and the weights of its best epoch."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from ignite.engine import Engine, Events
from torch import nn

from trainers.config import to_dict
from trainers.engine.evaluation import Scores, scores_of
from trainers.engine.handlers import best_row
from trainers.setup import RunSetup
from trainers.storage.checkpoint_file import FORMAT_VERSION, checkpoints, write_checkpoint
from vit.low_rank import merged_state


class RunCheckpoints:
    """Saves a run at the end of each epoch, every `save_every` steps and when asked to, and restores it.

    On cached features, where an epoch takes less time than a file of the whole model, only the end is saved.
    The newest two files stay. `epoch_open` in a file says that all steps of its epoch are done but its validation is
    not: a run that goes on from it validates first. Ignite's own `Checkpoint` deletes the old file before it writes the
    new one, so a full disk would leave none.
    """

    def __init__(
        self,
        setup: RunSetup,
        run_dir: Path,
        trainer: Engine,
        evaluator: Engine,
        network: nn.Module,
        states: Mapping[str, Any],
        *,
        flush: Callable[[], object] | None,
    ) -> None:
        """Attach to `trainer`, after all that a checkpoint must hold.

        Args:
            network: the whole model, or the average of its weights, whose best epoch is kept.
            states: everything that has a state, by the name it has in the file.
            flush: is called before a file is written, as event files must hold what it knows. None: this process writes
                no files.
        """
        self.setup, self.folder, self.network = setup, run_dir / "checkpoints", network
        self.trainer, self.evaluator = trainer, evaluator
        self.states, self.flush = states, flush
        self.saved_step = 0
        self.best: dict[str, Any] = {}  # what is not written yet
        self.best_scores: dict[int, Scores] = {}
        """Scores of the best validation by its epoch, which are in no file: a resumed run may have to repeat it."""
        trainer.add_event_handler(Events.EPOCH_COMPLETED, self.save_epoch)
        if flush is not None and (every := setup.config.train.save_every):
            trainer.add_event_handler(Events.ITERATION_COMPLETED(every=every), self.save_within_epoch)

    def save_epoch(self) -> None:
        self.keep_if_best()
        quick = self.setup.on_features and self.setup.total_steps
        if self.flush is not None and not quick:
            self.save()

    def save_within_epoch(self) -> None:
        if self.trainer.state.iteration % self.setup.steps_per_epoch:  # else the epoch is saved in a moment
            self.save()

    def save_last(self) -> None:
        """Save where training has ended or was interrupted, if that has not been done."""
        if self.flush is not None and self.saved_step != self.trainer.state.iteration:
            self.save()

    def save(self) -> None:
        assert self.flush is not None
        self.flush()
        if self.best:  # before the checkpoint that counts its epoch as done
            write_checkpoint(self.folder / "best.safetensors", self.best | self.describe())
            self.best = {}
        step, history = self.trainer.state.iteration, self.trainer.state.history
        epoch_open = step % self.setup.steps_per_epoch == 0 and not (history and history[-1]["step"] == step)
        states = {name: part.state_dict() for name, part in self.states.items()}
        path = self.folder / f"step_{step}.safetensors"
        write_checkpoint(path, {**states, "epoch_open": epoch_open, **self.describe()})
        others = [other for other in checkpoints(self.folder, "step") if other != path]
        for old in others[1:]:
            old.unlink(missing_ok=True)
        self.saved_step = step

    def describe(self) -> dict[str, Any]:
        """Return what makes a checkpoint self-describing."""
        return {
            "format_version": FORMAT_VERSION,
            "class_names": list(self.setup.data.class_names),
            "image_spec": to_dict(self.setup.spec),
            "config": to_dict(self.setup.config),
            "torch_version": str(torch.__version__),
        }

    def keep_if_best(self) -> None:
        """Keep the weights of this epoch, if it is the best, until the run is saved, and its scores until its end.

        Ignite's own comparison of scores knows no ties, and keeps a NaN for ever.
        """
        state = self.trainer.state
        best = best_row(state.history, self.setup.config.train.select)
        if best is None or best["epoch"] != state.epoch:
            return
        weights = merged_state(self.network)
        if self.setup.on_features:  # the next epochs may come before the file
            trained = [name for name, parameter in self.setup.network.named_parameters() if parameter.requires_grad]
            weights |= {name: weights[name].clone() for name in trained}
        self.best = {"model": weights, "epoch": state.epoch}
        self.best_scores = {state.epoch: scores_of(self.evaluator.state.metrics)}

    def restore(self, checkpoint: Mapping[str, Any]) -> None:
        """Load all states but the model's, which `prepare` has loaded, as features are cached from it."""
        # JSON has made strings of these numbers, in the file and again on the way to another process.
        slots = {int(place): slot for place, slot in checkpoint["optimizer"]["state"].items()}
        states = {**checkpoint, "optimizer": checkpoint["optimizer"] | {"state": slots}}
        for name, part in self.states.items():
            if name != "model":
                part.load_state_dict(states[name])
        self.saved_step = self.trainer.state.iteration
