"""Several processes as one run: who am I, what do all agree on, and who writes.

`torchrun --nproc-per-node N main.py train ...` starts N processes of one program. Each takes its slice of every global
batch; gradients are averaged by DistributedDataParallel; rank 0 alone writes. Everything here is the plain thing in a
single process.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import ignite.distributed as idist
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainers.errors import ConfigError
from trainers.interruption import signals

T = TypeVar("T")


@contextmanager
def joined(device: str) -> Iterator[None]:
    """Inside, the processes that torchrun started know each other: by nccl when they compute on GPUs, else by gloo."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or idist.get_world_size() > 1:
        yield
        return
    on_gpus = torch.cuda.is_available() and device.split(":")[0] in {"auto", "cuda"}
    if on_gpus and int(os.environ["LOCAL_RANK"]) >= torch.cuda.device_count():
        raise ConfigError(
            f"{os.environ['LOCAL_WORLD_SIZE']} processes on {torch.cuda.device_count()} GPUs: start one for each GPU,"
            " or use --device cpu"
        )
    with signals.left_to_the_system():  # the others may never come
        idist.initialize("nccl" if on_gpus else "gloo")
    yield
    idist.finalize()  # not after an error: the others may be gone, and nobody would answer


rank, world_size = idist.get_rank, idist.get_world_size


def is_main_process() -> bool:
    """Whether this process writes and speaks for all; true to the end of the process, after the others have parted."""
    return int(os.environ.get("WORLD_SIZE", "1")) == 1 or os.environ["RANK"] == "0"


def own_device(name: str) -> torch.device:
    """The device of this process: with several processes on GPUs, each has its own."""
    device = torch.device(name)
    return torch.device("cuda", idist.get_local_rank()) if device.type == "cuda" and world_size() > 1 else device


def broadcast(make: Callable[[], T]) -> T:
    """What `make` gives on rank 0, for all. Its error is everybody's: nobody waits for a process that has given up."""
    if world_size() == 1:
        return make()
    made: list[Any] = [None, None]
    if is_main_process():
        try:
            made[0] = make()
        except Exception as error:
            made[1] = error
    torch.distributed.broadcast_object_list(made, src=0)
    if made[1] is not None:
        raise made[1]
    result: T = made[0]
    return result


def main_process_first(make: Callable[[], T]) -> T:
    """What each process makes for itself, rank 0 before the others so that it alone downloads. If one fails, all do."""
    if world_size() == 1:
        return make()
    result: Any = None
    error: Exception | None = None
    for main_process in (True, False):
        if is_main_process() == main_process:
            try:
                result = make()
            except Exception as caught:
                error = caught
        errors = [e for e in all_gather(error) if e is not None]
        if errors:
            raise error or errors[0]
    made: T = result
    return made


def all_gather(value: T) -> list[T]:
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    torch.distributed.all_gather_object(values, value)
    return values


def main_process_decides(flag: bool) -> bool:
    """Whether rank 0 says so: its clock decides for all."""
    return flag if world_size() == 1 else bool(idist.broadcast(float(flag), src=0))


def wrap(model: nn.Module, device: torch.device, *, may_skip_parameters: bool) -> nn.Module:
    """The model as each process trains it. Evaluation and checkpoints use the plain model, which shares its weights."""
    if world_size() == 1:
        return model
    return DistributedDataParallel(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        find_unused_parameters=may_skip_parameters,
    )
