"""summary.json: how far a run is, and how it ended, whatever ends it."""

import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from ignite.engine import Engine, Events

from common.errors import Diverged, Interrupted, TrainingError, first_line, out_of_memory, system_reason
from common.files import discard
from common.shell import command
from trainers.engine import handlers
from trainers.setup import RunSetup
from trainers.storage.run_folder import RunFolder
from trainers.storage.run_result import RunResult
from trainers.system import distributed
from vit.parts import count_parameters

_NO_SHARED_MEMORY = ("unable to allocate shared memory", "Bus error")
"""Messages of torch where /dev/shm is full."""
_PEER_GONE = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "gloo", "NCCL")
"""Messages of gloo and NCCL where another process has gone or stands still."""


class RunStatus:
    """Keeps summary.json: how far the run is, and how it ended."""

    def __init__(self, setup: RunSetup, run: RunFolder) -> None:
        self.setup, self.run = setup, run
        self.history: list[dict[str, Any]] = []
        self.stopped = ""
        """Reason why the run ended before its last planned step."""
        self.earlier = run.progress
        self.started = time.perf_counter()

    def attach(self, trainer: Engine) -> None:
        @trainer.on(Events.EPOCH_COMPLETED)
        def note(engine: Engine) -> None:
            self.history = engine.state.history
            self.write("running")

    def write(self, status: str, result: RunResult | None = None) -> None:
        """Write the file anew; only a finished run has a result."""
        if not distributed.is_main_process():
            return
        setup, self.history = self.setup, result.epochs if result else self.history
        total, trainable = count_parameters(setup.network)
        best = handlers.best_row(self.history, setup.config.train.select)
        epochs = self.history[-1]["epoch"] if self.history else 0
        values = {
            "status": status,
            "epochs": epochs,
            "planned_epochs": setup.config.train.epochs,
            "stopped": self.stopped or None,
            "seconds": self.seconds,
            "images": dict(setup.data.dataset_sizes),
            "images_seen": self.images_seen(self.history),
            "parameters": total,
            "trainable": trainable,
            "best": best and {"epoch": best["epoch"], "accuracy": best["val_accuracy"], "loss": best["val_loss"]},
            "groups": {split: asdict(design) for split, design in result.designs.items()} if result else {},
            "test": result.test | {"n": setup.data.dataset_sizes["test"]} if result and result.test else None,
            "seen": list(setup.seen),
        }
        if not self.history:  # taken up, and nothing new yet
            values |= {name: self.earlier[name] for name in ("epochs", "images_seen", "best") if name in self.earlier}
        self.run.write_summary(values)

    @property
    def seconds(self) -> float:
        """Wall-clock seconds so far, those of earlier lives of the run with them."""
        return round(self.earlier.get("seconds", 0.0) + time.perf_counter() - self.started, 3)

    def images_seen(self, history: Sequence[Mapping[str, Any]]) -> int:
        """Count the training images of all steps; the last epoch may have a part of them, a fitted head has all."""
        if not self.setup.total_steps:
            return self.setup.data.dataset_sizes["train"]
        epochs, steps = divmod(history[-1]["step"] if history else 0, self.setup.steps_per_epoch)
        return epochs * self.setup.data.dataset_sizes["train"] + steps * (self.setup.config.data.batch_size or 0)


@contextmanager
def track_status(setup: RunSetup, run: RunFolder, *, created: bool) -> Iterator[RunStatus]:
    """Record how a run ends. One that was `created` just now leaves no directory where it has no checkpoint yet.

    Raises TrainingError: a fault of the machine, named, with the command that resumes the run where one can.
    Interrupted: with that command as its hint.
    """
    record = RunStatus(setup, run)
    record.write("running")
    try:
        yield record
    except BaseException as error:
        hint = ""
        if distributed.is_main_process():
            if created and not run.checkpoints("step"):
                discard(run.path)
            else:
                record.write("interrupted" if isinstance(error, Interrupted | KeyboardInterrupt) else "failed")
                again = f"resume with: {command('resume', run.path)}"
                hint = (
                    "begin another run: resumed, this one takes the same step" if isinstance(error, Diverged) else again
                )
        if isinstance(error, Interrupted):
            error.hint = hint
            raise
        fault = None
        if isinstance(error, Exception):
            fault = diagnose_failure(error, batch_size=setup.config.data.batch_size, workers=setup.config.data.workers)
        if fault is None:
            if hint:
                error.add_note(hint)
            raise
        raise TrainingError("; ".join(filter(None, [str(fault), hint]))) from error


def diagnose_failure(error: Exception, *, batch_size: int | None, workers: int | None) -> TrainingError | None:
    """Return a TrainingError that says what `error` means for a run, in its own words; None for a bug."""
    if isinstance(error, TrainingError):
        return error
    text, broken = str(error), broken_between_processes(error)
    if isinstance(error, BrokenPipeError) and not broken:  # whoever read the output has stopped: no fault of the run
        return None
    of_the_network = isinstance(error, RuntimeError | ConnectionError) and distributed.world_size() > 1
    meanings = (
        (
            any(sign in text for sign in _NO_SHARED_MEMORY),
            "/dev/shm is full, through which loader processes hand over batches",
            "docker run --shm-size=8g, or --workers 0",
        ),
        (
            out_of_memory(error),
            f"out of memory at --batch-size {batch_size}",
            "try --accumulate 2, a smaller --image-size, --amp bf16, or checkpoint-activations = true in a file",
        ),
        (
            "does not have a deterministic implementation" in text,
            "deterministic = true is not possible with this model",
            "leave it out",
        ),
        (
            broken or "DataLoader worker (pid" in text,
            "a loader process was killed or ended by itself",
            f"it probably ran out of memory (fewer --workers than {workers or 'now'}, or --workers 0); where processes"
            ' are spawned, a script has its call of `train` below `if __name__ == "__main__":`',
        ),
        (
            of_the_network and any(sign in text for sign in _PEER_GONE),
            "another process of this run has ended or stands still",
            "its own message, or the system's log, says why",
        ),
    )
    for holds, what, remedy in meanings:
        if holds:
            return TrainingError(f"{what}{f' ({first_line(error)})' if text else ''}: {remedy}")
    if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
        return TrainingError(system_reason(error))
    return None


def broken_between_processes(error: Exception) -> bool:
    """Return whether a connection between this program's own processes broke.

    A loader process that dies while it hands over a batch does that before torch has noticed its death."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    passed = (frame.f_globals.get("__name__", "") for frame in frames)
    return isinstance(error, ConnectionError | EOFError) and any(name.startswith("multiprocessing.") for name in passed)
