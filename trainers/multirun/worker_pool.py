"""Do several runs of one command, one after the other here or side by side in worker processes. Imports nothing heavy.

The first process handles signals: it tells its workers to save and stop. However it ends, they end too.
"""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing import connection as pipes
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from common.errors import Interrupted, TrainingError
from datasets.processes import leave_signals_to_parent
from trainers.system import process
from trainers.system.signals import signals

Item = TypeVar("Item")
Result = TypeVar("Result")


def one_by_one(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result]]:
    """Yield each item with its result, in order."""
    for item in items:
        yield item, function(item)


@dataclass
class Worker:
    """A process that does one item after the other, and its pipe."""

    process: BaseProcess
    pipe: Any
    gpu: str | None
    item: Any = None
    """Item that it is working on."""


class WorkerPool:
    """Up to `jobs` worker processes, each on one of the `gpus`; call it like `one_by_one`.

    As a context manager it ends them: after an error or a signal they save what they can before it is passed on."""

    def __init__(self, jobs: int, gpus: Sequence[str] = ()) -> None:
        self.jobs, self.gpus = jobs, gpus
        self.workers: list[Worker] = []

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        for worker in self.workers:
            if error is not None:
                worker.process.terminate()
            worker.pipe.close()
        for worker in self.workers:
            worker.process.join()

    def __call__(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result]]:
        """Yield items with their results as they end.

        Processes are started, and items taken, as needed. Raises what `function` raised. TrainingError, once all other
        items are done: a process was killed."""
        waiting, lost = iter(items), ""
        while True:
            idle = [worker for worker in self.workers if worker.item is None]
            for item in islice(waiting, len(idle) + self.jobs - len(self.workers)):
                worker = idle.pop() if idle else self.start()
                worker.item = item
                with suppress(OSError):  # it is gone, and its pipe says so below
                    worker.pipe.send((function, item))
            at_work = {worker.pipe: worker for worker in self.workers if worker.item is not None}
            if not at_work:
                break
            for pipe in pipes.wait(list(at_work)):
                worker = at_work[pipe]
                try:
                    result = worker.pipe.recv()
                except (EOFError, OSError):
                    self.workers.remove(worker)
                    worker.process.join()
                    code = worker.process.exitcode or 0
                    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
                    lost = lost or f"the process of {worker.item} ended by {how}"
                    continue
                if isinstance(result, BaseException):
                    raise result
                item, worker.item = worker.item, None
                yield item, result
        if lost:
            raise TrainingError(f"{lost}; if memory ran out, fewer side by side need less: --jobs 1")

    def start(self) -> Worker:
        """Start a process like this one, on the GPU that fewest others use."""
        context = multiprocessing.get_context("spawn")
        mine, theirs = context.Pipe()
        gpu = min(self.gpus, key=[worker.gpu for worker in self.workers].count, default=None)
        arguments = (theirs, gpu, self.jobs, multiprocessing.get_start_method())
        worker = Worker(context.Process(target=serve, args=arguments, name="run"), mine, gpu)
        worker.process.start()
        theirs.close()
        self.workers.append(worker)
        return worker


def serve(pipe: Any, gpu: str | None, jobs: int, start_method: str) -> None:
    """Do, in a worker, what comes through the pipe, until it is closed.

    Its own processes start as those of the first one do; spawned ones would have semaphores that outlive a kill."""
    multiprocessing.set_start_method(start_method, force=True)
    leave_signals_to_parent()
    with suppress(Interrupted, EOFError, OSError), signals.handled([signal.SIGTERM]):
        process.settle()
        os.environ["TQDM_DISABLE"] = "1"  # bars of several processes would tear each other
        os.environ["LOCAL_WORLD_SIZE"] = str(jobs)  # as torchrun says how many share processors and memory
        if gpu is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = gpu
        while True:
            pipe.send(outcome(*pipe.recv()))
    process.leave(0)


def outcome(function: Callable[[Any], Any], item: Any) -> Any:
    """Return the result, or the exception, as something that a pipe carries."""
    try:
        return function(item)
    except BaseException as error:
        if hasattr(error, "exit_code") or isinstance(error, OSError):
            return error
        bug = RuntimeError(f"{type(error).__name__}: {error}")  # other classes may want more than a message
        bug.add_note(traceback.format_exc())
        return bug
