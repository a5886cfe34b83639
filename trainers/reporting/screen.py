"""Texts of a run on the terminal: one screen before the first step, then a line per epoch."""

import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ignite.engine import Engine, Events

from common.shell import watch
from common.text import pluralise, printable
from datasets.bundle import image_set
from datasets.description import describe
from datasets.open import OpenedImages
from trainers.config import RunConfig
from trainers.engine.optim import OPTIMIZERS
from trainers.reporting.console import FEW, percent, say, say_new
from trainers.setup import RunSetup
from vit.anatomy import count_parameters
from vit.config import WHAT_THEY_ARE

LEAST = 20
"""Fewest validation images for a comparison of shares by their standard error."""
FOLDS = 5
"""Number of folds to suggest if there are few validation images and enough images of each class."""


def announce(
    setup: RunSetup, run_dir: Path | None, *, opened: OpenedImages | None = None, resumed: bool = False
) -> None:
    """Print the screen before step 1: images, model, training, notes, folder.

    A temporary folder is not printed. A resumed run does not repeat images and model.
    """
    rows = [] if resumed else [("data", "\n  ".join(describe(setup.data))), ("model", model_line(setup))]
    rows += [("training", training_lines(setup)), *(("note", line) for line in notes_on(setup))]
    if run_dir is not None:
        rows.append(("run", f"{printable(str(run_dir))}; live: {watch(run_dir.parent)}"))
    say_new(rows, opened)
    say()


def announce_data(setup: RunSetup, *, opened: OpenedImages) -> None:
    """Print a setup's images and notes on it, before several runs."""
    say_new([("data", "\n  ".join(describe(setup.data))), *(("note", line) for line in notes_on(setup))], opened)


def model_line(setup: RunSetup) -> str:
    """Name the model, its image size, its trained parameters, and the kind of network."""
    model, (total, trainable) = setup.config.model, count_parameters(setup.model)
    trains = "all trained" if trainable == total else f"{trainable:,} trained"
    start = ", random weights" if model.weights == "none" else ""
    size = "" if model.networks else f" at {setup.spec.image_size} px"  # each network of an ensemble has its own
    line = f"{model.in_words}{size}, {total:,} parameters, {trains}{start}"
    return f"{line}\n  {WHAT_THEY_ARE[model.name]}" if model.name in WHAT_THEY_ARE else line


def training_lines(setup: RunSetup) -> str:
    """Describe the length of the training, its optimizer and its regularisation."""
    data, train = setup.config.data, setup.config.train
    if train.start_head == "fit":
        return f"none: the head is fitted to all images at once, on {setup.device}"
    length = f"{pluralise(train.epochs or 0, 'epoch')} x {pluralise(setup.steps_per_epoch, 'step')}"
    options = {"label smoothing": train.label_smoothing, "MixUp": train.mixup, "CutMix": train.cutmix}
    used = [f"{name} {value:g}" for name, value in (options | {"EMA": train.ema_decay}).items() if value]
    used += [f"augmentation {data.augment}", "fp32" if train.amp == "off" else str(train.amp)]
    optimizer = f"{train.optimizer} lr {train.lr:.3g} ({train.schedule})"
    return f"{length} of {data.batch_size} images, {optimizer}, on {setup.device}\n  {', '.join(used)}"


def weights_taken(config: RunConfig, epoch: int) -> str:
    """Name the weights a run keeps: best or last epoch, or fitted head."""
    if config.train.start_head == "fit":
        return "fitted head"
    if not epoch:
        return "the fitted head it began with"
    which = "last" if config.train.select == "last" else "best"
    return f"{which} epoch, {epoch} of {math.ceil(config.train.epochs or epoch)}"


def notes_on(setup: RunSetup) -> Iterator[str]:
    """Yield notes: too few validation images, options without effect, a shortened warm-up."""
    data, train = setup.config.data, setup.config.train
    labels, val = (image_set(setup.data.dataloaders[split]).labels for split in ("train", "val"))
    if few := cannot_tell(val, setup.data.class_names):
        drawn = data.folds is None and data.split is None and np.bincount(labels).min() >= FOLDS
        yield few + (f"; --folds {FOLDS} validates on every image" if drawn else "")
    yield from without_effect(setup.config, steps_per_epoch=setup.steps_per_epoch)
    if setup.warmup_steps < round((train.warmup_epochs or 0) * setup.steps_per_epoch):
        left = f"{pluralise(setup.warmup_steps, 'step')}: the run has {pluralise(setup.total_steps, 'step')}"
        yield f"the warm-up of {train.warmup_epochs:g} epochs is shortened to {left}"


def needed_to_tell(share: float) -> int:
    """Return the images needed to tell half of an error rate from all of it.

    By two standard errors of the rate `share`.
    """
    return max(LEAST, math.ceil(round(16 * share / (1 - share), 6)))


def cannot_tell(labels: np.ndarray, class_names: Sequence[str]) -> str:
    """Explain why validation images cannot show whether a model learns; empty if they can."""
    counts, images = np.bincount(labels), pluralise(len(labels), "validation image")
    share = counts.max() / len(labels)
    if share == 1 and len(labels) >= LEAST:
        return f"all {images} are {class_names[int(counts.argmax())]!r}: they cannot tell whether the model learns"
    needed = needed_to_tell(share if share < 1 else 1 / max(2, len(class_names)))
    return "" if len(labels) >= needed else f"{images} cannot tell whether the model learns: about {needed:,} can"


def without_effect(config: RunConfig, *, steps_per_epoch: int) -> list[str]:
    """List the options of a resolved configuration that have no effect, each with the reason."""
    model, data, train = config.model, config.data, config.train
    epochs = train.epochs or 0
    steps, of_an_epoch = max(1, round(epochs * steps_per_epoch)), pluralise(steps_per_epoch, "step")
    saved = train.save_every or 0  # the end of each epoch is always saved
    head, frozen = model.trainable == "head", model.trainable.startswith(("head", "norms", "lora"))
    one_layer, alone = "only the head trains, and it has one layer", "a batch of one image has nothing to mix with"
    evaluated, drawn = "frozen layers stay in evaluation mode", "the split comes from --split"
    rules = [
        ("layer_decay", head and train.layer_decay != 1, one_layer),
        (f"--optimizer {train.optimizer}", head and OPTIMIZERS[train.optimizer].matrices, one_layer),
        ("checkpoint_activations", head and train.checkpoint_activations, "no block trains"),
        ("--amp tf32", train.amp == "tf32" and train.device == "cpu", "a processor computes float32 in full"),
        ("--compile", train.compile and train.cache_features == "on", "the backbone runs once per image"),
        ("dropout", frozen and model.dropout, evaluated),
        ("attention_dropout", frozen and model.attention_dropout, evaluated),
        ("stochastic_depth", frozen and model.stochastic_depth, evaluated),
        ("mixup", train.mixup and data.batch_size == 1, alone),
        ("cutmix", train.cutmix and data.batch_size == 1, alone),
        ("--patience", train.patience >= epochs > 0, f"the run has {pluralise(epochs, 'epoch')}"),
        ("save_every", saved and (saved % steps_per_epoch == 0 or saved > steps), f"an epoch has {of_an_epoch}"),
        ("log_every", (train.log_every or 0) > steps, f"the run has {pluralise(steps, 'step')}"),
        ("split_seed", data.split and data.split_seed, drawn),
        ("--val-fraction", data.split and data.val_fraction is not None, drawn),
        ("--test-fraction", data.split and data.test_fraction is not None, drawn),
    ]
    return [f"{option} has no effect: {reason}" for option, idle, reason in rules if idle]


def attach_epoch_lines(trainer: Engine, *, val_images: int) -> None:
    """Print a line per epoch, at most about 25 of them and always the last.

    Each line ends in the remaining time at the pace of its epoch, the last one in its seconds. The number of epochs may
    change during the run: while `engine.state.end_moves`, a line has neither.
    """
    started = [time.monotonic()]

    @trainer.on(Events.EPOCH_STARTED)
    def start(_: Engine) -> None:
        started[0] = time.monotonic()

    @trainer.on(Events.EPOCH_COMPLETED)
    def line(engine: Engine) -> None:
        epoch, epochs = engine.state.epoch, engine.state.max_epochs or 1
        last = epoch == epochs or bool(engine.should_terminate)
        if epoch % -(-epochs // 25) == 0 or epoch == 1 or last:
            moves, taken = getattr(engine.state, "end_moves", False), time.monotonic() - started[0]
            words = epoch_line(engine.state.history[-1], None if moves else epochs, val_images=val_images)
            minutes, seconds = divmod(math.ceil(taken * (epochs - epoch)), 60)
            say(f"{words}  {f'{taken:.1f} s' if last or moves else f'{minutes}:{seconds:02} left'}")


def attach_learning_note(trainer: Engine, setup: RunSetup) -> None:
    """Note after the warm-up if validation does not beat the most frequent class.

    It comes after at least a fifth of the epochs. To beat it means by more than one standard error, in the score that
    selects the epoch. Runs of fewer than three epochs, or with too few validation images, get no note.
    """
    data, train, names = setup.config.data, setup.config.train, setup.data.class_names
    labels, epochs = image_set(setup.data.dataloaders["val"]).labels, train.epochs or 0
    if epochs < 3 or cannot_tell(labels, names):
        return
    shares, balanced = np.bincount(labels) / len(labels), train.select == "balanced_accuracy"
    score, share = ("balanced_accuracy", 1 / (shares > 0).sum()) if balanced else ("accuracy", shares.max())
    enough = share + (share * (1 - share) / len(labels)) ** 0.5
    always = f"always {names[int(shares.argmax())]!r} would have {share:.1%}"
    when = math.ceil(max(epochs / 5, train.warmup_epochs or 0))

    @trainer.on(Events.EPOCH_COMPLETED(once=when))
    def note(engine: Engine) -> None:
        row = engine.state.history[-1]
        if row[f"val_{score}"] > enough:
            return
        hint = "it learns its training images alone: more images, --augment strong or pretrained weights may help"
        if balanced and data.balance == "none":
            hint = "it may call everything so: --balance sampler"
        elif row["train_accuracy"] < share + 0.1:
            hint = f"a smaller rate may learn: --lr {(train.lr or 0) / 4:.2g}"
        reached = f"validation {score.replace('_', ' ')} {row[f'val_{score}']:.1%}"
        say(f"not learning after {when} of {epochs:g} epochs: {reached}, {always}; {hint}", label="note")


def epoch_line(row: dict[str, Any], epochs: int | None, *, val_images: int) -> str:
    """Format the scores of an epoch in about 70 columns.

    metrics.csv has more scores and digits. `epochs` None: how many there will be is open."""
    right = percent(row["val_accuracy"])
    if val_images < FEW:
        right = f"{round(row['val_accuracy'] * val_images):>{len(str(val_images))}}/{val_images}"
    val = f"val loss {row['val_loss']:.3f} acc {right}"
    if row["train_loss"] is None:
        return f"head fitted  {val}"
    number = f"epoch {row['epoch']:>{len(str(epochs))}}/{epochs}" if epochs else f"epoch {row['epoch']}"
    return f"{number}  train loss {row['train_loss']:.3f} acc {percent(row['train_accuracy'])}  {val}"
