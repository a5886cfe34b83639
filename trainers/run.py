"""THE recipe: one training run from its options to its results, in the order in which a reader meets it."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ignite.engine import Engine, Events
from torch import nn

from datasets import data_report, skipped
from datasets.splits import fingerprint, write_split
from trainers import console, defaults, distributed, handlers, pictures, tensorboard
from trainers.budget import TimeBudget
from trainers.checkpoint import checkpoints, read_checkpoint
from trainers.config import RunConfig, to_dict
from trainers.ema import ModelEMA
from trainers.engines import create_evaluator, create_trainer
from trainers.errors import Interrupted, TrainingError
from trainers.evaluation import BestOutputs, Scores, score_split, write_predictions
from trainers.interruption import SignalFlag
from trainers.job import (
    Job,
    batch_mix,
    prepare,
    schedule,
    slices,
    training_forward,
    training_loss,
    with_cached_features,
)
from trainers.record import recorded
from trainers.result import RunResult
from trainers.run_directory import (
    command_line,
    describe_environment,
    plan_run_directory,
    write_json,
    write_run_config,
    write_text,
)
from trainers.saving import BestCheckpoint, ResumeCheckpoint, attach_files

# Ignite logs an exception that passes through an engine; the command line says it once, in its own words.
logging.getLogger("ignite.engine.engine.Engine").setLevel(logging.CRITICAL)


def train(config: RunConfig) -> RunResult:
    """Train one model and leave everything it found in a run directory.

    Raises:
        ConfigError: options that cannot work. DataError, WeightsError: images or weights that cannot be used.
        TrainingError: training cannot go on. A run that fails before its first checkpoint leaves no directory.
        Interrupted: Ctrl-C or SIGTERM; the run can be resumed.
    """
    console.show_model_log()
    with distributed.joined(config.train.device):
        job = prepare(config)
        run_dir = distributed.from_first(lambda: plan_run_directory(job.config))
        console.announce(job, run_dir, defaults_source=defaults.lookup(job.config).source)
        console.say_what_has_no_effect(job)
        distributed.from_first(lambda: write_inputs(job, run_dir, requested=config))
        return execute(job, run_dir)


def write_inputs(job: Job, run_dir: Path, *, requested: RunConfig) -> None:
    """What the run starts from: config.json, meta.json, split.csv."""
    run_dir.mkdir(parents=True)
    write_run_config(run_dir, job.config)
    meta = describe_environment(command_line(), job.device, fingerprint(job.data))
    meta |= {"processes": distributed.world_size()}
    meta |= {"skipped_images": list(skipped(job.data)), "requested": to_dict(requested)}
    write_json(run_dir / "meta.json", meta)
    write_split(run_dir / "split.csv", job.data)


@dataclass
class Assembly:
    """An assembled run: the trainer, what is evaluated, and what saves it."""

    trainer: Engine
    evaluated: nn.Module
    saver: ResumeCheckpoint
    best: BestCheckpoint
    budget: TimeBudget | None
    best_outputs: BestOutputs


def execute(job: Job, run_dir: Path, checkpoint: dict[str, Any] | None = None) -> RunResult:
    """Train to the end, from the start or from a checkpoint, and conclude. Only the first process has loggers."""
    handlers.reset_peak_memory(job.device)
    start_step = checkpoint["trainer"]["iteration"] if checkpoint else 0
    reopened = bool(checkpoint and checkpoint["epoch_open"])
    with (
        recorded(job, run_dir) as record,
        opened_loggers(run_dir, start_step=start_step, validate_again=reopened) as loggers,
        SignalFlag(processes=distributed.world_size(), agree=distributed.largest) as flag,
    ):
        if loggers is not None and start_step == 0:
            write_start(job, run_dir, loggers)
        if job.config.train.cache_features == "on":
            job, line = with_cached_features(job, between_batches=flag.check)
            console.say(line)
        run = assemble(job, run_dir, loggers, flag)
        record.attach(run.trainer)
        if checkpoint is not None:
            run.saver.restore(checkpoint)
        try:
            fit(run, job, validate_first=reopened)
        except Interrupted:
            if distributed.is_first():
                run.saver.save_interrupted()
            raise
        finally:
            handlers.stop_workers(job.data.dataloaders.values())
        if distributed.is_first():
            run.saver.save_last()
        console.say_if_stopped_early(run.trainer, job.config.train, job.total_steps)
        return record.finish(conclude(job, run, run_dir, loggers))


def write_start(job: Job, run_dir: Path, loggers: tensorboard.RunLoggers) -> None:
    """What TensorBoard shows from the start: options, the images found, pinned charts, the row in HPARAMS."""
    report = data_report(job.data)
    write_text(run_dir / "data_report.txt", report)
    tensorboard.write_start(loggers, config=to_dict(job.config), data=report)
    tensorboard.start_hparams(loggers, hparam_values(job.config))


def opened_loggers(run_dir: Path, **options: Any) -> AbstractContextManager[tensorboard.RunLoggers | None]:
    return tensorboard.RunLoggers(run_dir / "tb", **options) if distributed.is_first() else nullcontext()


def fit(run: Assembly, job: Job, *, validate_first: bool) -> None:
    """All steps that are left. Nothing when the run is done: Ignite would start it over (its issue #3622)."""
    trainer = run.trainer
    trainer.should_terminate = run.budget is not None and run.budget.spent
    if validate_first:
        trainer.fire_event(Events.EPOCH_COMPLETED)  # the validation that was interrupted, and what follows it
    if trainer.state.iteration < job.total_steps and not trainer.should_terminate:
        trainer.run(
            handlers.endless_batches(job.data.dataloaders["train"], trainer.state.iteration),
            max_epochs=job.config.train.epochs,
            epoch_length=job.steps_per_epoch,
        )
    if trainer.state.history[-1]["step"] != trainer.state.iteration:  # the time ran out within an epoch
        trainer.fire_event(Events.EPOCH_COMPLETED)


def assemble(job: Job, run_dir: Path, loggers: tensorboard.RunLoggers | None, flag: SignalFlag) -> Assembly:
    """The trainer with everything that hangs on it. The order matters: Ignite fires handlers in this order, so an epoch
    ends in validation, history, best checkpoint, files, early stopping, and last of all the checkpoint to resume from.
    Of several processes only the first, which has the loggers, writes.
    """
    config, num_classes = job.config.train, len(job.data.class_names)
    assert config.epochs is not None
    assert config.log_every is not None
    ema = ModelEMA(job.model, decay=config.ema_decay) if config.ema_decay else None
    evaluated = ema.model if ema is not None else job.model
    trainer = create_trainer(
        job.model, job.optimizer, training_loss(job), job.device,
        amp_dtype=job.amp_dtype, clip_norm=config.clip_norm, seed=config.seed, mix=batch_mix(job),
        slices=slices(job), forward=training_forward(job),
    )  # fmt: skip
    evaluator = create_evaluator(
        job.classifier(evaluated),
        nn.functional.cross_entropy,
        job.device,
        num_classes=num_classes,
        amp_dtype=job.amp_dtype,
    )
    clock = handlers.StepClock()

    handlers.attach_learning_rate(trainer, job.optimizer, schedule(job))
    if ema is not None:
        handlers.attach_ema(trainer, ema)
    handlers.Sums().attach(trainer)
    clock.attach(trainer)
    if loggers is not None:
        tensorboard.attach_train_scalars(trainer, loggers, job.optimizer, clock, every=config.log_every)
        tensorboard.attach_val_scalars(trainer, evaluator, loggers)
        handlers.attach_progress(trainer)
    handlers.attach_validation(trainer, evaluator, job.data.dataloaders["val"])
    handlers.attach_history(trainer, evaluator, job.optimizer, clock, job.device)
    if loggers is not None:
        pictures.attach(trainer, job, evaluated, loggers)
    best_outputs = BestOutputs(trainer, evaluator, job.data.dataloaders["val"], select=config.select)
    best = BestCheckpoint(trainer, job, evaluated, run_dir)
    if loggers is not None:
        best.attach()
        attach_files(trainer, run_dir)
        console.attach_epoch_lines(trainer, epochs=config.epochs)
    stopper = budget = None
    if config.patience:
        stopper = handlers.attach_early_stopping(trainer, evaluator, patience=config.patience, select=config.select)
    saver = ResumeCheckpoint(job, run_dir, trainer, ema=ema, stopper=stopper)
    if loggers is not None:
        saver.attach(save_every=config.save_every, before_save=[loggers.flush, best.write])
    if config.max_minutes is not None:
        budget = TimeBudget(60 * config.max_minutes, agree=distributed.agreed)
        budget.attach(trainer)
        if config.schedule != "constant":
            console.attach_pace_note(trainer, max_minutes=config.max_minutes)
    flag.attach(trainer, evaluator)
    return Assembly(trainer, evaluated, saver, best, budget, best_outputs)


def conclude(job: Job, run: Assembly, run_dir: Path, loggers: tensorboard.RunLoggers | None) -> RunResult:
    """Score the best weights, on the test split once, and write it everywhere."""
    history = run.trainer.state.history
    best = handlers.best_row(history, job.config.train.select)
    if best is None:
        raise TrainingError(f"no epoch has a finite validation {job.config.train.select}: nothing to choose")

    def best_weights() -> dict[str, Any]:
        if run.best.kept is not None:
            run.best.put_back()
        elif best["epoch"] != history[-1]["epoch"]:
            return dict(read_checkpoint(checkpoints(run_dir / "checkpoints", "best")[0])["model"])
        return run.evaluated.state_dict()

    job.model.load_state_dict(distributed.from_first(best_weights))
    scores: dict[str, Scores] = {}
    for split in ("val", "test"):
        if split in job.data.dataloaders:
            loader = job.data.dataloaders[split]
            kept = run.best_outputs.scores(best["epoch"]) if split == "val" else None
            scores[split] = kept or score_split(
                job.classifier(job.model),
                loader,
                num_classes=len(job.data.class_names),
                device=job.device,
                amp_dtype=job.amp_dtype,
            )
            if loggers is not None:
                predictions = run_dir / "eval" / f"{split}_predictions.csv"
                write_predictions(predictions, scores[split], loader.dataset, job.data.class_names)
    final = {f"best_val_{name}": best[f"val_{name}"] for name in ("accuracy", "loss")}
    if "test" in scores:
        final |= {f"test_{name}": scores["test"].metrics[name] for name in ("accuracy", "loss")}
    if loggers is not None:
        tensorboard.finish_hparams(loggers, final, history[-1]["step"])
        pictures.conclude(job, scores["val"], loggers, epoch=best["epoch"], step=history[-1]["step"])
        for stale in checkpoints(run_dir / "checkpoints", "step")[1:]:
            stale.unlink()
    return RunResult(
        run_dir=run_dir,
        best_epoch=best["epoch"],
        val=scores["val"].metrics,
        test=scores["test"].metrics if "test" in scores else None,
        history=history,
    )


def hparam_values(config: RunConfig) -> dict[str, Any]:
    """The options worth a column in TensorBoard's HPARAMS tab."""
    picked = {
        "model": config.model.name, "weights": config.model.weights, "trainable": config.model.trainable,
        "image_size": config.model.image_size, "data": config.data.source, "augment": config.data.augment,
        "batch_size": config.data.batch_size,
    }  # fmt: skip
    names = ("epochs", "optimizer", "lr", "weight_decay", "schedule", "warmup_epochs", "label_smoothing", "amp", "seed")
    return picked | {name: getattr(config.train, name) for name in names}
