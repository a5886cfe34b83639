"""Where a training run looks for signals: after each of its iterations, alone or together with other processes."""

import math
import time

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from torch.utils.data import DataLoader

from trainers import distributed
from trainers.errors import Interrupted
from trainers.interruption import signals

SECONDS_BETWEEN_LOOKS = 0.25


def attach(trainer: Engine, evaluator: Engine, val_loader: DataLoader) -> None:
    """Look after each iteration of both engines and after all work of an epoch. Attach last."""
    if distributed.world_size() == 1:
        for engine in (trainer, evaluator):
            engine.add_event_handler(Events.ITERATION_COMPLETED, signals.check)
        trainer.add_event_handler(Events.EPOCH_COMPLETED, signals.check)
        return
    batches = min(distributed.all_gather(len(val_loader)))
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
