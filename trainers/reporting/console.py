"""Texts on the terminal: one screen before the first step, a line per epoch, a table at the end."""

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from ignite.engine import Engine, Events
from tqdm import tqdm

import datasets
import trainers
import vit
from common.shell import typed
from common.text import pluralise, printable, wrapped
from datasets.bundle import image_set
from datasets.description import describe
from datasets.opened import OpenedImages
from trainers.config import RunConfig
from trainers.reporting.few_images import FEW, cannot_tell
from trainers.setup import RunSetup
from trainers.system import distributed
from vit.config import WHAT_THEY_ARE
from vit.parts import count_parameters

FOLDS = 5
"""Folds that are advised, where each class has an image for each of them."""
LOG = logging.getLogger(trainers.__name__)
"""Logger of all that the application says: `trainers`, or `vit_train.trainers` where it is installed. Its records have
a `label`, such as "note" or "plan", or None."""


class Console(logging.Handler):
    """Prints records, labels in a column, without tearing a progress bar; the main process alone, and not in quiet."""

    silent = False

    def __init__(self, label: str | None = None, said: set[str] | None = None) -> None:
        """`label`: that of records without one of their own. `said`: lines that are not said again."""
        super().__init__()
        self.label, self.said = label, said

    def filter(self, record: logging.LogRecord) -> bool:
        return distributed.is_main_process() and (getattr(record, "always", False) or not Console.silent)

    def format(self, record: logging.LogRecord) -> str:
        label: str | None = getattr(record, "label", self.label)
        message = record.getMessage()
        line = message if label is None else f"{label:>9}  {message}".replace("\n  ", f"\n{'':11}")
        return wrapped(line, indent=0 if label is None else 11)

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        if self.said is not None and line in self.said:
            return
        if self.said is not None:
            self.said.add(line)
        tqdm.write(line)


CONSOLE = Console()


def left_to_console(log: logging.Logger) -> bool:
    """Return whether a program has configured nothing of this log: neither a level nor a handler."""
    return log.level == logging.NOTSET and not log.handlers


def say(line: str = "", *, label: str | None = None, always: bool = False) -> None:
    """Log a line: notes as warnings, in quiet all as DEBUG unless it is `always` said, else as information. The console
    prints it only where a program has said nothing of the log, as `logging.lastResort` does for all logs of Python."""
    level = logging.DEBUG if Console.silent and not always else logging.WARNING if label == "note" else logging.INFO
    extra = {"label": label, "always": always}
    if left_to_console(LOG):
        CONSOLE.handle(LOG.makeRecord(LOG.name, level, __file__, 0, line, (), None, extra=extra))
    else:
        LOG.log(level, line, extra=extra, stacklevel=2)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the console silent: many runs that follow one protocol would each repeat the screen of the one before."""
    data_log = logging.getLogger(datasets.__name__)
    before, level, Console.silent = Console.silent, data_log.level, True
    data_log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        Console.silent = before
        data_log.setLevel(level)


@contextmanager
def model_log(images: OpenedImages | None = None) -> Iterator[None]:
    """Let the console print what the model factory logs: which weights were loaded how, and what was interpolated or
    replaced; each line once in the block, or for all runs that share `images`. A program that has said where that log
    goes keeps it so."""
    log = logging.getLogger(vit.__name__)
    if not left_to_console(log):
        yield
        return
    propagate, handler = log.propagate, Console("weights", set() if images is None else images.told_of_weights)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.propagate = propagate
        log.setLevel(logging.NOTSET)
        log.removeHandler(handler)


def announce(
    setup: RunSetup, run_dir: Path | None, *, defaults_source: str, images: OpenedImages | None = None
) -> None:
    """The screen before step 1; without a `run_dir` that stays, none is named. `images`: those that the command has
    opened; what was told of them at an earlier run is not told again."""
    config = setup.config
    total, trainable = count_parameters(setup.model)
    train, data = config.train, config.data
    extras = {"label smoothing": train.label_smoothing, "MixUp": train.mixup, "CutMix": train.cutmix}
    options = [f"{name} {value:g}" for name, value in (extras | {"EMA": train.ema_decay}).items() if value]
    described = describe(setup.data)
    rows = [("data" if line is described[0] else "", line) for line in described]
    if images is not None and not Console.silent:
        rows = [("data", f"{described[0]}, as above")] if images.told == described else rows
        images.told = described
    size = f"{setup.spec.image_size} px, {total:,} parameters, {trainable:,} trainable"
    weights = f", weights {config.model.weights}" if config.model.weights else ""
    rows.append(("model", f"{config.model.in_words} at {size}{weights}"))
    rows.append(("", WHAT_THEY_ARE.get(config.model.name, "")))
    steps = f"{pluralise(setup.steps_per_epoch, 'step')} of {data.batch_size} images"
    length = f"{pluralise(train.epochs or 0, 'epoch')} x {steps}"
    rate = f"lr {train.lr:.3g} ({train.schedule}, warm-up {train.warmup_epochs:.3g} epochs)"
    how = f"{length}, {train.optimizer} {rate}, weight decay {train.weight_decay:g}"
    rows.append(("training", how if train.start_head != "fit" else "none: the head is fitted to all images at once"))
    precision = "fp32" if train.amp == "off" else train.amp
    options += [f"augmentation {data.augment}", f"precision {precision}", f"seed {train.seed}"]
    rows.append(("", ", ".join(options)))
    rows += [("defaults", defaults_source if train.start_head != "fit" else ""), ("device", train.device)]
    rows.append(("note", too_few_to_validate(setup)))
    if run_dir is not None:
        rows += [("run", printable(str(run_dir))), ("watch", typed("tensorboard", "--logdir", run_dir.parent))]
    for label, text in rows:
        if text:
            say(text, label=label)
    say()


def too_few_to_validate(setup: RunSetup) -> str:
    """Say what the validation images are too few for, and what would do; empty where there are enough."""
    train, val = (image_set(setup.data.dataloaders[split]).labels for split in ("train", "val"))
    said = cannot_tell(val, setup.data.class_names)
    drawn = setup.config.data.folds is None and setup.config.data.split is None
    if said and drawn and np.bincount(train).min() >= FOLDS:
        said += f"; --folds {FOLDS} validates on every image"
    return said


def attach_epoch_lines(trainer: Engine, *, val_images: int, lines: int = 25) -> None:
    """Print a line for every epoch of a short run, for about `lines` of a long one, and always for the last.

    Each ends in the time that is left at the pace of its epoch, the last in the seconds that it took. The number of
    epochs may change while the run trains.
    """
    started = [time.monotonic()]

    @trainer.on(Events.EPOCH_STARTED)
    def start(_: Engine) -> None:
        started[0] = time.monotonic()

    @trainer.on(Events.EPOCH_COMPLETED)
    def line(engine: Engine) -> None:
        epoch, epochs = engine.state.epoch, engine.state.max_epochs or 1
        if epoch % -(-epochs // lines) == 0 or epoch in (1, epochs):
            words = epoch_line(engine.state.history[-1], epochs, val_images=val_images)
            taken = time.monotonic() - started[0]
            minutes, seconds = divmod(math.ceil(taken * (epochs - epoch)), 60)
            say(f"{words}  {f'{minutes}:{seconds:02} left' if epoch < epochs else f'{taken:.1f} s'}")


def attach_learning_note(trainer: Engine, setup: RunSetup) -> None:
    """Say after a fifth of three epochs or more, and the warm-up, whether validation is no better than the commonest
    class, within a standard error, by the score that chooses the epoch, and what to type then. Nothing where the
    validation images are too few to tell."""
    labels = image_set(setup.data.dataloaders["val"]).labels
    if (setup.config.train.epochs or 0) < 3 or cannot_tell(labels, setup.data.class_names):
        return
    train, sizes = setup.config.train, np.bincount(labels)
    balanced, commonest = train.select == "balanced_accuracy", setup.data.class_names[int(sizes.argmax())]
    score, share = ("balanced_accuracy", 1 / (sizes > 0).sum()) if balanced else ("accuracy", sizes.max() / sizes.sum())
    margin = (share * (1 - share) / sizes.sum()) ** 0.5
    when = math.ceil(max((train.epochs or 0) / 5, train.warmup_epochs or 0))

    @trainer.on(Events.EPOCH_COMPLETED)
    def note(engine: Engine) -> None:
        row = engine.state.history[-1]
        if row["epoch"] != when or row[f"val_{score}"] > share + margin:
            return
        if balanced and setup.config.data.balance == "none":
            hint = "it may call everything so: --balance sampler"
        elif row["train_accuracy"] < share + 0.1:
            hint = f"a smaller rate may learn: --lr {(train.lr or 0) / 4:.2g}"
        else:
            from_scratch = setup.config.model.weights in (None, "none")
            ways = ["more images", "--augment strong", *["--model vit_b_16"] * from_scratch]
            hint = f"it learns its training images alone: {', '.join(ways[:-1])} or {ways[-1]} help"
        reached = f"validation {score.replace('_', ' ')} {row[f'val_{score}']:.1%}"
        always = f"always {commonest!r} would have {share:.1%}"
        say(f"not learning after {when} of {train.epochs:g} epochs: {reached}, {always}; {hint}", label="note")


def say_what_has_no_effect(setup: RunSetup) -> None:
    for line in without_effect(setup.config, steps_per_epoch=setup.steps_per_epoch):
        say(line, label="note")
    wanted = setup.config.train.warmup_epochs or 0
    if setup.warmup_steps < round(wanted * setup.steps_per_epoch):
        left = f"{pluralise(setup.warmup_steps, 'step')}: the run has {pluralise(setup.total_steps, 'step')}"
        say(f"the warm-up of {wanted:g} epochs is shortened to {left}", label="note")


def without_effect(config: RunConfig, *, steps_per_epoch: int) -> list[str]:
    """One line for every option of a resolved configuration that has no effect, with the reason."""
    model, data, train = config.model, config.data, config.train
    epochs = train.epochs or 0
    steps = max(1, round(epochs * steps_per_epoch))
    frozen = model.trainable == "head"
    no_drop = model.trainable.startswith(("head", "norms", "lora"))
    only_head = "only the head trains, and it has one layer"
    eval_mode = "frozen layers stay in evaluation mode"
    drawn = "the split comes from --split"
    rules: list[tuple[bool, str, str]] = [
        (train.layer_decay != 1 and frozen, "--layer-decay", only_head),
        (train.optimizer == "muon" and frozen, "--optimizer muon", only_head),
        (train.checkpoint_activations and frozen, "--checkpoint-activations", "no block trains"),
        (train.compile and train.cache_features == "on", "--compile", "the backbone runs once per image"),
        (model.dropout > 0 and no_drop, "--dropout", eval_mode),
        (model.attention_dropout > 0 and no_drop, "--attention-dropout", eval_mode),
        (model.stochastic_depth > 0 and no_drop, "--stochastic-depth", eval_mode),
        (bool(train.mixup) and data.batch_size == 1, "--mixup", "a batch of one image has nothing to mix with"),
        (bool(train.cutmix) and data.batch_size == 1, "--cutmix", "a batch of one image has nothing to mix with"),
        (train.patience >= epochs > 0, "--patience", f"the run has {epochs} epochs"),
        ((train.save_every or 0) >= steps_per_epoch, "--save-every", f"an epoch has {steps_per_epoch} steps"),
        ((train.log_every or 0) > steps, "--log-every", f"the run has {steps} steps"),
        (model.weights == "none" and model.weights_source is not None, "--weights-source", "no weights are loaded"),
        (data.split is not None and data.split_seed != 0, "--split-seed", drawn),
        (data.split is not None and data.val_fraction is not None, "--val-fraction", drawn),
        (data.split is not None and data.test_fraction is not None, "--test-fraction", drawn),
    ]
    return [f"{option} has no effect: {reason}" for holds, option, reason in rules if holds]


def epoch_line(row: dict[str, Any], epochs: int, *, val_images: int) -> str:
    """The scores of an epoch in some 70 columns; metrics.csv has more digits, the learning rate and the seconds."""
    right = percent(row["val_accuracy"])
    if val_images < FEW:
        right = f"{round(row['val_accuracy'] * val_images):>{len(str(val_images))}}/{val_images}"
    number = f"epoch {row['epoch']:>{len(str(epochs))}}/{epochs}"
    val = f"val loss {row['val_loss']:.3f} acc {right}"
    if row["train_loss"] is None:  # a head that was fitted
        return f"{number}  {val}"
    return f"{number}  train loss {row['train_loss']:.3f} acc {percent(row['train_accuracy'])}  {val}"


def percent(share: float) -> str:
    """A share in five columns: 9.6 %, 71.0 %, or 100 %, without the blank."""
    text = f"{share:.1%}"
    return " 100%" if text == "100.0%" else f"{text:>5}"


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
