"""Record a run: its folder, made in one step, what it starts from, how far it is, and how it ends.

config.json, meta.json and split.csv are written before the first step; summary.json changes until the end, whatever
ends the run.
"""

import os
import platform
import subprocess
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from ignite.engine import Engine, Events

from common.errors import DataError, Diverged, Interrupted, TrainingError, first_line, out_of_memory, system_reason
from common.files import discard, made_whole
from common.shell import command
from common.versions import versions_of
from datasets.bundle import Samples, image_set
from datasets.image_dataset import ImageDataset
from datasets.open import OpenedImages, images_in_use
from datasets.split_csv import changes_since, fingerprint, write_split
from datasets.transforms import Pipeline
from trainers.config import RunConfig, to_dict
from trainers.engine import handlers
from trainers.seen import as_begun
from trainers.setup import RunSetup
from trainers.storage.data_folder import claimed_folder, is_a_set, is_there, plan_run_directory
from trainers.storage.run_folder import RunFolder, now, untrusted_run
from trainers.storage.run_result import RunResult
from trainers.system import distributed, folder_lock
from trainers.system.process import command_line, working_directory
from vit import ImageSpec
from vit.anatomy import count_parameters

VERSIONED = ("torch", "torchvision", "pytorch-ignite", "tensorboard", "numpy", "pillow")


@contextmanager
def new_run_directory(setup: RunSetup, *, requested: RunConfig) -> Iterator[RunFolder]:
    """Make the folder of a new run, and hold it while the block runs.

    config.json, meta.json and split.csv are in it. Raises OptionError: `--run-name` is taken."""
    with ExitStack() as holding:
        yield RunFolder(Path(distributed.broadcast(lambda: str(make_run_directory(setup, requested, holding)))))


def make_run_directory(setup: RunSetup, requested: RunConfig, holding: ExitStack) -> Path:
    claimed_folder(setup.config.output, setup.config.data.source)
    while not folder_lock.hold(run_dir := plan_run_directory(setup.config), holding):
        pass  # another process has made it meanwhile: the next name
    with made_whole(run_dir) as aside:
        write_inputs(RunFolder(aside), setup, requested)
    return run_dir


def describe_start(setup: RunSetup, requested: RunConfig) -> dict[str, Any]:
    """Return what a run depends on besides its config: the content of meta.json."""
    return {
        "started": now(),
        "argv": command_line(),
        "directory": working_directory(),
        "versions": versions_of(*VERSIONED) | {"python": platform.python_version()},
        "git": git_state(),
        "platform": platform.platform(),
        **describe_machine(setup.device),
        "data_fingerprint": fingerprint(setup.data),
        "class_names": list(setup.data.class_names),
        "processes": distributed.world_size(),
        "own_images": not isinstance(image_set(setup.data.dataloaders["train"]), ImageDataset),
        "seen": list(setup.seen),
        "skipped_images": list(setup.data.samples.skipped),
        "requested": to_dict(requested),
    }


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Describe what a run's last bits depend on, besides the libraries."""
    of_gpu = {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()} if device.type == "cuda" else {}
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "processor": processor_name(),
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        **of_gpu,
    }


def changes_of_machine(meta: dict[str, Any], device: torch.device) -> str:
    """List what changed since a run started: machine, threads, version of torch."""
    was, now = meta | meta["versions"], describe_machine(device) | {"torch": versions_of("torch")["torch"]}
    changed = [name for name, value in now.items() if was.get(name, value) != value]
    return ", ".join(f"{name.replace('_', ' ')} from {was[name]} to {now[name]}" for name in changed)


def write_inputs(run: RunFolder, setup: RunSetup, requested: RunConfig) -> None:
    """Write config.json, meta.json and split.csv, from which a run starts. `requested`: its options as given."""
    run.write_config(setup.config)
    run.write_meta(describe_start(setup, requested))
    write_split(run.split_file, setup.data)


def open_images(run: RunFolder, config: RunConfig, *, opened: OpenedImages | None = None) -> Samples:
    """Open the table of a run's images again, in its own splits.

    `opened`: those that the command has opened already. Raises DataError: there are none where its options look for
    them, or not those that it started with."""
    require_images(run, config)
    samples = images_in_use(as_begun((opened or OpenedImages()).split(config.data), run), config.data)
    require_same_images(run, samples, config.data.source)
    return samples


def require_images(run: RunFolder, config: RunConfig) -> None:
    """Raise DataError where a run's images are gone, with the way out."""
    source = config.data.source
    if run.about.get("own_images"):
        raise DataError(
            f"{run} was trained on Datasets of a program, which no command finds again: in Python give them to"
            f" resume({str(run)!r}, dataloaders=..., model=...); evaluate --data scores other images"
        )
    if is_a_set(source) or is_there(Path(os.path.expanduser(source))):
        return
    place = ((run.started_in or Path()) / source).absolute()
    again = command("resume", run.path, "--data", "NEW_PLACE")
    raise DataError(
        f"{run} was trained on the images at {place}, and there are none now; if they moved: {again}, which makes"
        " sure that they are the same"
    )


def open_validation_images(run: RunFolder, spec: ImageSpec) -> ImageDataset:
    """Open a run's validation images, as evaluation prepares them.

    The run may be a stranger's. Raises as `open_images`."""
    with untrusted_run():
        return ImageDataset(open_images(run, run.config), "val", Pipeline(spec))


def require_same_images(run: RunFolder, samples: Samples, source: str) -> None:
    """Raise DataError where images, labels or splits are others than a run's.

    One line says what differs."""
    table = run.split_file
    try:
        changes = changes_since(table, samples)
    except (DataError, FileNotFoundError) as error:
        changes = [f"it cannot be read ({error})"]
    differs = "; ".join(changes) or "their fingerprint is another"
    if run.meta["data_fingerprint"] != fingerprint(samples):
        raise DataError(
            f"the images of {source} changed since the run started: {differs}; bring them back, or train anew"
        )
    if changes:
        raise DataError(
            f"{table} was changed since the run started, and is not what it trains on: {differs}; undo that, or train"
            " anew, with --split"
        )


def processor_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def git_state() -> dict[str, Any] | None:
    """Return commit and cleanliness of the running code.

    None outside a git checkout of it."""
    here = Path(__file__).resolve().parents[1]
    if not (here / ".git").exists():  # installed, perhaps below another project's checkout
        return None
    words = ["git", "--no-optional-locks", "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    try:
        done = subprocess.run(words, cwd=here, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    first, *lines = done.stdout.splitlines()  # "# branch.oid COMMIT", other lines about the branch, one per change
    return {"commit": first.split()[-1], "dirty": any(line[0] != "#" for line in lines)}


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
        best = handlers.best_row(self.history, setup.config.train.select, setup.config.train.start_head)
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
        """Return the wall-clock seconds so far, those of earlier lives included."""
        return round(self.earlier.get("seconds", 0.0) + time.perf_counter() - self.started, 3)

    def images_seen(self, history: Sequence[Mapping[str, Any]]) -> int:
        """Count the training images of all steps.

        The last epoch may have a part of them, a fitted head has all."""
        if not self.setup.total_steps:
            return self.setup.data.dataset_sizes["train"]
        epochs, steps = divmod(history[-1]["step"] if history else 0, self.setup.steps_per_epoch)
        return epochs * self.setup.data.dataset_sizes["train"] + steps * (self.setup.config.data.batch_size or 0)


@contextmanager
def track_status(setup: RunSetup, run: RunFolder, *, created: bool) -> Iterator[RunStatus]:
    """Record how a run ends.

    One that was `created` just now leaves no directory where it has no checkpoint yet. Raises TrainingError: a fault of
    the machine, named, with the command that resumes the run where one can. Interrupted: with that command as its hint.
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
    """Return a TrainingError that says what `error` means; None for a bug."""
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
