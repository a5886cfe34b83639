"""An exponential moving average of the weights, which often validates better than the weights themselves."""

import copy

import torch
from ignite.engine import Engine, Events
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class ModelEMA:
    """`ema = m * ema + (1 - m) * weights` after each step, with momentum `m_t = min(decay, (1 + t) / (10 + t))`.

    The warm-up of the momentum is a closed form of the step t, so a resumed run needs no state beside the average.
    Own code, because Ignite's EMAHandler has no state_dict, aliases buffers to the live model and takes twice as long.
    """

    def __init__(self, model: nn.Module, *, decay: float) -> None:
        self.decay = decay
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self._pairs = [
            (average, live)
            for average, live in zip(self.model.parameters(), model.parameters(), strict=True)
            if live.requires_grad  # a frozen backbone is its own average
        ]
        self._buffers = list(zip(self.model.buffers(), model.buffers(), strict=True))

    def attach(self, trainer: Engine) -> None:
        trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: self.update(engine.state.iteration))

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after `step` (1, 2, ...). Buffers, such as batch statistics, are copied."""
        averages, live = zip(*self._pairs, strict=True)
        get_ema_multi_avg_fn(self.momentum(step))(list(averages), list(live), None)
        for average, buffer in self._buffers:
            average.copy_(buffer)

    def momentum(self, step: int) -> float:
        return min(self.decay, (1 + step) / (10 + step))
