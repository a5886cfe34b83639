"""Several processes as one run: who am I, what do all agree on, and who writes.

`torchrun --nproc-per-node N main.py train ...` starts N processes of one program. Each takes its slice of every global
batch; gradients are averaged by DistributedDataParallel; rank 0 alone writes. Everything here is the plain thing in a
single process. What they tell each other are tensors and plain data, never pickled objects.
"""

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from common.errors import FailedElsewhere, Interrupted, OptionError, exit_code
from trainers.system.process import variable
from trainers.system.signals import signals
from vit.tensor_files import from_bytes, to_bytes

T = TypeVar("T")
MOST_WAITED = timedelta(minutes=10)
"""Time that a process waits for one that stands still, such as on a machine that is gone; one that ends is noticed."""
SECONDS_BETWEEN_LOOKS = 0.25
"""Seconds between two looks for a signal that another process received."""


@contextmanager
def joined(device: str) -> Iterator[None]:
    """Inside, the processes that torchrun started know each other: by nccl when they compute on GPUs, else by gloo."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or idist.get_world_size() > 1:
        yield
        return
    on_gpus = torch.cuda.is_available() and device.split(":")[0] in {"auto", "cuda"}
    if on_gpus and int(os.environ["LOCAL_RANK"]) >= torch.cuda.device_count():
        raise OptionError(
            f"{os.environ['LOCAL_WORLD_SIZE']} processes on {torch.cuda.device_count()} GPUs: start one for each GPU,"
            " or use --device cpu"
        )
    # Without Slurm's variable, or Ignite would take its tasks, torchrun itself, for these processes; the others may
    # never come.
    with variable("SLURM_JOB_ID", None), signals.left_to_the_system():
        idist.initialize("nccl" if on_gpus else "gloo", timeout=MOST_WAITED)
    yield
    with variable("SLURM_JOB_ID", None):
        idist.finalize()  # not after an error: the others may be gone, and nobody would answer


rank, world_size = idist.get_rank, idist.get_world_size


def is_main_process() -> bool:
    """Return whether this process writes and speaks for all; true to the end of the process, after the others have
    parted."""
    return int(os.environ.get("WORLD_SIZE", "1")) == 1 or os.environ["RANK"] == "0"


def own_device(name: str) -> torch.device:
    """The device of this process: with several processes on GPUs, each has its own."""
    device = torch.device(name)
    return torch.device("cuda", idist.get_local_rank()) if device.type == "cuda" and world_size() > 1 else device


def broadcast(make: Callable[[], T]) -> T:
    """Give all processes what `make` returns on rank 0: tensors and plain data. Its error is everybody's, too: nobody
    waits for a process that has given up."""
    if world_size() == 1:
        return make()
    if is_main_process():
        made, error = attempt(make)
        idist.broadcast(_packed({"made": made, "error": as_text_and_code(error)}), src=0, safe_mode=True)
        if error is not None:
            raise error
        return made
    message = _unpacked(idist.broadcast(None, src=0, safe_mode=True))
    raise_elsewhere([message["error"]])
    return message["made"]


def main_process_first(make: Callable[[], T]) -> T:
    """Call `make` in each process, on rank 0 before the others so that it alone downloads. If one fails, all do."""
    if world_size() == 1:
        return make()
    made: Any = None
    error: Exception | None = None
    for main_process in (True, False):
        if is_main_process() == main_process:
            made, error = attempt(make)
        errors = all_gather(as_text_and_code(error))
        if error is not None:
            raise error
        raise_elsewhere(errors)
    return made


def attempt(make: Callable[[], T]) -> tuple[Any, Exception | None]:
    try:
        return make(), None
    except Exception as error:
        return None, error


def as_text_and_code(error: Exception | None) -> tuple[str, int] | None:
    """Message and exit code of an error, for the other processes."""
    return None if error is None else (str(error) or type(error).__name__, exit_code(error))


def raise_elsewhere(errors: Sequence[tuple[str, int] | None]) -> None:
    """Raise the first error that another process has told, if there is one."""
    for error in filter(None, errors):
        raise FailedElsewhere(*error)


def all_gather(value: T) -> list[T]:
    """The values of all processes, tensors and plain data, by rank."""
    if world_size() == 1:
        return [value]
    packed = _packed({"value": value})
    sizes = [int(size) for size in idist.all_gather(torch.tensor([len(packed)], device=packed.device))]
    padded = nn.functional.pad(packed, (0, max(sizes) - len(packed)))
    values = [torch.empty_like(padded) for _ in sizes]
    torch.distributed.all_gather(values, padded)
    return [_unpacked(part[:size])["value"] for part, size in zip(values, sizes, strict=True)]


def _packed(tree: dict[str, Any]) -> Tensor:
    """uint8 (bytes,) on the device that the processes talk by."""
    return torch.frombuffer(bytearray(to_bytes(tree)), dtype=torch.uint8).to(idist.device())


def _unpacked(packed: Tensor) -> dict[str, Any]:
    return from_bytes(packed.cpu().numpy().tobytes())


def main_process_decides(flag: bool) -> bool:
    """Return the flag of rank 0 in all processes: its clock decides for all."""
    return flag if world_size() == 1 else bool(idist.broadcast(float(flag), src=0))


def share_buffers(model: nn.Module) -> None:
    """Give all processes the running statistics of rank 0, which are saved: each has gathered those of its slices."""
    for buffer in model.buffers() if world_size() > 1 else ():
        torch.distributed.broadcast(buffer, src=0)


def wrap(model: nn.Module, device: torch.device, *, may_skip_parameters: bool) -> nn.Module:
    """The model as each process trains it. Evaluation and checkpoints use the plain model, which shares its weights."""
    if world_size() == 1:
        return model
    device_ids = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=device_ids, find_unused_parameters=may_skip_parameters)


def attach_signals(trainer: Engine, evaluator: Engine, val_loader: DataLoader) -> None:
    """Look for signals after each iteration of both engines and after all work of an epoch. Attach last."""
    if world_size() == 1:
        for engine in (trainer, evaluator):
            engine.add_event_handler(Events.ITERATION_COMPLETED, signals.check)
        trainer.add_event_handler(Events.EPOCH_COMPLETED, signals.check)
        return
    batches = min(all_gather(len(val_loader)))
    trainer.add_event_handler(Events.ITERATION_COMPLETED, LookTogether())
    evaluator.add_event_handler(Events.ITERATION_COMPLETED, LookTogether(batches))
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: check_together(0.0))


def check_together(seconds: float) -> float:
    """A signal that one process received is everybody's. The largest `seconds` of all processes."""
    mine = torch.tensor([signals.received or 0, seconds], dtype=torch.float64, device=idist.device())
    received, slowest = idist.all_reduce(mine, "MAX").tolist()
    if received:
        raise Interrupted(int(received))
    return float(slowest)


class LookTogether:
    """Looks a few times a second, as it takes a message. All processes count the same iterations, and agree on how many
    of them make up that time, so they look in the same ones."""

    def __init__(self, iterations: float = math.inf) -> None:
        """`iterations`: what all processes have in common of each pass."""
        self.iterations, self.between, self.left = iterations, 1, 1
        self.since = time.perf_counter()

    def __call__(self, engine: Engine) -> None:
        if engine.state.iteration > self.iterations:
            return
        self.left -= 1
        if self.left == 0:
            slowest = check_together(time.perf_counter() - self.since) / self.between
            self.between = self.left = max(1, min(2 * self.between, int(SECONDS_BETWEEN_LOOKS / slowest)))
            self.since = time.perf_counter()
