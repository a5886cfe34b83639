"""A run with its two engines and all of their handlers, attached in one stated order.

Ignite calls the handlers of an event in the order of their attachment. So an epoch ends with validation, history,
pictures, best weights, files, early stopping and, after all that it must contain, the checkpoint to resume from.
"""

from collections.abc import Mapping
from typing import Any

import torch
from ignite.engine import Engine, Events
from torch.optim import Optimizer

from common.text import pluralise
from datasets.loaders import sample_of
from trainers.config import RunConfig, to_dict
from trainers.engine import handlers
from trainers.engine.engines import Scores, create_evaluator, scores_of
from trainers.engine.optim import build_average
from trainers.reporting import screen, tensorboard
from trainers.run_record import RunStatus
from trainers.setup import RunSetup, head_of, schedule, trainer_of
from trainers.storage.checkpoint_file import FORMAT_VERSION, write_checkpoint
from trainers.storage.run_folder import RunFolder
from trainers.system import distributed
from vit.low_rank import merged_state

UNTRAINED_SEES, OF_MORE_THAN = 1_000, 10_000
"""Validation images for the model before its first step, and the size of a split above which it gets only these: a
minute's work for a large model on a small machine."""


class Run:
    """A setup with its engines, and the objects that watch, save and end it.

    Handlers find it as `trainer.state.run`. `network` is the whole model that is saved and selected: the trained one,
    or the average of its weights. `evaluated` is the part of it that is validated: its head if features are cached.
    `stopped` says why the plan of `--minutes` ended it early. `states` is everything with a state, by its name in a
    checkpoint; `loggers` is None except in the main process.
    """

    def __init__(self, setup: RunSetup, folder: RunFolder, *, loggers: Any, record: RunStatus) -> None:
        self.setup, self.folder, self.run_dir, self.options = setup, folder, folder.path, setup.config.train
        self.loggers, self.record = loggers, record
        self.val_loader = setup.data.dataloaders["val"]
        decay = setup.config.train.ema_decay
        self.average = build_average(setup.network, decay=decay) if decay else None
        self.network, self.evaluated = setup.network, setup.model
        if self.average is not None:
            self.network = self.average.module
            self.evaluated = head_of(self.network) if setup.on_features else self.network
        self.trainer = trainer_of(setup)
        self.trainer.state.run = self
        self.evaluator = create_evaluator(self.evaluated, setup.device, amp_dtype=setup.amp_dtype)
        self.rate = schedule(setup)
        self.stopped = ""
        self.states: dict[str, Any] = {
            "model": setup.network,
            "optimizer": setup.optimizer,
            "scaler": self.trainer.scaler,
            "trainer": self.trainer,
        }
        attach_handlers(self)
        # Last: a checkpoint contains the work of all other handlers, and a signal waits for it.
        self.saver = RunCheckpoints(self)
        if self.options.start_head == "probe" and not setup.on_features:
            from trainers.heads.fit import soften_head  # and scipy with it

            self.trainer.add_event_handler(handlers.UNTRAINED, soften_head, setup)  # once the head itself is kept
        record.attach(self.trainer)
        distributed.attach_signals(self.trainer, self.evaluator, self.val_loader)

    @property
    def optimizer(self) -> Optimizer:
        return self.setup.optimizer

    @property
    def history(self) -> list[dict[str, Any]]:
        """Return a row per epoch, as in metrics.csv; the first is untrained."""
        rows: list[dict[str, Any]] = self.trainer.state.history
        return rows

    def lengthen(self, config: RunConfig) -> None:
        """Change the number of epochs; no step so far depends on it."""
        self.setup.config = config
        self.rate = schedule(self.setup)
        self.trainer.state.max_epochs = self.setup.last_epoch

    @property
    def over(self) -> str:
        """Say that patience is exhausted, perhaps before the run was resumed; empty otherwise."""
        options, stopping = self.setup.config.train, self.states.get("early_stopping")
        if stopping is not None and stopping.counter >= stopping.patience:
            return f"no better validation {options.select} for {pluralise(options.patience, 'epoch')}: stopped early"
        return ""


def ended_early(run: Run) -> str:
    """Say why a run ends before its last planned step; empty otherwise."""
    setup, state = run.setup, run.trainer.state
    if state.iteration >= setup.total_steps:
        return ""
    done = f"{state.iteration / setup.steps_per_epoch:.3g} of {pluralise(setup.config.train.epochs or 0, 'epoch')}"
    return run.over or run.stopped or f"a handler of your own ended the run after {done}"


def attach_handlers(run: Run) -> None:
    """Attach all handlers of a run in this order; only the main process writes."""
    setup, options, trainer, evaluator = run.setup, run.options, run.trainer, run.evaluator
    assert options.log_every is not None
    writes = distributed.is_main_process()
    handlers.attach_learning_rate(trainer, setup.optimizer, lambda step: run.rate(step))
    if run.average is not None:
        trainer.add_event_handler(Events.ITERATION_COMPLETED, run.average.update_parameters, setup.network)
        run.states["ema"] = run.average
    trainer.sums.attach(trainer)
    if writes:
        tensorboard.attach_steps(trainer, run.loggers, every=options.log_every)
        handlers.attach_progress(trainer)
    many = setup.data.dataset_sizes["val"] > OF_MORE_THAN and options.start_head != "probe"
    untrained = sample_of(run.val_loader, UNTRAINED_SEES) if many else run.val_loader
    evaluator.add_event_handler(Events.STARTED, distributed.share_buffers, run.evaluated)
    handlers.attach_validation(trainer, evaluator, run.val_loader, untrained=untrained)
    handlers.attach_history(trainer, evaluator, setup.device)
    if writes:
        names = setup.data.class_names
        tensorboard.attach_scores(trainer, evaluator, run.loggers, class_names=names)
        if run.loggers.tracker is not None:
            run.loggers.tracker.attach(trainer, evaluator, classes=len(names))
        if setup.config.output.tb != "scalars":  # curves alone need no matplotlib
            from trainers.reporting import pictures

            pictures.attach(trainer, setup, run.evaluated, run.loggers)
        trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: run.folder.write_history(trainer.state.history))
        images = setup.data.dataset_sizes["val"]
        screen.attach_epoch_lines(trainer, val_images=images)
        screen.attach_learning_note(trainer, setup)
    if options.patience:
        run.states["early_stopping"] = handlers.attach_early_stopping(
            trainer, evaluator, patience=options.patience, select=options.select
        )
    trainer.add_event_handler(Events.ITERATION_COMPLETED, end_within_epoch, run)


def end_within_epoch(trainer: Engine, run: Run) -> None:
    """End a run whose last epoch is a fraction; Ignite counts whole epochs."""
    total = run.setup.total_steps
    if trainer.state.iteration == total and total % run.setup.steps_per_epoch:
        trainer.terminate()


class RunCheckpoints:
    """Saves a run at epoch ends, every `save_every` steps and on request, and restores it.

    On cached features, where an epoch takes less time than a file of the whole model, only the end is saved. The newest
    two files are kept. `epoch_open` in a file says that all steps of its epoch are done but not its validation: a run
    resumed from it validates first. Ignite's own `Checkpoint` deletes the old file before it writes the new one, so a
    full disk would leave none.
    """

    def __init__(self, run: Run) -> None:
        """Attach to the trainer of `run`, after everything that a checkpoint must contain.

        Only the main process writes."""
        self.run, self.folder = run, run.run_dir / "checkpoints"
        self.saved_step = 0
        self.best: dict[str, Any] = {}  # not written yet
        self.best_scores: dict[int, Scores] = {}
        """Scores of the best validation by epoch, which are not saved: a resumed run may have to repeat it."""
        run.trainer.add_event_handler(handlers.UNTRAINED, self.keep_if_best)
        run.trainer.add_event_handler(Events.EPOCH_COMPLETED, self.save_epoch)
        if distributed.is_main_process() and (every := run.options.save_every):
            run.trainer.add_event_handler(Events.ITERATION_COMPLETED(every=every), self.save_within_epoch)

    def save_epoch(self) -> None:
        self.keep_if_best()
        quick = self.run.setup.on_features and self.run.setup.total_steps
        if distributed.is_main_process() and not quick:
            self.save()

    def save_within_epoch(self) -> None:
        if (
            self.run.trainer.state.iteration % self.run.setup.steps_per_epoch
        ):  # otherwise the epoch is saved in a moment
            self.save()

    def save_last(self) -> None:
        """Save the state when training ends, if that is not saved yet."""
        if distributed.is_main_process() and self.saved_step != self.run.trainer.state.iteration:
            self.save()

    def save_result(self) -> None:
        """Save the last epoch's weights if they beat the run's first ones.

        No epoch follows."""
        best = self.best_row()
        if self.last_against_first and best is self.run.trainer.state.history[-1] and best["epoch"]:
            self.keep_weights(best["epoch"])
            if distributed.is_main_process():
                self.write_best()

    def write_best(self) -> None:
        if self.best:
            write_checkpoint(self.folder / "best.safetensors", self.best | self.describe())
            self.best = {}

    def save(self) -> None:
        """Write the newest state, after the best weights; keep two files of states."""
        self.run.loggers.flush()  # event files must contain everything up to the checkpoint
        self.write_best()  # before the checkpoint that counts its epoch as done
        step, history = self.run.trainer.state.iteration, self.run.trainer.state.history
        epoch_open = step % self.run.setup.steps_per_epoch == 0 and not (history and history[-1]["step"] == step)
        states = {name: part.state_dict() for name, part in self.run.states.items()}
        path = self.folder / f"step_{step}.safetensors"
        write_checkpoint(path, {**states, "epoch_open": epoch_open, **self.describe()})
        others = [other for other in self.run.folder.checkpoints("step") if other != path]
        for old in others[1:]:
            old.unlink(missing_ok=True)
        self.saved_step = step

    def describe(self) -> dict[str, Any]:
        """Return the entries that make a checkpoint self-describing."""
        setup = self.run.setup
        return {
            "format_version": FORMAT_VERSION,
            "class_names": list(setup.data.class_names),
            "image_spec": to_dict(setup.spec),
            "config": to_dict(setup.config),
            "torch_version": str(torch.__version__),
        }

    def best_row(self) -> dict[str, Any] | None:
        train = self.run.setup.config.train
        return handlers.best_row(self.run.trainer.state.history, train.select, train.start_head)

    @property
    def last_against_first(self) -> bool:
        train = self.run.setup.config.train
        return handlers.has_to_beat_its_head(train.select, train.start_head)

    def keep_if_best(self) -> None:
        """Keep the weights and scores of this epoch if it is the best.

        The weights are kept until the run is saved, the scores until its end. Ignite's own comparison of scores knows
        no ties, and keeps a NaN for ever.
        """
        epoch = self.run.trainer.state.epoch
        if self.best_row() is not self.run.trainer.state.history[-1]:
            return
        self.best_scores = {epoch: scores_of(self.run.evaluator.state)}
        if not epoch or not self.last_against_first:
            self.keep_weights(epoch)

    def keep_weights(self, epoch: int) -> None:
        setup = self.run.setup
        weights = merged_state(self.run.network)
        if setup.on_features or not epoch:  # steps may come before the file is written
            trained = [name for name, parameter in setup.network.named_parameters() if parameter.requires_grad]
            changing = trained if setup.on_features else list(weights)
            weights |= {name: weights[name].clone() for name in changing}
        self.best = {"model": weights, "epoch": epoch}

    def restore(self, checkpoint: Mapping[str, Any]) -> None:
        """Load all states but the model's, which `prepare` has loaded.

        Features are cached with that."""
        # JSON has turned these numbers into strings, in the file and again between processes.
        slots = {int(place): slot for place, slot in checkpoint["optimizer"]["state"].items()}
        states = {**checkpoint, "optimizer": checkpoint["optimizer"] | {"state": slots}}
        for name, part in self.run.states.items():
            if name != "model":
                part.load_state_dict(states[name])
        self.saved_step = self.run.trainer.state.iteration
