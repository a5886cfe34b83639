"""Run several processes as one: rank, exchange of values and errors, DistributedDataParallel, signals.

`torchrun --nproc-per-node N main.py train ...` starts N processes of one program. Each takes its slice of every global
batch; DistributedDataParallel averages the gradients; only rank 0 writes. Messages use gloo between CPUs, on GPU
machines too: tensors and plain data, never pickled objects. A single process exchanges nothing.
"""

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import ignite.distributed as idist
import torch
import torch.distributed as dist
from ignite.engine import Engine, Events
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from common.errors import DataError, FailedElsewhere, Interrupted, OptionError, exit_code
from common.text import pluralise
from trainers.system.process import is_main_process, launched, require_whole
from trainers.system.signals import signals
from vit.tensor_files import from_bytes, to_bytes

T = TypeVar("T")
STEP_TIMEOUT = timedelta(minutes=10)
"""Time to wait for a process that does not answer, such as on a machine that is down."""
SILENT = 10.0
"""Seconds of waiting for the other processes to start before a line says so."""
PREPARE_TIMEOUT = timedelta(hours=12)
"""Time that the others wait while rank 0 downloads, reads or hashes images."""
SECONDS_BETWEEN_LOOKS = 0.25
"""Seconds between two checks for a signal that another process received."""

rank, world_size = idist.get_rank, idist.get_world_size


@contextmanager
def joined(device: str) -> Iterator[None]:
    """Connect the processes that torchrun started. Raises OptionError: they cannot compute on this device."""
    require_whole()
    if launched() == 1 or world_size() > 1:
        yield
        return
    kind, gpus, local_rank = device.split(":")[0], torch.cuda.device_count(), int(os.environ["LOCAL_RANK"])
    on_gpus = kind in {"auto", "cuda"} and torch.cuda.is_available()
    if kind == "mps" or (kind == "auto" and not on_gpus and torch.backends.mps.is_available()):
        raise OptionError("several processes train on CUDA GPUs or on processors, not on mps: add --device cpu")
    if on_gpus and local_rank >= gpus:
        processes = os.environ["LOCAL_WORLD_SIZE"]
        raise OptionError(f"{processes} processes on {pluralise(gpus, 'GPU')}: start one for each, or use --device cpu")
    if on_gpus:
        torch.cuda.set_device(local_rank)
    with signals.left_to_the_system(), slowness_said():  # the others may never start
        dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpus else "gloo", timeout=STEP_TIMEOUT)
        # Ignite's own initialize would take a GPU for gloo, too. In a job of Slurm, Ignite would take the local rank of
        # its task, torchrun itself, for that of this process.
        hidden = os.environ.pop("SLURM_JOB_ID", None)
        idist.sync()
        if hidden is not None:
            os.environ["SLURM_JOB_ID"] = hidden
    yield
    idist.finalize()  # not after an error: the others may have ended and would not answer


@contextmanager
def slowness_said() -> Iterator[None]:
    """Print to standard error which processes this one waits for, if that takes long."""
    place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    line = f"process {os.environ['RANK']}: waiting for {launched()} processes at {place}"
    timer = threading.Timer(SILENT, lambda: print(line, file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def own_device(name: str) -> torch.device:
    """Return the device of this process; each of several processes on GPUs has its own."""
    device = torch.device(name)
    return torch.device("cuda", idist.get_local_rank()) if device.type == "cuda" and world_size() > 1 else device


def broadcast(make: Callable[[], T]) -> T:
    """Call `make` on rank 0; return its tensors and plain data in all processes.

    Its error is raised in all, too."""
    if world_size() == 1:
        return make()
    made, error = attempt(make) if is_main_process() else (None, None)
    with waiting_for(PREPARE_TIMEOUT):
        message = sent({"made": made, "error": as_text_and_code(error)}, source=0)
    if error is not None:
        raise error
    raise_elsewhere([message["error"]])
    return message["made"]


def sent(message: dict[str, Any], *, source: int) -> dict[str, Any]:
    """Send a message of the process `source` to all processes."""
    buffer = bytearray(to_bytes(message) if rank() == source else b"")
    dist.broadcast(size := torch.tensor([len(buffer)]), source)
    buffer = buffer or bytearray(int(size))
    dist.broadcast(torch.frombuffer(buffer, dtype=torch.uint8), source)
    return message if rank() == source else from_bytes(bytes(buffer))


def all_gather(value: T) -> list[T]:
    """Return the values (tensors and plain data) of all processes, by rank."""
    if world_size() == 1:
        return [value]
    return [sent({"value": value}, source=source)["value"] for source in range(world_size())]


def require_equal(make: Callable[[], str], what: str) -> None:
    """Raise DataError if processes compute different texts of `what`, such as its hash."""
    if world_size() == 1:
        return
    text = make()
    with waiting_for(PREPARE_TIMEOUT):
        different = len({*all_gather(text)}) > 1
    if different:
        raise DataError(f"{what} are not the same for all processes of this run: copy one set to every machine")


def main_process_first(make: Callable[[], T]) -> T:
    """Call `make` in each process, first on rank 0, which alone downloads.

    If one fails, all fail."""
    if world_size() == 1:
        return make()
    made: Any = None
    error: Exception | None = None
    for main_process in (True, False):
        if is_main_process() == main_process:
            made, error = attempt(make)
        with waiting_for(PREPARE_TIMEOUT):
            errors = all_gather(as_text_and_code(error))
        if error is not None:
            raise error
        raise_elsewhere(errors)
    return made


@contextmanager
def waiting_for(timeout: timedelta) -> Iterator[None]:
    """Set the timeout for other processes inside the block."""
    dist.set_timeout(timeout)
    try:
        yield
    finally:
        dist.set_timeout(STEP_TIMEOUT)


def attempt(make: Callable[[], T]) -> tuple[Any, Exception | None]:
    try:
        return make(), None
    except Exception as error:
        return None, error


def as_text_and_code(error: Exception | None) -> tuple[str, int] | None:
    """Return message and exit code of an error, for the other processes."""
    return None if error is None else (str(error) or type(error).__name__, exit_code(error))


def raise_elsewhere(errors: Sequence[tuple[str, int] | None]) -> None:
    """Raise the first error of another process, if there is one."""
    for error in filter(None, errors):
        raise FailedElsewhere(*error)


def share_buffers(model: nn.Module) -> None:
    """Copy rank 0's running statistics, which are saved, to all processes.

    Each has those of its slices."""
    for buffer in model.buffers() if world_size() > 1 else ():
        dist.broadcast(buffer, src=0)


def wrap(model: nn.Module, device: torch.device, *, may_skip_parameters: bool) -> nn.Module:
    """Return the model as each process trains it.

    Evaluation and checkpoints use the plain model, which shares its weights."""
    if world_size() == 1:
        return model
    device_ids = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=device_ids, find_unused_parameters=may_skip_parameters)


def attach_signals(trainer: Engine, evaluator: Engine, val_loader: DataLoader) -> None:
    """Check for signals after each iteration and epoch of both engines.

    Attach last."""
    if world_size() == 1:
        for engine in (trainer, evaluator):
            engine.add_event_handler(Events.ITERATION_COMPLETED, signals.check)
        trainer.add_event_handler(Events.EPOCH_COMPLETED, signals.check)
        return
    batches = min(all_gather(len(val_loader)))
    trainer.add_event_handler(Events.ITERATION_COMPLETED, LookTogether())
    evaluator.add_event_handler(Events.ITERATION_COMPLETED, LookTogether(batches))
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: look_together())


def look_together(seconds: float = 0.0) -> float:
    """Return the largest `seconds` of all processes. Raises Interrupted: one got a signal."""
    mine = torch.tensor([signals.received or 0, seconds], dtype=torch.float64)
    dist.all_reduce(mine, dist.ReduceOp.MAX)
    received, slowest = mine.tolist()
    if received:
        raise Interrupted(int(received))
    return float(slowest)


class LookTogether:
    """Exchange signals about four times a second, in all processes at the same iterations.

    All processes count the same iterations and agree on how many fill that interval: a message per iteration would slow
    down small models.
    """

    def __init__(self, iterations: float = math.inf) -> None:
        """`iterations`: number of iterations of each pass that all processes have in common."""
        self.iterations, self.between, self.left = iterations, 1, 1
        self.since = time.perf_counter()

    def __call__(self, engine: Engine) -> None:
        if engine.state.iteration > self.iterations:
            return
        self.left -= 1
        if self.left == 0:
            seconds = look_together(time.perf_counter() - self.since)
            self.between = self.left = max(
                1, min(2 * self.between, int(SECONDS_BETWEEN_LOOKS * self.between / seconds))
            )
            self.since = time.perf_counter()
