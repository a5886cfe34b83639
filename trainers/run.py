"""Train one model, from options to a run directory and its result; read from top to bottom."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from ignite.engine import Engine, Events
from torch import nn
from torch.utils.data import DataLoader, Dataset

from common.errors import CheckpointError, Diverged, Interrupted, OptionError, TrainingError
from common.files import write_text
from datasets.bundle import SPLITS, DataBundle, Samples
from datasets.copies import units_of
from datasets.description import data_report
from datasets.loaders import stop_workers
from datasets.open import OpenedImages
from trainers.config import RunConfig, metric_of, require_run_config
from trainers.engine.engines import Scores, score_split, write_predictions
from trainers.engine.handlers import best_row, endless_batches, reset_peak_memory
from trainers.engine.one_image import require_finite
from trainers.reporting import console, screen, tensorboard
from trainers.resolve import UserObjects
from trainers.run_engines import Run, ended_early
from trainers.run_record import new_run_directory, track_status
from trainers.setup import RunSetup, prepare
from trainers.statistics import Design, design_of
from trainers.storage.checkpoint_file import read_checkpoint
from trainers.storage.run_folder import RunFolder
from trainers.storage.run_result import RunResult
from trainers.system import distributed, process_state
from trainers.system.signals import signals
from vit import ImageSpec
from vit.anatomy import count_parameters

Handler = Callable[[Engine], object]


@signals.handled()
@process_state.restored()
def train(
    config: RunConfig,
    *,
    model: nn.Module | None = None,
    dataloaders: DataBundle | Mapping[str, Dataset | DataLoader] | None = None,
    spec: ImageSpec | None = None,
    handlers: Sequence[Handler] = (),
    opened: OpenedImages | None = None,
) -> RunResult:
    """Train one model and leave everything it found in a run directory.

    Args:
        model: any module from images (B, C, H, W) to logits (B, classes), in place of the one that `config` names.
        dataloaders: a map-style Dataset of (image, label), or a DataLoader over one, for `train`, `val` and perhaps
            `test`, in place of the images that `config` names; or what `build_dataloaders` gave.
        spec: how their images were prepared, for `predict` and `export` to do the same.
        handlers: each is called with the trainer before its first step, to attach what it likes with Ignite's
            `add_event_handler`; it then comes after the run's own handlers. `trainer.state.run` has all the rest:
            evaluator, optimizer, history, setup.
        opened: images that the program has opened already; other runs may share them.

    Raises:
        OptionError: options that cannot work. DataError, WeightsError: images or weights that cannot be used.
        TrainingError: training cannot go on. A run that fails before its first checkpoint leaves no directory.
        Interrupted: a signal; the run can be resumed.
    """
    require_run_config(config)
    refuse_other_handlers(handlers)
    require_tracker(config)
    with console.model_log(opened), distributed.joined(config.train.device):
        setup = prepare(config, given=UserObjects(model, dataloaders, spec), opened=opened)
        with new_run_directory(setup, requested=config) as folder:
            return execute(setup, folder, created=True, handlers=handlers, opened=opened)


def require_tracker(config: RunConfig) -> None:
    """Raise MissingPackage, before images are read, where the run's tracker is not installed."""
    if config.output.tracker is not None:
        from trainers.reporting import trackers

        trackers.require(config.output.tracker)


def refuse_other_handlers(handlers: Sequence[Handler]) -> None:
    """Refuse handlers that are not functions of the trainer.

    Ignite's are not; such a function attaches them."""
    for handler in handlers:
        kind = handler if isinstance(handler, type) else type(handler)
        if not callable(handler) or kind.__module__.startswith("ignite."):
            raise OptionError(
                f"handlers: {kind.__name__} is no function that gets the trainer and attaches something, such as"
                " `lambda trainer: ProgressBar().attach(trainer)`"
            )


def execute(
    setup: RunSetup,
    folder: RunFolder,
    checkpoint: dict[str, Any] | None = None,
    *,
    created: bool = False,
    handlers: Sequence[Handler] = (),
    opened: OpenedImages | None = None,
) -> RunResult:
    """Train to the end, from the start or from a checkpoint, and conclude.

    A run that was `created` just now and fails before its first checkpoint is removed.
    """
    reset_peak_memory(setup.device)
    start_step = checkpoint["trainer"]["iteration"] if checkpoint else 0
    with ExitStack() as held:
        status = held.enter_context(track_status(setup, folder, created=created))
        screen.announce(setup, folder.path, opened=opened, resumed=checkpoint is not None)
        loggers = held.enter_context(opened_loggers(setup, folder, start_step=start_step))
        make_head_ready(setup, folder, begins=checkpoint is None)
        run = Run(setup, folder, loggers=loggers, record=status)
        for attach in handlers:
            attach(run.trainer)
        if checkpoint is not None:
            run.saver.restore(checkpoint)
        with signals.deferred():
            fit(run, validate_first=bool(checkpoint and checkpoint["epoch_open"]))
        status.stopped = ended_early(run)
        if status.stopped:
            console.say(status.stopped)
        try:
            result = conclude(run)
        finally:
            stop_workers(setup.data.dataloaders.values())
        status.write("finished", result)
        return result


@contextmanager
def opened_loggers(setup: RunSetup, folder: RunFolder, *, start_step: int) -> Iterator[tensorboard.RunLoggers | None]:
    """Open TensorBoard's writers, and the tracker if asked for.

    Yield None but in the main process."""
    if not distributed.is_main_process():
        yield None
        return
    behind = tensorboard.steps_before(setup.config)
    with tensorboard.RunLoggers(folder.path / "tb", start_step=start_step, behind=behind) as loggers:
        if start_step == 0:
            log_run_start(setup, folder, loggers)
        if setup.config.output.tracker is not None:
            from trainers.reporting.trackers import Tracker

            loggers.tracker = loggers.enter_context(Tracker(setup.config, folder.path))
        yield loggers


def make_head_ready(setup: RunSetup, folder: RunFolder, *, begins: bool) -> None:
    """Fit the initial head, and switch to cached features for a frozen backbone."""
    start = setup.config.train.start_head if begins else None
    if start == "probe":
        from trainers.heads.fit import begin_as_probe

        console.say(begin_as_probe(setup), label="head")
    if setup.config.train.cache_features == "on":
        from trainers.features import cache_features

        console.say(cache_features(setup))
    if start == "fit":
        from trainers.heads.fit import fit_to_features, ranking, shares_of

        scores = fit_to_features(setup)
        for line in (*ranking(scores), shares_of(scores)):
            console.say(line, label="head")
        if distributed.is_main_process():
            folder.write_heads(scores)


def log_run_start(setup: RunSetup, folder: RunFolder, loggers: tensorboard.RunLoggers) -> None:
    """Log what TensorBoard shows from the start: options, the images found, the row in HPARAMS."""
    report = data_report(setup.data)
    write_text(folder.path / "data_report.txt", report)
    tensorboard.write_start(loggers, page=tensorboard.before(setup, folder), data=report)
    sizes = {"parameters": count_parameters(setup.model)[0]}
    tensorboard.start_hparams(loggers, tensorboard.hparams(setup.config, folder) | sizes)


def fit(run: Run, *, validate_first: bool) -> None:
    """Take all remaining steps, and save the run at its end or a signal."""
    try:
        take_steps(run, validate_first=validate_first)
    except Interrupted:
        run.saver.save_last()
        raise
    except Diverged as error:
        find = partial(require_finite, run.setup.model, run.setup.data.dataloaders["train"], error.step)
        distributed.main_process_first(find)
        raise
    finally:
        stop_workers(run.setup.data.dataloaders.values())
    if run.setup.on_features:
        run.saver.save_last()
    run.saver.save_result()


def take_steps(run: Run, *, validate_first: bool) -> None:
    """Take all remaining steps; none if the run is done.

    Ignite would start it over (its issue #3622)."""
    setup, trainer = run.setup, run.trainer
    trainer.should_terminate = bool(run.over)
    if validate_first:
        trainer.fire_event(Events.EPOCH_COMPLETED)  # the interrupted validation, and its later handlers
    if not setup.total_steps and not trainer.state.history:
        measure_fitted(run)
    if trainer.state.iteration < setup.total_steps and not trainer.should_terminate:
        trainer.run(
            endless_batches(setup.data.dataloaders["train"], trainer.state.iteration),
            max_epochs=setup.last_epoch,
            epoch_length=setup.steps_per_epoch,
        )
    if trainer.state.history[-1]["step"] != trainer.state.iteration:  # the plan or the time ended within an epoch
        trainer.fire_event(Events.EPOCH_COMPLETED)


def measure_fitted(run: Run) -> None:
    """Validate and save a fitted head, as an epoch without steps would."""
    state = run.trainer.state
    state.epoch_length, state.max_epochs = run.setup.steps_per_epoch, 1
    run.trainer.fire_event(Events.STARTED)
    state.epoch = 1
    run.trainer.fire_event(Events.EPOCH_COMPLETED)


def conclude(run: Run) -> RunResult:
    """Score the best weights, on the test split once, and write it everywhere."""
    setup, history = run.setup, run.trainer.state.history
    best = best_row(history, setup.config.train.select, setup.config.train.start_head)
    if best is None:
        raise TrainingError(
            f"no epoch has a finite validation {metric_of(setup.config.train.select)}: nothing to choose"
        )
    load_best_weights(run, best)
    splits = [split for split in SPLITS[1:] if split in setup.data.dataloaders]
    scores = {split: score_best(run, split, best["epoch"]) for split in splits}
    if distributed.is_main_process():
        write_results(run, best, scores)
    test = scores["test"].metrics if "test" in scores else None
    sizes, designs = setup.data.dataset_sizes, dict(in_groups(setup.data.samples, scores))
    val = scores["val"].metrics
    return RunResult(run.run_dir, best["epoch"], val, test, history, sizes, designs, config=setup.config)


def in_groups(samples: Samples, scores: Mapping[str, Scores]) -> Iterator[tuple[str, Design]]:
    """Yield the design effect of the groups in each split that has some."""
    for split, found in scores.items():
        correct, rows = found.outputs.correct, samples.indices(split)
        if len(rows) != len(correct):
            continue  # a dry run scores a few batches
        design = design_of(correct, units_of(samples, rows))
        if not design.alone:
            yield split, design


def load_best_weights(run: Run, best: dict[str, Any]) -> None:
    """Load the weights of the best epoch into the setup's model, in every process.

    The model has those of the last row of the history, which may be the second one of its epoch: a run that ended
    within an epoch may go on."""
    from vit.low_rank import load_merged_state, merged_state

    def best_weights() -> dict[str, Any]:
        if best is not run.trainer.state.history[-1]:
            return dict(read_checkpoint(run.folder.best)["model"])
        return merged_state(run.network)

    weights = distributed.broadcast(best_weights)
    try:
        load_merged_state(run.setup.network, weights)
    except RuntimeError as error:  # the file of another run
        raise CheckpointError(f"{run.folder.best} is damaged: it does not fit the model of the run") from error


def score_best(run: Run, split: str, epoch: int) -> Scores:
    """Score the best weights, or return their validation's scores if still known."""
    setup = run.setup
    if split == "val" and epoch in run.saver.best_scores:
        return run.saver.best_scores[epoch]
    return score_split(setup.model, setup.data.dataloaders[split], setup.device, setup.amp_dtype)


def write_results(run: Run, best: dict[str, Any], scores: dict[str, Scores]) -> None:
    """Write the results of the best weights: predictions, HPARAMS, pictures; then remove older checkpoints."""
    setup, history = run.setup, run.trainer.state.history
    step = history[-1]["step"]
    for split, of_split in scores.items():
        images = setup.data.dataloaders[split].dataset
        write_predictions(run.run_dir / "eval", split, of_split, images, setup.data.class_names)
    final = {f"{name}_val": best[f"val_{name}"] for name in ("accuracy", "loss")}
    if "test" in scores:
        final |= {f"{name}_test": scores["test"].metrics[name] for name in ("accuracy", "loss")}
    costs = {"seconds": run.record.seconds, "images_seen": run.record.images_seen(history)}
    tensorboard.finish_hparams(run.loggers, final | costs, step)
    if run.loggers.tracker is not None:
        run.loggers.tracker.send_final(run.trainer, final | costs)
    if setup.config.output.tb != "scalars":
        from trainers.reporting import pictures

        pictures.draw_best(setup, scores["val"], run.loggers, epoch=best["epoch"], step=step)
    page = tensorboard.after(setup, run.folder, epoch=best["epoch"], scores=scores)
    run.loggers.val.add_text("start here", tensorboard.utf8(page), step)
    for path in run.folder.checkpoints("step"):
        if path.stem != f"step_{step}":  # a damaged one may have a higher number
            path.unlink()
