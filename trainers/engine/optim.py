"""Optimizers, AdamW with orthogonalised steps of matrices (Muon) among them, and learning rates as closed forms."""

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from common.errors import OptionError

COOLDOWN = 0.3
"""Share of the steps in which the schedule `cooldown` falls."""


class Kind(NamedTuple):
    """An optimizer as `--optimizer` names it."""

    build: Callable[[list[dict[str, Any]], float, bool], Optimizer]
    """Builds it over groups, at a rate, fused or not."""
    lr: float | None = None
    """Peak rate of every model; None: the model's own."""
    matrices: bool = False
    """The matrices below the head have groups of their own."""


OPTIMIZERS = {
    "adamw": Kind(lambda groups, lr, fused: AdamW(groups, lr=lr, fused=fused)),
    "sgd": Kind(lambda groups, lr, fused: SGD(groups, lr=lr, momentum=0.9, fused=fused)),
    # A step turns a matrix equally far, whatever its gradient.
    "muon": Kind(lambda groups, lr, _fused: Muon(groups, lr=lr), lr=0.02, matrices=True),
}
"""The values of `--optimizer`; a new one is a row here and a word in the type of the option."""


def build_optimizer(groups: Iterable[dict[str, Any]], *, name: str, lr: float) -> Optimizer:
    """Build an optimizer over parameter groups.

    A group's own `lr_scale` multiplies the schedule (1 without one)."""
    scaled = [{"lr_scale": 1.0, **group} for group in groups]
    leave_out_the_compiler()
    on_mps = any(parameter.device.type == "mps" for group in scaled for parameter in group["params"])
    return OPTIMIZERS[name].build(scaled, lr, not on_mps)


def leave_out_the_compiler() -> None:
    """Build optimizers without importing torch.compile's compiler, which torch needs only to hide `add_param_group`."""
    # Private to torch; saves a second of each start (docs/results.md).
    # test_trainers_process.py fails once torch no longer needs it.
    method: Any = getattr(Optimizer.add_param_group, "__wrapped__", None)
    if method is not None and "torch._dynamo" not in sys.modules:
        method.__dynamo_disable = method  # torch keeps the hidden method here


def learning_rate(*, peak: float, schedule: str, total_steps: int, warmup_steps: int) -> Callable[[int], float]:
    """Return the learning rate as a function of the step (from 0) alone.

    Nothing has to be saved to resume it. Ignite's wrapper around torch's schedulers is wrong for most of them under
    torch 2.14, and torch's own have state.

    The warm-up climbs linearly and reaches `peak` at step `warmup_steps`. Then: `cosine` falls to 0 just after the last
    step (Loshchilov & Hutter 2017, eq. 5); `constant` stays; `cooldown` stays, then falls linearly to 0 over the last
    30 % of the run (Zhai et al. 2022, section 3.5), so that a longer run can continue from before the fall.
    """
    if warmup_steps >= total_steps:
        raise OptionError(f"a warm-up of {warmup_steps} steps leaves nothing of a run of {total_steps} steps")

    def at(step: int) -> float:
        if step < warmup_steps:
            return peak * (step + 1) / (warmup_steps + 1)
        if schedule == "cosine":
            progress = (step - warmup_steps) / (total_steps - warmup_steps)
            return peak * 0.5 * (1 + math.cos(math.pi * progress))
        if schedule == "cooldown":
            return peak * min(1, (total_steps - step) / (total_steps * COOLDOWN))
        assert schedule == "constant", schedule
        return peak

    return at


def build_average(model: torch.nn.Module, *, decay: float) -> AveragedModel:
    """Build an exponential moving average of the weights, to be updated after each step.

    Its momentum warms up as min(decay, (1 + t) / (10 + t)) over t steps, so that the average of a short run moves away
    from its initial weights. Ignite's EMAHandler has no state to save, and shares its buffers with the model.
    """

    def update(averages: Any, weights: Any, steps: torch.Tensor | int) -> None:
        taken = int(average.n_averaged)  # on the CPU; `steps` is its copy on the device
        get_ema_multi_avg_fn(min(decay, (1 + taken) / (10 + taken)))(averages, weights, steps)

    average = AveragedModel(model, multi_avg_fn=update)
    average.module.eval().requires_grad_(False)
    return average


def computes_in_bf16(device: str) -> bool:
    """Return whether a device multiplies in bf16 natively."""
    if device.startswith("cuda"):
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities() if device == "cpu" else {}
    return bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))


def set_learning_rate(optimizer: Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_scale"]


BESIDE = 0.15
"""Rate of the parameters that AdamW updates, as a share of that of the matrices."""
MOMENTUM = 0.95
STEPS = 5
"""Steps of the iteration. The coefficients of Jordan et al. 2024 bring singular values close to 1, not to it."""
A, B, C = 3.4445, -4.7750, 2.0315


class Muon(AdamW):
    """Update groups with `matrices` by Muon and all others by AdamW.

    Muon (Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks") steps along the orthogonal
    factor of the momentum; a convolution counts as a matrix with a row per filter. Unlike `torch.optim.Muon`, equal
    shapes are one product of stacked matrices, and one optimizer with one state updates the whole network.
    """

    def __init__(self, groups: list[dict[str, Any]], *, lr: float) -> None:
        for group in groups:
            if not group.setdefault("matrices", False):
                group["lr_scale"] *= BESIDE
        super().__init__(groups, lr=lr, foreach=True)

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        groups = self.param_groups
        self.param_groups = [group for group in groups if not group["matrices"]]
        try:
            super().step()
        finally:
            self.param_groups = groups
        for group in groups:
            if group["matrices"]:
                self.turn(group)

    @torch.no_grad()
    def turn(self, group: dict[str, Any]) -> None:
        equals = defaultdict(list)
        for parameter in group["params"]:
            if parameter.grad is not None:
                equals[len(parameter), parameter[0].numel()].append(parameter)
        for (rows, columns), parameters in equals.items():
            for parameter in parameters:
                if not self.state[parameter]:  # AdamW expects a step in each loaded state
                    self.state[parameter] |= {"step": torch.zeros(()), "momentum": torch.zeros_like(parameter)}
            momenta = [self.state[parameter]["momentum"] for parameter in parameters]
            gradients: list[Any] = [parameter.grad for parameter in parameters]
            get_ema_multi_avg_fn(MOMENTUM)(momenta, gradients, None)
            pairs = zip(gradients, momenta, strict=True)
            ahead = [gradient.lerp(momentum, MOMENTUM) for gradient, momentum in pairs]  # Nesterov's
            steps = orthogonal(torch.stack([step.reshape(rows, columns) for step in ahead]))
            rate = group["lr"] * max(1, rows / columns) ** 0.5
            for parameter, step in zip(parameters, steps, strict=True):
                parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(step.view_as(parameter), alpha=rate)


def orthogonal(matrices: Tensor) -> Tensor:
    """Approximate the orthogonal factors U V^T of matrices (n, rows, columns).

    Five steps of a Newton-Schulz iteration, which needs only products. Singular values become 0.7 to 1.2. It tolerates
    bf16, which a processor without it multiplies 20 times as slowly as float32.
    """
    x = matrices.bfloat16() if computes_in_bf16(matrices.device.type) else matrices.float()
    if wide := x.size(1) > x.size(2):
        x = x.mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=B, alpha=C), x, beta=A)
    return (x.mT if wide else x).type_as(matrices)
