"""Several runs of one command: one after the other in this process, or side by side, each in a process of its own.

Signals are the first process's business: it tells the others to save and stop. However it ends, they end too.
"""

import multiprocessing
import os
import pickle
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing import connection as pipes
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from common.errors import Interrupted, TrainingError
from datasets.processes import STOPPING, leave_signals_to_parent
from trainers.system import process
from trainers.system.signals import signals

Item = TypeVar("Item")
Result = TypeVar("Result")
OWN_SIGNALS = tuple(signum for signum in STOPPING if signum.name in ("SIGTERM", "SIGXCPU"))
"""Signals a worker handles: SIGTERM from the parent, and its own limit on processor time."""


@dataclass
class Worker:
    """A process that does one item after the other, and the end of the pipe to it."""

    process: BaseProcess
    pipe: Any
    item: Any = None
    """Item that it is working on."""

    def give(self, function: Callable[[Any], Any], item: Any) -> None:
        self.item = item
        with suppress(OSError):  # it is gone: `take` says so
            self.pipe.send((function, item))

    def take(self) -> tuple[Any, Any]:
        """The item, and what became of it. Raises TrainingError: the process was killed. Else what the function raised
        there."""
        item, self.item = self.item, None
        try:
            result = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode or 0
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            raise TrainingError(
                f"the process of {item} ended by {how}; if memory ran out, fewer side by side need less: --jobs 1"
            ) from None
        if isinstance(result, BaseException):
            raise result
        return item, result


@contextmanager
def side_by_side(jobs: int, gpus: Sequence[str] = ()) -> Iterator[Callable[..., Iterator[tuple[Any, Any]]]]:
    """Give a function like `sequential_map` that does up to `jobs` items at a time, each process on one of the `gpus`.

    When the block ends with an error or a signal, all processes save what they can and end before it is passed on.
    """
    if jobs == 1:
        yield sequential_map
        return
    workers: list[Worker] = []
    try:
        yield partial(pool_map, workers, jobs, gpus)
    except BaseException:
        for worker in workers:
            worker.process.terminate()
        raise
    finally:
        for worker in workers:
            worker.pipe.close()
        for worker in workers:
            worker.process.join()


def sequential_map(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result]]:
    """Yield each item with its result, in order."""
    for item in items:
        yield item, function(item)


def pool_map(
    workers: list[Worker],
    jobs: int,
    gpus: Sequence[str],
    function: Callable[[Item], Result],
    items: Iterable[Item],
) -> Iterator[tuple[Item, Result]]:
    """Yield items with their results as they end; processes are started, and items taken, as needed."""
    waiting = iter(items)
    while True:
        idle = [worker for worker in workers if worker.item is None]
        for item in islice(waiting, len(idle) + jobs - len(workers)):
            if not idle:
                workers.append(start(gpus[len(workers) % len(gpus)] if gpus else None))
                idle.append(workers[-1])
            idle.pop().give(function, item)
        at_work = {worker.pipe: worker for worker in workers if worker.item is not None}
        if not at_work:
            return
        for pipe in pipes.wait(list(at_work)):
            yield at_work[pipe].take()


def start(gpu: str | None) -> Worker:
    """A process with this one's Python and modules. Signals wait until it knows whose business they are."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    worker = context.Process(target=serve, args=(theirs, gpu, multiprocessing.get_start_method()), name="run")
    held = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING) if hasattr(signal, "pthread_sigmask") else None
    try:
        worker.start()
    finally:
        if held is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
    theirs.close()
    return Worker(worker, mine)


def serve(pipe: Any, gpu: str | None, start_method: str) -> None:
    """Do, in a worker, what comes through the pipe, until it is closed. Its own processes start as
    those of the first one do; spawned ones would have semaphores that outlive a kill."""
    multiprocessing.set_start_method(start_method, force=True)
    leave_signals_to_parent()
    with suppress(Interrupted, EOFError, OSError), signals.heeded(OWN_SIGNALS):
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        process.settle()
        os.environ["TQDM_DISABLE"] = "1"  # bars of several processes would tear each other
        if gpu is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = gpu
        first = multiprocessing.parent_process()
        while first is not None and first.is_alive():
            pipe.send(outcome(*pipe.recv()))
    process.leave(0)


def outcome(function: Callable[[Any], Any], item: Any) -> Any:
    """The result, or the exception, as something that a pipe carries."""
    try:
        return function(item)
    except BaseException as error:
        if not hasattr(error, "exit_code"):
            error.add_note("".join(traceback.format_exception(error)))
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # of a class that wants more than a message
            return RuntimeError(*error.__notes__)
        return error
