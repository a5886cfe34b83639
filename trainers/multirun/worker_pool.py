"""Do several runs of one command, one after the other here or side by side in worker processes. Imports nothing heavy.

The first process handles signals: it tells its workers to save and stop. However it ends, they end too.
"""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator
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
    gpu: str | None
    item: Any = None
    """Item that it is working on."""

    def loss(self) -> TrainingError:
        """Return an error that says how the process ended."""
        self.process.join()
        code = self.process.exitcode or 0
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return TrainingError(
            f"the process of {self.item} ended by {how}; if memory ran out, fewer side by side need less: --jobs 1"
        )


@contextmanager
def side_by_side(jobs: int, gpus: tuple[str, ...] = ()) -> Iterator[Callable[..., Iterator[tuple[Any, Any]]]]:
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
    gpus: tuple[str, ...],
    function: Callable[[Item], Result],
    items: Iterable[Item],
) -> Iterator[tuple[Item, Result]]:
    """Yield items with their results as they end; processes are started, and items taken, as needed.

    Raises what `function` raised. TrainingError, once all other items are done: a process was killed.
    """
    waiting, lost = iter(items), list[TrainingError]()
    while True:
        idle = [worker for worker in workers if worker.item is None]
        for item in islice(waiting, len(idle) + jobs - len(workers)):
            if not idle:
                gpu = min(gpus, key=[worker.gpu for worker in workers].count, default=None)
                workers.append(start(gpu, jobs))
                idle.append(workers[-1])
            worker = idle.pop()
            worker.item = item
            with suppress(OSError):  # it is gone, and its pipe says so below
                worker.pipe.send((function, item))
        at_work = {worker.pipe: worker for worker in workers if worker.item is not None}
        if not at_work:
            break
        for pipe in pipes.wait(list(at_work)):
            worker = at_work[pipe]
            try:
                result = worker.pipe.recv()
            except (EOFError, OSError):
                workers.remove(worker)
                lost.append(worker.loss())
                continue
            if isinstance(result, BaseException):
                raise result
            item, worker.item = worker.item, None
            yield item, result
    if lost:
        raise lost[0]


def start(gpu: str | None, jobs: int) -> Worker:
    """Start a process with this one's Python and modules; signals wait until it has said which it handles."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    start_method = multiprocessing.get_start_method()
    worker = context.Process(target=serve, args=(theirs, gpu, jobs, start_method), name="run")
    held = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING) if hasattr(signal, "pthread_sigmask") else None
    try:
        worker.start()
    finally:
        if held is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
    theirs.close()
    return Worker(worker, mine, gpu)


def serve(pipe: Any, gpu: str | None, jobs: int, start_method: str) -> None:
    """Do, in a worker, what comes through the pipe, until it is closed.

    Its own processes start as those of the first one do; spawned ones would have semaphores that outlive a kill."""
    multiprocessing.set_start_method(start_method, force=True)
    leave_signals_to_parent()
    with suppress(Interrupted, EOFError, OSError), signals.heeded(OWN_SIGNALS):
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        process.settle()
        os.environ["TQDM_DISABLE"] = "1"  # bars of several processes would tear each other
        os.environ["LOCAL_WORLD_SIZE"] = str(jobs)  # as torchrun says it: processors and memory are shared by so many
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
