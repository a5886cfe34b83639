"""summary.json: how far a run is, and how it ended, whatever ends it."""

import multiprocessing
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ignite.engine import Engine, Events

from common.errors import Interrupted, TrainingError, first_line, out_of_memory
from common.shell import command
from trainers.engine import handlers
from trainers.run_start import discard
from trainers.setup import RunSetup
from trainers.storage.checkpoint_file import checkpoints
from trainers.storage.run_folder import read_if_whole, write_json
from trainers.storage.run_result import RunResult
from trainers.system import distributed
from vit.parts import count_parameters

WRITTEN_AT_START = {
    "config.json", "meta.json", "split.csv", "summary.json", "metrics.csv", "data_report.txt", "checkpoints", "tb",
    "figures", "heads.json", "tracker.json",
}  # fmt: skip
"""Files that a run may have written when its first checkpoint fails."""
_NO_SHARED_MEMORY = ("unable to allocate shared memory", "Bus error")
"""Messages of torch where /dev/shm is full."""
_PEER_GONE = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "gloo", "NCCL")
"""Messages of gloo and NCCL where another process has gone or stands still."""


class RunStatus:
    """Keeps summary.json: how far the run is, and how it ended."""

    def __init__(self, setup: RunSetup, run_dir: Path) -> None:
        self.setup, self.path = setup, run_dir / "summary.json"
        self.history: list[dict[str, Any]] = []
        self.result: RunResult | None = None
        self.stopped = ""
        """Reason why the run ended before its last planned step."""
        self.earlier = read_if_whole(self.path, seconds=float) or {}
        self.started = time.perf_counter()

    def attach(self, trainer: Engine) -> None:
        @trainer.on(Events.EPOCH_COMPLETED)
        def note(engine: Engine) -> None:
            self.history = engine.state.history
            self.write("running")

    def finish(self, result: RunResult) -> RunResult:
        self.result, self.history = result, result.epochs
        self.write("finished")
        return result

    def write(self, status: str) -> None:
        if not distributed.is_main_process():
            return
        setup, result = self.setup, self.result
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
        write_json(self.path, values)

    @property
    def seconds(self) -> float:
        """Wall-clock seconds so far, those of earlier lives of the run with them."""
        return round(self.earlier.get("seconds", 0.0) + time.perf_counter() - self.started, 3)

    def images_seen(self, history: Sequence[Mapping[str, Any]]) -> int:
        """Training images of all steps, of which the last epoch may have a part; all of them where a head is fitted."""
        if not self.setup.total_steps:
            return self.setup.data.dataset_sizes["train"]
        epochs, steps = divmod(history[-1]["step"] if history else 0, self.setup.steps_per_epoch)
        return epochs * self.setup.data.dataset_sizes["train"] + steps * (self.setup.config.data.batch_size or 0)


@contextmanager
def track_status(setup: RunSetup, run_dir: Path, *, created: bool) -> Iterator[RunStatus]:
    """Record how a run ends. One that was `created` just now and has no checkpoint yet leaves no directory behind.
    Raises TrainingError: a fault of the machine, named, with the command that resumes the run where one can.
    Interrupted: with that command as its hint."""
    record = RunStatus(setup, run_dir)
    record.write("running")
    try:
        yield record
    except BaseException as error:
        resumable = distributed.is_main_process() and not (created and discard_if_empty(run_dir))
        if resumable:
            record.write("interrupted" if isinstance(error, Interrupted | KeyboardInterrupt) else "failed")
        hint = f"resume with: {command('resume', run_dir)}" if resumable else ""
        if isinstance(error, Interrupted):
            error.hint = hint
            raise
        fault = None
        if isinstance(error, Exception):
            fault = diagnose_failure(error, batch_size=setup.config.data.batch_size, workers=setup.config.data.workers)
        if fault is None:
            raise
        raise TrainingError("; ".join(filter(None, [str(fault), hint]))) from error


def discard_if_empty(run_dir: Path) -> bool:
    """Remove the directory of a run without a checkpoint if it holds nothing else; return whether it is gone."""
    others = {path.name for path in run_dir.iterdir() if path.name[0] != "."} - WRITTEN_AT_START
    if others or checkpoints(run_dir / "checkpoints", "step"):
        return False
    discard(run_dir)
    return True


def diagnose_failure(error: Exception, *, batch_size: int | None, workers: int | None) -> TrainingError | None:
    """TrainingError that says what `error` means for a run, with its own words; None for a bug and all else."""
    text, words = str(error), f" ({first_line(error)})" if str(error) else ""
    if isinstance(error, TrainingError):
        return error
    broken, spawned = broken_between_processes(error), multiprocessing.get_start_method() != "fork"
    if isinstance(error, BrokenPipeError) and not broken:  # whoever read the output has stopped: no fault of the run
        return None
    if any(sign in text for sign in _NO_SHARED_MEMORY):
        return TrainingError(
            f"/dev/shm is full, through which loader processes hand over batches{words}: docker run --shm-size=8g, or"
            " --workers 0"
        )
    if out_of_memory(error):
        return TrainingError(
            f"out of memory at --batch-size {batch_size}{words}: try --accumulate 2, --checkpoint-activations,"
            " a smaller --image-size, or --amp bf16"
        )
    if "does not have a deterministic implementation" in text:
        return TrainingError(f"--deterministic is not possible with this model{words}: leave it out")
    if "killed by signal" in text or (broken and not spawned):
        return TrainingError(
            f"a loader process was killed{words}: it probably ran out of memory; try fewer --workers"
            f" than {workers if workers else 'now'}, or --workers 0"
        )
    if "DataLoader worker (pid" in text or broken:
        return TrainingError(
            f"a loader process ended by itself{words}: its own message may say why; where processes are spawned, a"
            ' script has its call of `train` below `if __name__ == "__main__":`, or DataConfig(workers=0)'
        )
    of_the_network = isinstance(error, RuntimeError | ConnectionError) and distributed.world_size() > 1
    if of_the_network and any(sign in text for sign in _PEER_GONE):
        how = "stands still" if "Timed out" in text else "has ended"
        return TrainingError(
            f"another process of this run {how}{words}; its own message, or the system's log, says why"
        )
    if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
        return TrainingError(first_line(error))
    return None


def broken_between_processes(error: Exception) -> bool:
    """Return whether a connection between this program's own processes broke: a loader process that dies while it hands
    over a batch does that before torch has noticed its death."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    passed = (frame.f_globals.get("__name__", "") for frame in frames)
    return isinstance(error, ConnectionError | EOFError) and any(name.startswith("multiprocessing.") for name in passed)
