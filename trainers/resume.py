"""Take up a run where it stopped, and refuse or announce whatever is not as it was."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from common.errors import CheckpointError, OptionError, report_damage
from common.files import MARK, remove_leftovers
from common.text import pluralise
from datasets.open import OpenedImages
from trainers.config import RunConfig
from trainers.engine.handlers import best_row, has_to_beat_its_head
from trainers.options.defaults import resolve_device
from trainers.reporting.console import say
from trainers.resolve import UserObjects
from trainers.run import Handler, execute, refuse_other_handlers, require_tracker
from trainers.run_record import (
    changes_of_machine,
    open_images,
    require_images,
    require_same_images,
    write_inputs,
)
from trainers.setup import RunSetup, prepare
from trainers.storage.checkpoint_file import read_best, read_checkpoint
from trainers.storage.data_folder import is_a_set
from trainers.storage.run_folder import RunFolder
from trainers.storage.run_result import RunResult, read_result
from trainers.system import distributed, process_state
from trainers.system.signals import signals


@signals.handled()
@process_state.restored()
def resume(
    run_dir: Path | str,
    *,
    epochs: int | float | None = None,
    device: str | None = None,
    data: str | None = None,
    data_root: Path | str | None = None,
    handlers: Sequence[Handler] = (),
    opened: OpenedImages | None = None,
    **given: Any,
) -> RunResult:
    """Train a stopped run to its end as if never stopped; a finished one stays.

    Args:
        epochs: more than planned re-plan the learning rate, so the run is then no longer the one it would have been.
        device: where it continues; None: as it began, or on the best device where that is not there.
        data, data_root: where the images of the run, and built-in sets and unpacked archives, are now, if they moved;
            config.json names these places from then on.
        handlers, opened: as for `train`.
        given: the `model`, `dataloaders` and `spec` that a program gave `train`.

    Raises:
        DataError: the images, or their split.csv, are not those the run started with. CheckpointError: no whole
        checkpoint. OptionError: `epochs` below what is done, a config.json that was edited since, another number of
        processes.
    """
    refuse_other_handlers(handlers)
    objects, run = UserObjects(**given), RunFolder(Path(run_dir))
    run.refuse_links_out()
    config, moved = run.config, {} if data_root is None else {"root": data_root}
    if data is not None:
        moved["source"] = new_place(config, data)
    config = config.changed(
        data=moved, train={"device": resolve_device(device or config.train.device, fall_back=device is None)}
    )
    with distributed.joined(config.train.device), ExitStack() as holding:
        if run.is_finished and epochs in (None, config.train.epochs):
            if moved:
                open_images(run, config)
                distributed.broadcast(lambda: run.write_config(config))
                run = RunFolder(run.path)
            say(f"run {run} is finished: nothing to do; --epochs N trains it further")
            return read_result(run)
        distributed.broadcast(lambda: holding.enter_context(run.held()))
        distributed.broadcast(lambda: remove_begun(run))
        run = RunFolder(run.path)  # as its last holder left it
        setup, checkpoint = open_run(run, config, epochs, objects, opened)
        if moved:
            distributed.broadcast(lambda: run.write_config(setup.config))
        return execute(setup, run, checkpoint, handlers=handlers, opened=opened)


def remove_begun(run: RunFolder) -> None:
    """Remove what a killed run had begun to write.

    In eval/ another command may be writing at this moment."""
    begun = [path for path in run.path.rglob(f".*.{MARK}*") if path.parent.name != "eval"]
    remove_leftovers(begun, age=0)


def open_run(
    run: RunFolder, config: RunConfig, epochs: int | float | None, given: UserObjects, opened: OpenedImages | None
) -> tuple[RunSetup, dict[str, Any] | None]:
    """Build the setup of a run that continues, and read its checkpoint.

    None: it has none and starts over."""
    require_tracker(config)
    checkpoint = distributed.broadcast(lambda: newest_checkpoint(run))
    if checkpoint is not None:
        refuse_an_edited_config(run, config, checkpoint)
    elif run.is_finished or (run.progress["epochs"] and config.train.cache_features != "on"):
        raise CheckpointError(
            f"{run} has done {pluralise(run.progress['epochs'], 'epoch')} and has no step_* to go on from: train anew;"
            f" --weights {run} starts from the weights of its best epoch"
        )
    if epochs is not None and config.train.start_head == "fit":
        raise OptionError(f"--epochs {epochs:g}: the head of {run} was fitted at once, and no epoch follows")
    if epochs is not None and checkpoint is not None:
        refuse_more_of_what_was_chosen(run, config, epochs)
    if epochs is not None:
        config = config.changed(train={"epochs": epochs})
    refuse_another_number_of_processes(run)
    if given.dataloaders is None:
        require_images(run, config)
    setup = prepare(config, checkpoint=checkpoint, run=run, given=given, opened=opened)
    distributed.broadcast(lambda: require_same_images(run, setup.data.samples, config.data.source))
    if changes := changes_of_machine(run.meta, setup.device):
        # They change last bits, and with them in many steps the result.
        say(f"note: changed since the run started: {changes}; it may end in other results than without a stop")
    if checkpoint is not None:
        replan(setup, checkpoint, run)
        say(f"resuming {run} after step {checkpoint['trainer']['iteration']:,} of {setup.total_steps:,}")
    else:
        say(f"resuming {run}: it has no checkpoint yet, so it starts over")
        distributed.broadcast(lambda: write_inputs(run, setup, run.requested or config))
    return setup, checkpoint


def refuse_more_of_what_was_chosen(run: RunFolder, config: RunConfig, epochs: int | float) -> None:
    """Raise OptionError where the last epoch has replaced the run's first head.

    More epochs would meet that head again."""
    if has_to_beat_its_head(config.train.select, config.train.start_head) and read_checkpoint(run.best)["epoch"]:
        raise OptionError(
            f"--epochs {epochs:g}: {run} has ended with its last epoch in place of the head that it began with;"
            f" --weights {run} starts from its weights"
        )


def newest_checkpoint(run: RunFolder) -> dict[str, Any] | None:
    """Read a run's newest whole checkpoint, and name damaged ones on the way.

    None: there is none at all. Raises CheckpointError: there are files, and all are damaged.
    """
    fault = ""
    for path in run.checkpoints("step"):
        try:
            checkpoint = read_checkpoint(path)
            with report_damage(path):
                train = checkpoint["config"]["train"]
                best = best_row(checkpoint["trainer"]["history"], train["select"], train["start_head"])
            if best is not None:
                read_best(run)  # without the weights of its best epoch it would end without a result
            return checkpoint
        except CheckpointError as error:
            fault = str(error)
            say(f"{fault}; trying the one before it")
    if fault:
        raise CheckpointError(
            f"no checkpoint in {run.path / 'checkpoints'} is whole: {fault}; train anew, or restore it"
        )
    return None


def refuse_an_edited_config(run: RunFolder, config: RunConfig, checkpoint: dict[str, Any]) -> None:
    """Raise OptionError where an option that decides bits differs from a checkpoint's."""
    if changes := run.changed_since(config, checkpoint["config"]):
        raise OptionError(f"{run}/config.json was changed since the run started: {changes}; undo it or train anew")


def refuse_another_number_of_processes(run: RunFolder) -> None:
    """Raise OptionError for another number of processes.

    Each draws its own dropout, so the run would be another."""
    then, now = run.meta.get("processes") or 1, distributed.world_size()
    if then != now:
        how = f"torchrun --nproc-per-node {then}" if then > 1 else "without torchrun"
        raise OptionError(f"{run} was started with {pluralise(then, 'process')}, not {now}: resume it {how}")


def replan(setup: RunSetup, checkpoint: dict[str, Any], run: RunFolder) -> None:
    """Fit a checkpoint to another number of epochs than it was written for."""
    epochs, done = setup.config.train.epochs, checkpoint["trainer"]["iteration"]
    planned = checkpoint["config"]["train"]["epochs"]
    if epochs == planned:
        return
    if setup.total_steps < done:
        raise OptionError(
            f"epochs={epochs} is less than the {done / setup.steps_per_epoch:.1f} epochs the run has done"
        )
    say(f"{epochs} epochs instead of {planned}: the learning rate follows the new plan from step {done} on")
    checkpoint["trainer"]["max_epochs"] = setup.last_epoch
    if "early_stopping" in checkpoint:  # the new epochs have the whole of its patience
        checkpoint["early_stopping"]["counter"] = 0
    if distributed.is_main_process():
        # In this order: a finished run with other epochs in config.json would pass for one that has done them.
        run.write_summary(run.progress | {"status": "running"})
        run.write_config(setup.config)


def new_place(config: RunConfig, place: str) -> str:
    """Return the place where the images of a run are now.

    Raises OptionError: a built-in set, or one of the hub, has a name and no place."""
    for source in (config.data.source, place):
        if is_a_set(source):
            raise OptionError(f"--data {place}: {source} is the name of a set; --data-root says where such a set lies")
    return str(Path(os.path.expanduser(place)).absolute())
