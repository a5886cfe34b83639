"""summary.json: how far a run is, and how it ended, whatever ends it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ignite.engine import Engine, Events

from trainers import console, distributed, faults, handlers
from trainers.checkpoint import checkpoints
from trainers.errors import Interrupted, TrainingError
from trainers.job import Job
from trainers.result import RunResult
from trainers.run_directory import read_if_whole, write_json
from trainers.start import discard

WRITTEN_AT_START = {
    "config.json", "meta.json", "split.csv", "summary.json", "metrics.csv", "data_report.txt", "checkpoints", "tb",
    "figures",
}  # fmt: skip
"""What a run may have written when its first checkpoint fails."""


class Record:
    """summary.json: how far the run is, and how it ended."""

    def __init__(self, job: Job, run_dir: Path) -> None:
        self.job, self.path = job, run_dir / "summary.json"
        self.history: list[dict[str, Any]] = []
        self.result: RunResult | None = None
        self.earlier = read_if_whole(self.path, seconds=float) or {}
        self.started = time.perf_counter()

    def attach(self, trainer: Engine) -> None:
        @trainer.on(Events.EPOCH_COMPLETED)
        def note(engine: Engine) -> None:
            self.history = engine.state.history
            self.write("running")

    def finish(self, result: RunResult) -> RunResult:
        self.result, self.history = result, result.history
        self.write("finished")
        return result

    def write(self, status: str) -> None:
        if not distributed.is_main_process():
            return
        job, result = self.job, self.result
        total, trainable = console.count_parameters(job.model)
        best = handlers.best_row(self.history, job.config.train.select)
        epochs = self.history[-1]["epoch"] if self.history else 0
        values = {
            "status": status,
            "epochs": epochs,
            "seconds": round(self.earlier.get("seconds", 0.0) + time.perf_counter() - self.started, 3),
            "images_seen": self.images_seen(),
            "parameters": total,
            "trainable": trainable,
            "best": {"epoch": best["epoch"], "accuracy": best["val_accuracy"], "loss": best["val_loss"]}
            if best
            else None,
            "test": result.test | {"n": job.data.dataset_sizes["test"]} if result and result.test else None,
        }
        if not self.history:  # taken up, and nothing new yet
            values |= {name: self.earlier[name] for name in ("epochs", "images_seen", "best") if name in self.earlier}
        write_json(self.path, values)

    def images_seen(self) -> int:
        """Training images of all steps; the last epoch may have been cut short."""
        epochs, steps = divmod(self.history[-1]["step"] if self.history else 0, self.job.steps_per_epoch)
        return epochs * self.job.data.dataset_sizes["train"] + steps * (self.job.config.data.batch_size or 0)


@contextmanager
def recorded(job: Job, run_dir: Path, *, created: bool) -> Iterator[Record]:
    """Write down how a run ends. One that was `created` just now and has no checkpoint yet leaves no directory behind.

    Raises:
        TrainingError: a fault of the machine, named, with the command that resumes the run where one can.
        Interrupted: with that command as its text.
    """
    record = Record(job, run_dir)
    record.write("running")
    try:
        yield record
    except BaseException as error:
        resumable = distributed.is_main_process() and not (created and discarded(run_dir))
        if resumable:
            record.write("interrupted" if isinstance(error, Interrupted | KeyboardInterrupt) else "failed")
        hint = f"resume with: python main.py resume {run_dir}" if resumable else ""
        if isinstance(error, Interrupted):
            error.hint = hint
            raise
        fault = None
        if isinstance(error, Exception):
            fault = faults.explain(error, batch_size=job.config.data.batch_size, workers=job.config.data.workers)
        if fault is None:
            raise
        raise TrainingError("; ".join(filter(None, [str(fault), hint]))) from error


def discarded(run_dir: Path) -> bool:
    """Remove what a run wrote that has no checkpoint yet, if that is all there is; whether the directory is gone."""
    others = {path.name for path in run_dir.iterdir() if path.name[0] != "."} - WRITTEN_AT_START
    if others or checkpoints(run_dir / "checkpoints", "step"):
        return False
    discard(run_dir)
    return True
