"""THE recipe: one training run from its options to its results, in the order in which a reader meets it."""

from __future__ import annotations

import dataclasses
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint, EarlyStopping
from torch import nn
from torch.optim import Optimizer

from datasets import DataBundle, build_dataloaders, class_weights, skipped
from datasets.bundle import DataError
from datasets.mixing import BatchMix
from datasets.splits import fingerprint, write_split
from trainers import console, defaults, handlers, tensorboard
from trainers.checkpoint import FORMAT_VERSION, CheckpointWriter, Fact, checkpoints, read_checkpoint
from trainers.config import ConfigError, RunConfig, from_dict, to_dict
from trainers.engines import TrainingError, create_evaluator, create_trainer
from trainers.evaluation import Scores, score_split, write_predictions
from trainers.optim import build_optimizer, learning_rate
from trainers.run_directory import (
    command_line,
    describe_environment,
    plan_run_directory,
    write_json,
    write_metrics_csv,
    write_run_config,
)
from trainers.seeding import seed_everything
from vit import ImageSpec, WeightsError, build_model, image_spec
from vit.factory import resolve as resolve_model
from vit.param_groups import param_groups

AMP_DTYPES = {"off": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Job:
    """What a run needs, all of it known to be right."""

    config: RunConfig
    spec: ImageSpec
    data: DataBundle
    model: nn.Module
    optimizer: Optimizer
    device: torch.device

    @property
    def steps_per_epoch(self) -> int:
        return len(self.data.dataloaders["train"])

    @property
    def total_steps(self) -> int:
        assert self.config.train.epochs is not None
        return self.config.train.epochs * self.steps_per_epoch


@dataclass(frozen=True)
class RunResult:
    """What a run found. Metrics are fractions; `val` is the best epoch's, `test` None where there is no such split."""

    run_dir: Path
    best_epoch: int
    val: dict[str, float]
    test: dict[str, float] | None
    history: list[dict[str, Any]]


def train(config: RunConfig) -> RunResult:
    """Train one model and leave everything it found in a run directory.

    Raises:
        ConfigError: options that cannot work. DataError, WeightsError: images or weights that cannot be used.
        TrainingError: a loss that is not finite. A run that fails before its first checkpoint leaves no directory.
    """
    job = prepare(config)
    run_dir = plan_run_directory(job.config, Path(job.config.data.source).stem or "data")
    console.announce(
        job.config,
        model=job.model,
        class_names=job.data.class_names,
        sizes=job.data.dataset_sizes,
        steps_per_epoch=job.steps_per_epoch,
        run_dir=run_dir,
        defaults_source=defaults.lookup(job.config).source,
    )
    write_inputs(job, run_dir)
    started = time.perf_counter()
    status = "failed"
    trainer = None
    try:
        with tensorboard.RunLoggers(run_dir / "tb") as loggers:
            trainer = assemble(job, run_dir, loggers)
            trainer.run(
                handlers.endless_batches(job.data.dataloaders["train"], start_iteration=0),
                max_epochs=job.config.train.epochs,
                epoch_length=job.steps_per_epoch,
            )
            console.say_if_stopped_early(trainer, job.config.train)
            result = conclude(job, run_dir, trainer.state.history, loggers)
        status = "finished"
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    finally:
        if status == "finished" or checkpoints(run_dir / "checkpoints", "step"):
            history = trainer.state.history if trainer is not None else []
            found = result if status == "finished" else None
            write_json(run_dir / "summary.json", summarise(job, status, history, time.perf_counter() - started, found))
        else:
            shutil.rmtree(run_dir, ignore_errors=True)
    return result


def prepare(config: RunConfig) -> Job:
    """Build everything that can turn out wrong before anything is written."""
    try:
        config = defaults.resolve(config)
        config = dataclasses.replace(config, model=resolve_model(config.model))
        spec = image_spec(config.model)
        data = build_dataloaders(config.data, spec, seed=config.train.seed)
        config = defaults.resolve_length(
            config, train_images=data.dataset_sizes["train"], steps_per_epoch=len(data.dataloaders["train"])
        )
        device = torch.device(config.train.device)
        seed_everything(config.train.seed)
        model = build_model(config.model, num_classes=len(data.class_names)).to(device)
    except (ConfigError, DataError, WeightsError):
        raise
    except ValueError as error:  # a value that one of the parts refuses, such as an image size
        raise ConfigError(str(error)) from error
    assert config.train.lr is not None
    assert config.train.weight_decay is not None
    groups = param_groups(model, weight_decay=config.train.weight_decay)
    optimizer = build_optimizer(groups, name=config.train.optimizer, lr=config.train.lr)
    return Job(config, spec, data, model, optimizer, device)


def write_inputs(job: Job, run_dir: Path) -> None:
    """What the run starts from: config.json, meta.json, split.csv."""
    run_dir.mkdir(parents=True)
    write_run_config(run_dir, job.config)
    meta = describe_environment(command_line(), job.device, fingerprint(job.data))
    write_json(run_dir / "meta.json", meta | {"skipped_images": list(skipped(job.data))})
    write_split(run_dir / "split.csv", job.data)


def assemble(job: Job, run_dir: Path, loggers: tensorboard.RunLoggers) -> Engine:
    """The trainer with everything that hangs on it. The order matters: Ignite fires handlers in this order, so an epoch
    ends in validation, history, best checkpoint, files, early stopping, and last of all the checkpoint to resume from.
    """
    config, amp_dtype = job.config.train, AMP_DTYPES[job.config.train.amp]
    assert config.epochs is not None
    assert config.log_every is not None
    num_classes = len(job.data.class_names)
    trainer = create_trainer(
        job.model, job.optimizer, training_loss(job), job.device,
        amp_dtype=amp_dtype, clip_norm=config.clip_norm, seed=config.seed, mix=batch_mix(job),
    )  # fmt: skip
    evaluator = create_evaluator(
        job.model, nn.functional.cross_entropy, job.device, num_classes=num_classes, amp_dtype=amp_dtype
    )
    clock = handlers.StepClock()

    handlers.attach_learning_rate(trainer, job.optimizer, schedule(job))
    handlers.Sums().attach(trainer)
    clock.attach(trainer)
    tensorboard.attach_batch_picture(trainer, loggers, mean=job.spec.mean, std=job.spec.std)
    tensorboard.attach_train_scalars(trainer, loggers, job.optimizer, clock, every=config.log_every)
    tensorboard.attach_val_scalars(trainer, evaluator, loggers)
    handlers.attach_progress(trainer)
    handlers.attach_validation(trainer, evaluator, job.data.dataloaders["val"])
    handlers.attach_history(trainer, evaluator, job.optimizer, clock, job.device)
    attach_best_checkpoint(trainer, job, run_dir)
    attach_files(trainer, run_dir)
    console.attach_epoch_lines(trainer, epochs=config.epochs)
    stopper = None
    if config.patience:
        stopper = handlers.attach_early_stopping(trainer, evaluator, patience=config.patience, select=config.select)
    attach_resume_checkpoint(trainer, job, run_dir, stopper)

    tensorboard.write_config_text(loggers, to_dict(job.config))
    tensorboard.start_hparams(loggers, hparam_values(job.config))
    return trainer


def training_loss(job: Job) -> nn.Module:
    """Cross-entropy with label smoothing, weighted by class if so asked. Validation always uses the plain one."""
    weight = class_weights(job.data).to(job.device) if job.config.data.balance == "loss" else None
    return nn.CrossEntropyLoss(weight=weight, label_smoothing=job.config.train.label_smoothing or 0.0)


def batch_mix(job: Job) -> BatchMix | None:
    alphas = (job.config.train.mixup or 0.0, job.config.train.cutmix or 0.0)
    return BatchMix(len(job.data.class_names), *alphas) if any(alphas) else None


def schedule(job: Job) -> Any:
    """The learning rate as a function of the step."""
    config = job.config.train
    assert config.lr is not None
    assert config.warmup_epochs is not None
    return learning_rate(
        peak=config.lr,
        schedule=config.schedule,
        total_steps=job.total_steps,
        warmup_steps=round(config.warmup_epochs * job.steps_per_epoch),
        steps_per_epoch=job.steps_per_epoch,
    )


def identity(job: Job) -> dict[str, Fact]:
    """What makes a checkpoint self-describing."""
    facts = {
        "format_version": FORMAT_VERSION,
        "class_names": list(job.data.class_names),
        "image_spec": to_dict(job.spec),
        "config": to_dict(job.config),
    }
    return {name: Fact(value) for name, value in facts.items()}


def attach_best_checkpoint(trainer: Engine, job: Job, run_dir: Path) -> None:
    """Keep the weights of the best epoch. Ignite's own score comparison knows no ties and keeps a NaN for ever."""
    epoch = Fact(0)
    save = Checkpoint(
        {"model": job.model, "epoch": epoch, **identity(job)},
        CheckpointWriter(run_dir / "checkpoints", keep=1),
        filename_pattern="best.pt",
        n_saved=None,
    )

    @trainer.on(Events.EPOCH_COMPLETED)
    def save_if_best(engine: Engine) -> None:
        best = handlers.best_row(engine.state.history, job.config.train.select)
        if best is not None and best["epoch"] == engine.state.epoch:
            epoch.value = engine.state.epoch
            save(engine)


def attach_resume_checkpoint(trainer: Engine, job: Job, run_dir: Path, stopper: EarlyStopping | None) -> None:
    """Save all of the training state after every epoch. The newest two stay."""
    state = {"model": job.model, "optimizer": job.optimizer, "scaler": trainer.scaler, "trainer": trainer}
    if stopper is not None:
        state["early_stopping"] = stopper
    save = Checkpoint(
        state | identity(job),
        CheckpointWriter(run_dir / "checkpoints", keep=2),
        filename_pattern="step_{global_step}.pt",
        global_step_transform=lambda engine, _: engine.state.iteration,
        n_saved=None,
    )
    trainer.add_event_handler(Events.EPOCH_COMPLETED, save)


def attach_files(trainer: Engine, run_dir: Path) -> None:
    @trainer.on(Events.EPOCH_COMPLETED)
    def write(engine: Engine) -> None:
        write_metrics_csv(run_dir / "metrics.csv", engine.state.history)


def conclude(job: Job, run_dir: Path, history: list[dict[str, Any]], loggers: tensorboard.RunLoggers) -> RunResult:
    """Score the best weights, on the test split once, and write it everywhere."""
    best = handlers.best_row(history, job.config.train.select)
    if best is None:
        raise TrainingError(f"no epoch has a finite validation {job.config.train.select}: nothing to choose")
    job.model.load_state_dict(read_checkpoint(checkpoints(run_dir / "checkpoints", "best")[0])["model"])
    scores: dict[str, Scores] = {}
    for split in ("val", "test"):
        if split in job.data.dataloaders:
            loader = job.data.dataloaders[split]
            scores[split] = score_split(
                job.model, loader, num_classes=len(job.data.class_names), device=job.device,
                amp_dtype=AMP_DTYPES[job.config.train.amp],
            )  # fmt: skip
            predictions = run_dir / "eval" / f"{split}_predictions.csv"
            write_predictions(predictions, scores[split], loader.dataset, job.data.class_names)
    final = {f"best_val_{name}": best[f"val_{name}"] for name in ("accuracy", "loss")}
    if "test" in scores:
        final |= {f"test_{name}": scores["test"].metrics[name] for name in ("accuracy", "loss")}
    tensorboard.finish_hparams(loggers, final, history[-1]["step"])
    for stale in checkpoints(run_dir / "checkpoints", "step")[1:]:
        stale.unlink()
    return RunResult(
        run_dir=run_dir,
        best_epoch=best["epoch"],
        val=scores["val"].metrics,
        test=scores["test"].metrics if "test" in scores else None,
        history=history,
    )


def summarise(
    job: Job, status: str, history: list[dict[str, Any]], seconds: float, result: RunResult | None
) -> dict[str, Any]:
    """The content of summary.json."""
    total, trainable = console.count_parameters(job.model)
    best = handlers.best_row(history, job.config.train.select)
    last = history[-1] if history else {"epoch": 0}
    return {
        "status": status,
        "epochs": last["epoch"],
        "seconds": round(seconds, 3),
        "images_seen": last["epoch"] * job.data.dataset_sizes["train"],
        "parameters": total,
        "trainable": trainable,
        "best": {"epoch": best["epoch"], "accuracy": best["val_accuracy"], "loss": best["val_loss"]} if best else None,
        "test": result.test | {"n": job.data.dataset_sizes["test"]} if result and result.test else None,
    }


def hparam_values(config: RunConfig) -> dict[str, Any]:
    """The options worth a column in TensorBoard's HPARAMS tab."""
    picked = {
        "model": config.model.name, "weights": config.model.weights, "trainable": config.model.trainable,
        "image_size": config.model.image_size, "data": config.data.source, "augment": config.data.augment,
        "batch_size": config.data.batch_size,
    }  # fmt: skip
    names = ("epochs", "optimizer", "lr", "weight_decay", "schedule", "warmup_epochs", "label_smoothing", "amp", "seed")
    return picked | {name: getattr(config.train, name) for name in names}


def load(run: Path) -> tuple[nn.Module, ImageSpec, tuple[str, ...]]:
    """The best model of a run on the CPU in evaluation mode, its preprocessing and its class names. Needs no data.

    Raises:
        CheckpointError: the file is damaged or no checkpoint. FileNotFoundError: the run has no best checkpoint yet.
    """
    found = checkpoints(Path(run) / "checkpoints", "best")
    if not found:
        raise FileNotFoundError(f"{run}/checkpoints has no best_*.pt: the run has not finished an epoch yet")
    checkpoint = read_checkpoint(found[0])
    config = from_dict(RunConfig, checkpoint["config"])
    model = build_model(config.model, num_classes=len(checkpoint["class_names"]), weights="none", weights_source=None)
    model.load_state_dict(checkpoint["model"])
    spec = from_dict(ImageSpec, checkpoint["image_spec"])
    return model.eval(), spec, tuple(checkpoint["class_names"])
