"""Muon: AdamW, except that matrices inside the network take orthogonalised steps."""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW
from torch.optim.swa_utils import get_ema_multi_avg_fn

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

    Five steps of a Newton-Schulz iteration in bf16, which needs only products. Singular values become 0.7 to 1.2.
    """
    x = matrices.bfloat16()
    if wide := x.size(1) > x.size(2):
        x = x.mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=B, alpha=C), x, beta=A)
    return (x.mT if wide else x).type_as(matrices)
