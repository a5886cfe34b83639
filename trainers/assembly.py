"""A run put together: the two engines, and everything that hangs on them, in one stated order.

Ignite fires the handlers of an event in the order of their attachment. So an epoch ends in validation, history,
pictures, best weights, files, early stopping and, after all that it must hold, the checkpoint to resume from.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ignite.engine import Events
from torch import nn

from trainers import console, distributed, handlers, heeding, pictures, tensorboard
from trainers.budget import TimeBudget
from trainers.ema import ModelEMA
from trainers.engines import create_evaluator
from trainers.evaluation import BestOutputs
from trainers.job import Job, schedule, trainer_of
from trainers.record import Record
from trainers.saving import BestCheckpoint, ResumeCheckpoint, attach_files


class Run:
    """A job with its engines and everything that watches, saves and ends it.

    `evaluated` is the model that is validated, saved and chosen: the trained one, or the average of its weights.
    `states` is everything that has a state, by the name it has in a checkpoint.
    """

    def __init__(self, job: Job, run_dir: Path, *, loggers: tensorboard.RunLoggers, record: Record) -> None:
        self.job, self.run_dir, self.options = job, run_dir, job.config.train
        self.loggers, self.record = loggers, record
        self.val_loader = job.data.dataloaders["val"]
        self.ema = ModelEMA(job.model, decay=self.options.ema_decay) if self.options.ema_decay else None
        self.evaluated = self.ema.model if self.ema is not None else job.model
        self.trainer = trainer_of(job)
        self.evaluator = create_evaluator(
            self.evaluated,
            nn.functional.cross_entropy,
            job.device,
            num_classes=len(job.data.class_names),
            amp_dtype=job.amp_dtype,
        )
        self.clock = handlers.StepClock()
        self.best: BestCheckpoint
        self.best_outputs: BestOutputs
        self.saver: ResumeCheckpoint
        self.budget: TimeBudget | None = None
        self.states: dict[str, Any] = {
            "model": job.weights(job.model),
            "optimizer": job.optimizer,
            "scaler": self.trainer.scaler,
            "trainer": self.trainer,
            "history": handlers.History(self.trainer),
        }
        for attach, writes in HANDLERS:
            if distributed.is_main_process() or not writes:
                attach(self)

    @property
    def ended_early(self) -> bool:
        """Whether time or patience is over, in an earlier life perhaps."""
        stopping = self.states.get("early_stopping")
        impatient = stopping is not None and stopping.counter >= stopping.patience
        return impatient or (self.budget is not None and self.budget.spent)


def set_learning_rate(run: Run) -> None:
    handlers.attach_learning_rate(run.trainer, run.job.optimizer, schedule(run.job))


def average_weights(run: Run) -> None:
    ema = run.ema
    if ema is not None:
        run.trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: ema.update(engine.state.iteration))
        run.states["ema"] = run.job.weights(ema.model)


def sum_up_steps(run: Run) -> None:
    handlers.Sums().attach(run.trainer)


def measure_time(run: Run) -> None:
    run.clock.attach(run.trainer)


def log_scalars(run: Run) -> None:
    assert run.options.log_every is not None
    tensorboard.attach_train_scalars(
        run.trainer, run.loggers, run.job.optimizer, run.clock, every=run.options.log_every
    )


def show_progress(run: Run) -> None:
    handlers.attach_progress(run.trainer)


def validate(run: Run) -> None:
    handlers.attach_validation(run.trainer, run.evaluator, run.val_loader)


def note_history(run: Run) -> None:
    handlers.attach_history(run.trainer, run.evaluator, run.job.optimizer, run.clock, run.job.device)


def log_epochs(run: Run) -> None:
    tensorboard.attach_epoch_scalars(run.trainer, run.loggers, num_classes=len(run.job.data.class_names))


def draw_pictures(run: Run) -> None:
    pictures.attach(run.trainer, run.job, run.evaluated, run.loggers)


def keep_best_outputs(run: Run) -> None:
    run.best_outputs = BestOutputs(run.trainer, run.evaluator, select=run.options.select)


def save_best_weights(run: Run) -> None:
    run.best = BestCheckpoint(run.trainer, run.job, run.evaluated, run.run_dir)
    run.trainer.add_event_handler(Events.EPOCH_COMPLETED, run.best.save_if_best)


def write_metrics(run: Run) -> None:
    attach_files(run.trainer, run.run_dir)


def print_epochs(run: Run) -> None:
    console.attach_epoch_lines(run.trainer, epochs=run.job.last_epoch)
    console.attach_duration_note(run.trainer, run.evaluator, total_steps=run.job.total_steps)


def stop_early(run: Run) -> None:
    if run.options.patience:
        run.states["early_stopping"] = handlers.attach_early_stopping(
            run.trainer, run.evaluator, patience=run.options.patience, select=run.options.select
        )


def collect_states(run: Run) -> None:
    run.saver = ResumeCheckpoint(run.job, run.run_dir, run.trainer, run.states)


def save_to_resume(run: Run) -> None:
    run.saver.attach(save_every=run.options.save_every, before_save=run.loggers.flush)


def end_within_epoch(run: Run) -> None:
    job = run.job
    if job.total_steps % job.steps_per_epoch:
        handlers.attach_last_step(run.trainer, job.total_steps)


def limit_time(run: Run) -> None:
    minutes = run.options.max_minutes
    if minutes is not None:
        run.budget = TimeBudget(60 * minutes, agree=distributed.main_process_decides)
        run.budget.attach(run.trainer)
        if run.options.schedule != "constant":
            console.attach_pace_note(run.trainer, max_minutes=minutes)


def heed_signals(run: Run) -> None:
    heeding.attach(run.trainer, run.evaluator, run.val_loader)


def note_progress(run: Run) -> None:
    run.record.attach(run.trainer)


# (handler, whether it writes: then it is attached in the main process alone), in the order of attachment.
HANDLERS: tuple[tuple[Callable[[Run], None], bool], ...] = (
    (set_learning_rate, False),
    (average_weights, False),
    (sum_up_steps, False),
    (measure_time, False),
    (log_scalars, True),
    (show_progress, True),
    (validate, False),
    (note_history, False),
    (log_epochs, True),
    (draw_pictures, True),
    (keep_best_outputs, False),
    (save_best_weights, True),
    (write_metrics, True),
    (print_epochs, True),
    (stop_early, False),
    (collect_states, False),
    (save_to_resume, True),
    (end_within_epoch, False),
    (limit_time, False),
    (note_progress, False),
    (heed_signals, False),
)
