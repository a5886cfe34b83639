"""Several processes as one run: who am I, what do all agree on, and who writes.

`torchrun --nproc-per-node N main.py train ...` starts N processes of one program. Each takes its slice of every global
batch; gradients are averaged by DistributedDataParallel; rank 0 alone writes. Everything here is the plain thing in a
single process. What they tell each other are tensors and plain data, never pickled objects.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import ignite.distributed as idist
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from datasets.errors import DataError, UnknownDataSet
from trainers.errors import CheckpointError, ConfigError, Diverged, TrainingError
from trainers.interruption import signals
from vit.errors import MissingPackage, WeightsError
from vit.tensor_files import from_bytes, to_bytes

T = TypeVar("T")
TOLD = (
    ConfigError, DataError, UnknownDataSet, WeightsError, MissingPackage, CheckpointError, Diverged, TrainingError,
    FileNotFoundError, OSError,
)  # fmt: skip
"""Errors that one process tells the others by name and message; any other is a RuntimeError there."""


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
    """What `make` gives on rank 0, for all: tensors and plain data. Its error is everybody's, too: nobody waits for a
    process that has given up."""
    if world_size() == 1:
        return make()
    made: Any = None
    fault: Exception | None = None
    if is_main_process():
        try:
            made = make()
        except Exception as error:
            fault = error
    told = _packed({"made": made, "fault": _told(fault)})
    size = torch.tensor([len(told)], device=idist.device())
    torch.distributed.broadcast(size, src=0)
    told = told if is_main_process() else told.new_empty(int(size))
    torch.distributed.broadcast(told, src=0)
    if fault is not None:
        raise fault
    message = _unpacked(told)
    if message["fault"] is not None:
        _raise(message["fault"])
    result: T = made if is_main_process() else message["made"]
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
        faults = [fault for fault in all_gather(_told(error)) if fault is not None]
        if error is not None:
            raise error
        if faults:
            _raise(faults[0])
    made: T = result
    return made


def all_gather(value: T) -> list[T]:
    """The values of all processes, tensors and plain data, by rank."""
    if world_size() == 1:
        return [value]
    told = _packed({"value": value})
    sizes = [int(size) for size in idist.all_gather(torch.tensor([len(told)], device=told.device))]
    padded = nn.functional.pad(told, (0, max(sizes) - len(told)))
    values = [torch.empty_like(padded) for _ in sizes]
    torch.distributed.all_gather(values, padded)
    return [_unpacked(part[:size])["value"] for part, size in zip(values, sizes, strict=True)]


def _packed(tree: dict[str, Any]) -> Tensor:
    """uint8 (bytes,) on the device that the processes talk by."""
    return torch.frombuffer(bytearray(to_bytes(tree)), dtype=torch.uint8).to(idist.device())


def _unpacked(told: Tensor) -> dict[str, Any]:
    return from_bytes(told.cpu().numpy().tobytes())


def _told(error: Exception | None) -> tuple[str, str] | None:
    if error is None:
        return None
    kind = next((kind for kind in TOLD if isinstance(error, kind)), None)
    return (kind.__name__, str(error)) if kind else ("RuntimeError", f"{type(error).__name__}: {error}")


def _raise(told: tuple[str, str]) -> NoReturn:
    name, message = told
    raise next((kind for kind in TOLD if kind.__name__ == name), RuntimeError)(message)


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
