"""Take up a run where it stopped, and refuse or announce whatever is not as it was."""

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import DataLoader, Dataset

from common.errors import CheckpointError, OptionError
from common.files import remove_leftovers
from datasets import DataBundle
from datasets.loaders import dataloaders_of, split_samples
from datasets.opened import OpenedImages
from trainers.config import RunConfig, to_dict
from trainers.engine.handlers import best_row
from trainers.reporting.console import announce, say
from trainers.run import Handler, execute, refuse_other_handlers
from trainers.run_start import changes_of_machine, describe_start, write_inputs
from trainers.same_images import require_same_images
from trainers.seen import as_begun
from trainers.setup import RunSetup, prepare, schedule
from trainers.storage.checkpoint_file import (
    best_of,
    checkpoints,
    has_best,
    named_like_checkpoints,
    read_checkpoint,
    require_whole,
)
from trainers.storage.finished_run import read_result, read_run_config, refuse_links_out
from trainers.storage.places import moved_to, networks_placed, require_images, started_in, weights_placed
from trainers.storage.run_folder import META, read_if_whole, write_json, write_run_config
from trainers.storage.run_result import RunResult
from trainers.system import distributed, folder_lock
from trainers.system.signals import signals
from trainers.user_objects import UserObjects
from vit import ImageSpec
from vit.config import Network


@signals.heeded()
def resume(
    run_dir: Path | str,
    *,
    epochs: int | float | None = None,
    data_root: Path | str | None = None,
    data: str | None = None,
    model: nn.Module | None = None,
    dataloaders: DataBundle | Mapping[str, Dataset | DataLoader] | None = None,
    spec: ImageSpec | None = None,
    handlers: Sequence[Handler] = (),
    images: OpenedImages | None = None,
) -> RunResult:
    """Train a stopped run to its end, as if it had never stopped. A finished run is left as it is.

    More `epochs` than planned re-plan the learning rate, so the run is then no longer the one it would have been.
    `data`: where the images of the run are now, if they moved; config.json names that place from then on. `data_root`:
    where built-in sets and unpacked archives lie now. A program that gave `train` a module, Datasets or handlers gives
    them again. `images`: as for `train`.

    Raises:
        DataError: the images, or their split.csv, are not those the run started with. CheckpointError: no whole
        checkpoint. OptionError: `epochs` below what is done, a config.json that was edited since, another number of
        processes.
    """
    refuse_other_handlers(handlers)
    run_dir = Path(run_dir)
    refuse_links_out(run_dir)
    config = read_run_config(run_dir)
    if data is not None:
        config = moved_to(config, data)
    if data_root is not None:
        config = config.changed(data={"root": data_root})
    with distributed.joined(config.train.device):
        done = read_summary(run_dir)["status"] == "finished" and has_best(run_dir)
        if done and epochs in (None, config.train.epochs):
            with suppress(OptionError, OSError), folder_lock.held(run_dir):
                pass  # which takes away the file of a process that was killed at its very end
            if data is not None:
                distributed.broadcast(lambda: record_place(run_dir, config))
            say(f"run {run_dir} is finished: nothing to do; --epochs N trains it further")
            return read_result(run_dir)
        with ExitStack() as holding:
            distributed.broadcast(lambda: holding.enter_context(folder_lock.held(run_dir)))
            distributed.broadcast(lambda: remove_leftovers(begun_by_runs(run_dir), age=0))
            setup, checkpoint = open_run(run_dir, config, epochs, UserObjects(model, dataloaders, spec), images)
            if data is not None:
                distributed.broadcast(lambda: write_run_config(run_dir, setup.config))
            announce(setup, run_dir, defaults_source="as resolved when the run started", images=images)
            return execute(setup, run_dir, checkpoint, handlers=handlers)


def begun_by_runs(run_dir: Path) -> list[Path]:
    """List what a killed run had begun to write; in eval/ another command may be writing at this moment."""
    return [path for path in run_dir.rglob(".*.tmp*") if path.parent.name != "eval"]


def open_run(
    run_dir: Path, config: RunConfig, epochs: int | float | None, given: UserObjects, images: OpenedImages | None
) -> tuple[RunSetup, dict[str, Any] | None]:
    """The setup of a run as it goes on, and the checkpoint that it goes on from; None where it starts over."""
    summary, meta = read_summary(run_dir), read_if_whole(run_dir / "meta.json", **META)
    checkpoint = distributed.broadcast(lambda: newest_checkpoint(run_dir))
    if checkpoint is not None:
        refuse_an_edited_config(run_dir, config, checkpoint)
    elif summary["status"] == "finished" or (summary["epochs"] and config.train.cache_features != "on"):
        raise CheckpointError(
            f"{run_dir} has done {summary['epochs']} epochs and has no step_* to go on from: train anew;"
            f" --weights {run_dir} starts from the weights of its best epoch"
        )
    if epochs is not None:
        config = config.changed(train={"epochs": epochs})
    if meta is not None:
        refuse_another_number_of_processes(run_dir, meta)
    if given.dataloaders is None:
        require_images(run_dir, config)
    setup = prepare(config, checkpoint=checkpoint, run_dir=run_dir, given=given, images=images)
    known = distributed.broadcast(lambda: require_same_images(run_dir, meta, setup.data, config.data.source))
    if meta is not None:
        announce_changes(meta, setup)
    elif checkpoint is not None:
        told = "its images are those of its split.csv" if known else "so whether the images changed is not known"
        say(f"note: {run_dir}/meta.json is damaged or gone, {told}")
    if checkpoint is not None:
        replan(setup, checkpoint, run_dir)
        steps = checkpoint["trainer"]["iteration"]
        say(f"resuming {run_dir} after step {steps:,} of {setup.total_steps:,}")
    else:
        say(f"resuming {run_dir}: it has no checkpoint yet, so it starts over")
        requested = (meta or {}).get("requested", to_dict(config))
        distributed.broadcast(lambda: write_inputs(run_dir, setup, describe_start(setup, requested)))
    return setup, checkpoint


def record_place(run_dir: Path, config: RunConfig) -> None:
    """Let config.json of a finished run name the place where its images are now. Raises DataError: they are others."""
    require_images(run_dir, config)
    samples = as_begun(split_samples(config.data), run_dir)
    data = dataloaders_of(samples, config.data, ImageSpec(), seed=config.train.seed)
    require_same_images(run_dir, read_if_whole(run_dir / "meta.json", **META), data, config.data.source)
    write_run_config(run_dir, config)


def newest_checkpoint(run_dir: Path) -> dict[str, Any] | None:
    """The newest whole resume checkpoint; each damaged one on the way is named. None when there is none at all. Raises
    CheckpointError: there are files, and all are damaged."""
    paths = named_like_checkpoints(run_dir / "checkpoints", "step")
    for path in paths:
        try:
            checkpoint = read_checkpoint(path)
            require_best_weights(checkpoint, path)
            return checkpoint
        except CheckpointError as error:
            fault = str(error)
            say(f"{fault}; trying the one before it")
    if paths:
        raise CheckpointError(
            f"no checkpoint in {run_dir / 'checkpoints'} is whole: {fault}; train anew, or restore it"
        )
    return None


def require_best_weights(checkpoint: dict[str, Any], path: Path) -> None:
    """Refuse a checkpoint of a run whose best epoch is over and whose weights are gone: it would end without a result.

    Where that epoch is the one that the checkpoint ends, it holds them itself.
    """
    best = best_row(checkpoint["trainer"]["history"], checkpoint["config"]["train"]["select"])
    if best is None or best["step"] == checkpoint["trainer"]["iteration"]:
        return
    require_whole(best_of(path.parent.parent))


def read_summary(run_dir: Path) -> dict[str, Any]:
    """summary.json; where none is whole, the run has started, and done something if it has best weights."""
    epochs = len(checkpoints(run_dir / "checkpoints", "best"))
    return read_if_whole(run_dir / "summary.json", status=str, epochs=int) or {"status": "running", "epochs": epochs}


def is_finished(run_dir: Path) -> bool:
    return (run_dir / "config.json").is_file() and read_summary(run_dir)["status"] == "finished"


def refuse_an_edited_config(run_dir: Path, config: RunConfig, checkpoint: dict[str, Any]) -> None:
    now, then = (
        {f"{section}.{name}": value for section, values in options.items() for name, value in values.items()}
        for options in (to_dict(config), checkpoint["config"])
    )
    # These leave every bit as it was.
    movable = {"output.output_dir", "output.run_name", "output.tb", "output.tracker", "data.root", "data.workers"}
    movable |= {"train.epochs"}  # written by `--epochs`: `replan` sees to it
    movable |= {"data.source", "data.split", "data.exclude"}  # `require_same_images` sees to it
    if (directory := started_in(run_dir)) is not None:
        if then["model.weights"] != now["model.weights"]:
            then["model.weights"] = weights_placed(then["model.weights"], directory)
        if then["model.networks"] != now["model.networks"]:
            networks = networks_placed([Network(**each) for each in then["model.networks"]], directory)
            then["model.networks"] = [vars(network) for network in networks]
    # An option that the checkpoint does not know is younger than it, and at its default.
    changed = [key for key in now if key in then and key not in movable and now[key] != then[key]]
    if changed:
        changes = ", ".join(f"{key} from {then[key]!r} to {now[key]!r}" for key in changed)
        raise OptionError(f"{run_dir}/config.json was changed since the run started: {changes}; undo it or train anew")


def refuse_another_number_of_processes(run_dir: Path, meta: dict[str, Any]) -> None:
    """Each process draws its own dropout: with another number of them the run would be another one."""
    then, now = meta.get("processes", 1), distributed.world_size()
    if then != now:
        how = f"torchrun --nproc-per-node {then}" if then > 1 else "without torchrun"
        raise OptionError(f"{run_dir} was started with {then} processes, not {now}: resume it {how}")


def announce_changes(then: dict[str, Any], setup: RunSetup) -> None:
    """Another machine, number of threads or version of torch changes last bits, and with them in many steps the result.
    `then`: the run's meta.json."""
    if changes := changes_of_machine(then, setup.device):
        say(f"note: changed since the run started: {changes}; it may end in other results than without a stop")


def replan(setup: RunSetup, checkpoint: dict[str, Any], run_dir: Path) -> None:
    """Fit a checkpoint to another number of epochs than it was written for, and say what that does to the rate."""
    epochs, done = setup.config.train.epochs, checkpoint["trainer"]["iteration"]
    planned = checkpoint["config"]["train"]["epochs"]
    if epochs == planned:
        return
    if setup.total_steps < done:
        raise OptionError(
            f"epochs={epochs} is less than the {done / setup.steps_per_epoch:.1f} epochs the run has done"
        )
    before = dataclasses.replace(setup, config=setup.config.changed(train={"epochs": planned}))
    then = schedule(before)(min(done, before.total_steps - 1))
    now = schedule(setup)(min(done, setup.total_steps - 1))
    say(f"{epochs} epochs instead of {planned}: the learning rate at step {done} jumps from {then:.3g} to {now:.3g}")
    checkpoint["trainer"]["max_epochs"] = setup.last_epoch
    if "early_stopping" in checkpoint:  # the new epochs have the whole of its patience
        checkpoint["early_stopping"]["counter"] = 0
    if distributed.is_main_process():
        # In this order: a finished run with other epochs in config.json would pass for one that has done them.
        write_json(run_dir / "summary.json", read_summary(run_dir) | {"status": "running"})
        write_run_config(run_dir, setup.config)
